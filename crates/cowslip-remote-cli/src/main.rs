//! `cowslip-remote`: the `cowslip` command, with object stores.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cowslip::image::{Image, OnProgress};
use cowslip_cli::{OpenUrl, Remote};
use cowslip_remote::{Cache, Listed, ListedKind, PruneOptions};
use serde_json::{Value, json};

fn main() -> ExitCode {
    cowslip_cli::main(&Stores)
}

struct Stores;

impl Remote for Stores {
    fn open(&self, url: &str) -> cowslip::Result<Image> {
        cowslip_remote::open(url)
    }

    fn cache(&self, folder: &Path, most_bytes: u64, tell: fn(&str)) -> cowslip::Result<OpenUrl> {
        let cache = Cache::open(folder, most_bytes, tell)?;
        Ok(Box::new(move |url| cache.image(url)))
    }

    fn push(
        &self,
        file: &Path,
        url: &str,
        latest: Option<&str>,
        progress: OnProgress<'_>,
    ) -> cowslip::Result<Value> {
        let pushed = cowslip_remote::push(file, url, latest, progress)?;
        Ok(json!({
            "schema": "cowslip.image-push/1",
            "url": pushed.url,
            "sent_images": pushed.sent_images,
            "sent_bytes": pushed.sent_bytes,
            "latest": pushed.latest,
        }))
    }

    fn pull(&self, url: &str, file: &Path, progress: OnProgress<'_>) -> cowslip::Result<Value> {
        let pulled = cowslip_remote::pull(url, file, progress)?;
        Ok(json!({
            "schema": "cowslip.image-pull/1",
            "images": pulled.images,
            "bytes": pulled.bytes,
        }))
    }

    fn list(&self, url: &str) -> cowslip::Result<Value> {
        let images: Vec<Value> = cowslip_remote::list(url)?.iter().map(listed).collect();
        Ok(json!({"schema": "cowslip.image-ls/1", "images": images}))
    }

    fn prune(
        &self,
        url: &str,
        keep: usize,
        merge: Option<usize>,
        grace: Duration,
        is_dry_run: bool,
        progress: OnProgress<'_>,
    ) -> cowslip::Result<Value> {
        let mut wanted = PruneOptions::keep(keep).grace(grace).dry_run(is_dry_run);
        wanted.merge = merge;
        let pruned = cowslip_remote::prune(url, wanted, progress)?;
        let merged =
            pruned.merged.iter().map(|(image, into)| json!({"image": image, "into": into}));
        Ok(json!({
            "schema": "cowslip.image-prune/1",
            "dry_run": is_dry_run,
            "merged": merged.collect::<Vec<_>>(),
            "deleted": pruned.deleted,
            "deleted_bytes": pruned.deleted_bytes,
            "kept": pruned.kept,
        }))
    }
}

fn listed(listed: &Listed) -> Value {
    match &listed.kind {
        ListedKind::Image { identity, parent, created_unix_ns } => json!({
            "name": listed.name,
            "bytes": listed.bytes,
            "identity": identity.to_string(),
            "parent": parent.map(|parent| parent.to_string()),
            "created_unix_ns": created_unix_ns,
        }),
        ListedKind::Pointer(pointer) => json!({"name": listed.name, "pointer": pointer}),
        _ => json!({"name": listed.name, "bytes": listed.bytes}),
    }
}

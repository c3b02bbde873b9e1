//! `cowslip-remote`: the `cowslip` command, with object stores.

use std::path::Path;
use std::process::ExitCode;

use cowslip::image::{Image, OnProgress};
use cowslip_cli::Remote;
use cowslip_remote::{Listed, ListedKind};
use serde_json::{Value, json};

fn main() -> ExitCode {
    cowslip_cli::main(&Stores)
}

struct Stores;

impl Remote for Stores {
    fn open(&self, url: &str) -> cowslip::Result<Image> {
        cowslip_remote::open(url)
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

//! The store, and the soak's operations on it that Cowslip has no call for.

use std::path::PathBuf;

use cowslip::{Error, ErrorKind, Result};
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::server;

pub(crate) const FOLDER: &str = "soak";
pub(crate) const LATEST: &str = "latest";

/// The URL of an object.
pub(crate) fn url(name: &str) -> String {
    format!("s3://{}/{FOLDER}/{name}", server::BUCKET)
}

/// The name of a generation's image: the complete image that it needs, its own generation, and its writer.
pub(crate) fn name(base: u32, generation: u32, writer: u32) -> String {
    format!("b{base:06}-g{generation:06}-i{writer:04}")
}

/// The complete image that an image needs, and its writer.
pub(crate) fn base_and_writer(name: &str) -> Option<(u32, u32)> {
    let mut parts = name.get(..21)?.split('-');
    let base = parts.next()?.strip_prefix('b')?.parse().ok()?;
    Some((base, parts.nth(1)?.strip_prefix('i')?.parse().ok()?))
}

/// Serves the store until the parent ends.
pub(crate) fn serve(root: PathBuf) -> Result<()> {
    println!("{}", server::serve(root));
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).is_ok_and(|read| read > 0) {}
    Ok(())
}

/// Lists and removes objects.
pub(crate) struct Broom {
    store: AmazonS3,
    runtime: tokio::runtime::Runtime,
}

impl Broom {
    pub(crate) fn new() -> Result<Self> {
        // This selects the crate for TLS.
        cowslip_remote::Location::parse(&url(LATEST))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| Error::new(ErrorKind::System, "sweep").because(error.to_string()))?;
        let _inside = runtime.enter();
        let builder = AmazonS3Builder::from_env().with_bucket_name(server::BUCKET);
        let store = builder.with_disable_bulk_delete(true).build().map_err(failed)?;
        drop(_inside);
        Ok(Self { store, runtime })
    }

    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let listed = self.store.list(Some(&Key::from(FOLDER)));
        let name =
            |object: object_store::ObjectMeta| object.location.filename().unwrap_or("").to_owned();
        self.runtime.block_on(listed.map_ok(name).boxed().try_collect()).map_err(failed)
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let removed =
            self.runtime.block_on(self.store.delete(&Key::from(format!("{FOLDER}/{name}"))));
        match removed {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

fn failed(error: object_store::Error) -> Error {
    Error::new(ErrorKind::File, "sweep").because(error.to_string())
}

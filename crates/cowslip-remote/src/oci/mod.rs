//! Images of Cowslip as images of OCI, which Kubernetes mounts as volumes.
//!
//! ```text
//!  config   image.config.v1+json, for the runtimes' sake: linux, amd64, the layers' digests
//!  layers   one for each image file, oldest first: a tar of that file alone, not compressed
//!             annotations: the file's name, the image's identity
//! ```
//! A container that mounts it finds the files unchanged. Layers have the digest of their content, so that those of an
//! image's ancestors are sent and fetched once.

mod layer;
mod registry;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cowslip::image::{Image, OnProgress};
use cowslip::{Error, ErrorKind, Result};
use oci_client::RegistryOperation;
use oci_client::manifest::{
    IMAGE_CONFIG_MEDIA_TYPE, IMAGE_LAYER_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE, OciDescriptor,
    OciImageManifest,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use layer::Layer;
use registry::Registry;

const PUSH: &str = "push an image";
const PULL: &str = "pull an image";
/// The annotation of `oras` for the name of the file.
const TITLE: &str = "org.opencontainers.image.title";
const IDENTITY: &str = "cowslip.identity";

/// The number of images that moved, and the length of their files.
#[derive(Default)]
pub(crate) struct Moved {
    pub(crate) images: usize,
    pub(crate) bytes: u64,
}

/// Sends an image, and the images that it needs and that are not there. The tag names it once all are there.
pub(crate) fn push(
    file: &Path,
    url: &str,
    cancel: &CancellationToken,
    progress: OnProgress<'_>,
) -> Result<Moved> {
    let image = Image::open(file)?;
    let registry = Registry::open(PUSH, url, RegistryOperation::Push, cancel)?;
    image.verify(&mut *progress)?;
    let mut sent = Moved::default();
    let mut layers = Vec::new();
    for image in image.ancestors().iter().rev().chain([&image]) {
        let layer = Layer::of(image)?;
        let digest = layer.digest(&mut *progress)?;
        if !registry.has(&digest)? {
            registry.send(&layer, &digest, &mut *progress)?;
            sent.images += 1;
            sent.bytes += image.summary().file_bytes;
        }
        let told = [(TITLE, layer.name.clone()), (IDENTITY, image.identity().to_string())];
        layers.push(OciDescriptor {
            media_type: IMAGE_LAYER_MEDIA_TYPE.to_owned(),
            digest,
            size: layer.len_bytes() as i64,
            annotations: Some(told.map(|(key, value)| (key.to_owned(), value)).into()),
            ..OciDescriptor::default()
        });
    }
    let digests: Vec<_> = layers.iter().map(|layer| &layer.digest).collect();
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": digests},
    });
    let config = config.to_string().into_bytes();
    let manifest = OciImageManifest {
        media_type: Some(OCI_IMAGE_MEDIA_TYPE.to_owned()),
        config: OciDescriptor {
            media_type: IMAGE_CONFIG_MEDIA_TYPE.to_owned(),
            digest: layer::digest_of(&config),
            size: config.len() as i64,
            ..OciDescriptor::default()
        },
        layers,
        ..OciImageManifest::default()
    };
    registry.publish(config, manifest)?;
    Ok(sent)
}

/// Writes the image to a file, and the images that it needs beside it, unless they are there.
pub(crate) fn pull(
    url: &str,
    file: &Path,
    cancel: &CancellationToken,
    progress: OnProgress<'_>,
) -> Result<Moved> {
    let registry = Registry::open(PULL, url, RegistryOperation::Pull, cancel)?;
    let layers = registry.manifest()?.layers;
    let names = layers.iter().map(|layer| name_of(layer).ok_or_else(|| foreign(url)));
    let names: Vec<&str> = names.collect::<Result<_>>()?;
    let (Some(last), false) = (names.last(), names.is_empty()) else { return Err(foreign(url)) };
    let mut target: PathBuf = file.to_owned();
    if target.is_dir() {
        target.push(last);
    }
    let mut pulled = Moved::default();
    for (i, (layer, name)) in layers.iter().zip(&names).enumerate() {
        let is_needed = i + 1 < layers.len();
        let place = if is_needed { target.with_file_name(name) } else { target.clone() };
        let usage = |why| Error::new(ErrorKind::Usage, PULL).of_file(&place).because(why);
        if is_needed && place == target {
            return Err(usage("an image that it needs has this name"));
        }
        if is_needed && place.exists() {
            let there = Image::open(&place).ok().map(|image| image.identity().to_string());
            if there.as_deref() == annotation(layer, IDENTITY) {
                continue;
            }
            return Err(usage("another file has the name of an image that is needed"));
        }
        pulled.bytes += registry.fetch(layer, &place, &mut *progress)?;
        pulled.images += 1;
    }
    Image::open(&target)?;
    Ok(pulled)
}

fn annotation<'a>(layer: &'a OciDescriptor, key: &str) -> Option<&'a str> {
    let annotations: &BTreeMap<_, _> = layer.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

/// The file's name, if this is a layer that a push made.
fn name_of(layer: &OciDescriptor) -> Option<&str> {
    annotation(layer, IDENTITY)?;
    let name = annotation(layer, TITLE)?;
    let is_name = Path::new(name).file_name() == Some(name.as_ref());
    (is_name && layer.media_type == IMAGE_LAYER_MEDIA_TYPE).then_some(name)
}

fn foreign(url: &str) -> Error {
    Error::new(ErrorKind::Usage, PULL)
        .of_file(Path::new(url))
        .because("no image of Cowslip, or not as `cowslip image push` made it")
}

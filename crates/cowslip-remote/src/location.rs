//! URLs of images, and the stores behind them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cowslip::{Error, ErrorKind, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::multipart::MultipartStore;
use object_store::path::{Path as Key, PathPart};
use object_store::{
    BackoffConfig, ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig,
};
use url::Url;

use crate::errors::store_error;
use crate::runtime::runtime;

const OPERATION: &str = "understand a URL";

/// Nothing comes for so long: the stream is given up. What is only late is asked for a second time much sooner.
const READ_TIMEOUT: &str = "10 seconds";
/// A part of an upload takes longer only on a link that is of no use.
const WRITE_TIMEOUT: &str = "10 minutes";

/// What a store is used for: answers that are read have another patience than parts that are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Read,
    Write,
}

/// Where an image, or a folder of images, lies in a store.
#[derive(Clone)]
pub struct Location {
    /// Without credentials: those that carry some are refused.
    url: Url,
    pub(crate) key: Key,
    store: Arc<dyn ObjectStore>,
    parts: Option<Arc<dyn MultipartStore>>,
}

/// Whether this names something in a store, rather than a file.
pub fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// What an image in a registry begins with.
pub(crate) const OCI: &str = "oci://";

/// Whether this names an image in a registry, which is pushed and pulled as a whole.
pub(crate) fn is_reference(url: &str) -> bool {
    url.starts_with(OCI)
}

impl Location {
    /// Understands a URL to read from. Nothing is asked of the store.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a URL of no kind of store that is known, for one that carries credentials, and if
    /// the environment's settings contradict each other.
    pub fn parse(url: &str) -> Result<Self> {
        Self::parse_for(url, Purpose::Read)
    }

    pub(crate) fn parse_for(text: &str, purpose: Purpose) -> Result<Self> {
        let refused = |why: String| Error::new(ErrorKind::Usage, OPERATION).hint(why);
        let url = Url::parse(text).map_err(|error| refused(format!("no URL: {error}")))?;
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
            let is_azure = matches!(url.scheme(), "az" | "adl" | "azure" | "abfs" | "abfss");
            if !is_azure || url.password().is_some() || url.query().is_some() {
                let why = "a URL may not carry credentials or a query, which everybody could see: \
                           set them in the environment";
                return Err(refused(why.into()));
            }
        }
        if is_reference(text) {
            let why =
                format!("{url}: an image in a registry is fetched first: `cowslip image pull`");
            return Err(refused(why));
        }
        // In the threads' runtime: the client's timers belong to it.
        let _inside = runtime()?.enter();
        let name = Path::new(url.as_str());
        let (scheme, key) = ObjectStoreScheme::parse(&url)
            .map_err(|error| store_error(OPERATION, name, &error.into()))?;
        let (store, parts) = build(&scheme, &url, purpose)
            .map_err(|error| refused(format!("{url}: {error}")))?
            .ok_or_else(|| refused(format!("{url}: s3, gs, az, http and https are known")))?;
        Ok(Self { url, key, store, parts })
    }

    /// What messages call it.
    pub fn name(&self) -> PathBuf {
        self.url.as_str().trim_end_matches('/').into()
    }

    /// Its last part.
    pub fn file_name(&self) -> &str {
        self.key.filename().unwrap_or("")
    }

    /// What lies beside it under another name.
    pub fn beside(&self, name: &str) -> Self {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().pop().push(name);
        }
        let parent: Vec<_> = self.key.parts().collect();
        let folder = parent.iter().take(parent.len().saturating_sub(1)).cloned();
        let key = folder.chain([part(name)]).collect();
        Self { url, key, ..self.clone() }
    }

    /// What lies in it, as a folder, under a name.
    pub fn within(&self, name: &str) -> Self {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push(name);
        }
        let key = self.key.parts().chain([part(name)]).collect();
        Self { url, key, ..self.clone() }
    }

    pub(crate) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// For uploads in parts, if this kind of store has them.
    pub(crate) fn parts(&self) -> Option<&Arc<dyn MultipartStore>> {
        self.parts.as_ref()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.name().display(), f)
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A name as a part of a key: as it is, as in a URL, unless it would lead elsewhere.
fn part(name: &str) -> PathPart<'_> {
    PathPart::parse(name).unwrap_or_else(|_| name.into())
}

type Built = (Arc<dyn ObjectStore>, Option<Arc<dyn MultipartStore>>);

fn build(
    scheme: &ObjectStoreScheme,
    url: &Url,
    purpose: Purpose,
) -> object_store::Result<Option<Built>> {
    let retry = retry(purpose);
    let timeouts = match purpose {
        Purpose::Read => [("TIMEOUT", "1 hour"), ("READ_TIMEOUT", READ_TIMEOUT)],
        Purpose::Write => [("TIMEOUT", WRITE_TIMEOUT), ("READ_TIMEOUT", WRITE_TIMEOUT)],
    };
    let keys = [ClientConfigKey::Timeout, ClientConfigKey::ReadTimeout];
    let settings = |prefix: &str| {
        let set = |name: &str| std::env::var_os(format!("{prefix}_{name}")).is_some();
        let ours = timeouts.into_iter().zip(keys).filter(|((name, _), _)| !set(name));
        ours.map(|((_, value), key)| (key, value)).collect::<Vec<_>>()
    };
    Ok(Some(match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let mut builder = AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(retry);
            for (key, value) in settings("AWS") {
                builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
            }
            let store = Arc::new(builder.build()?);
            (Arc::clone(&store) as _, Some(store))
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let builder = GoogleCloudStorageBuilder::from_env();
            let mut builder = builder.with_url(url.as_str()).with_retry(retry);
            for (key, value) in settings("GOOGLE") {
                builder = builder.with_config(GoogleConfigKey::Client(key), value);
            }
            let store = Arc::new(builder.build()?);
            (Arc::clone(&store) as _, Some(store))
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let builder = MicrosoftAzureBuilder::from_env();
            let mut builder = builder.with_url(url.as_str()).with_retry(retry);
            for (key, value) in settings("AZURE") {
                builder = builder.with_config(AzureConfigKey::Client(key), value);
            }
            let store = Arc::new(builder.build()?);
            (Arc::clone(&store) as _, Some(store))
        }
        ObjectStoreScheme::Http => {
            let mut options = ClientOptions::new().with_allow_http(true);
            for (key, value) in settings("COWSLIP_HTTP") {
                options = options.with_config(key, value);
            }
            let root = &url[..url::Position::BeforePath];
            let builder = HttpBuilder::new().with_url(root).with_client_options(options);
            (Arc::new(builder.with_retry(retry).build()?), None)
        }
        _ => return Ok(None),
    }))
}

/// What the store's own client tries again; streams that break are the [fetcher](crate::fetcher)'s.
fn retry(purpose: Purpose) -> RetryConfig {
    let (max_retries, timeout_s) = match purpose {
        Purpose::Read => (5, 20),
        Purpose::Write => (10, 180),
    };
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries,
        retry_timeout: Duration::from_secs(timeout_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_not_files() {
        assert!(is_url("s3://bucket/key") && is_url("https://host/key"));
        assert!(!is_url("store.image") && !is_url("./a:b") && !is_url("://x"));
    }

    #[test]
    fn credentials_in_a_url_are_refused() {
        for url in [
            "https://me:secret@example.invalid/image",
            "https://example.invalid/image?X-Amz-Signature=secret",
            "s3://key:secret@bucket/image",
        ] {
            let error = Location::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn names_beside_and_within() {
        let image = Location::parse("http://example.invalid/a/b").unwrap();
        assert_eq!(image.file_name(), "b");
        let other = image.beside("c d");
        assert_eq!((other.key.as_ref(), other.file_name()), ("a/c d", "c d"));
        assert_eq!(other.to_string(), "http://example.invalid/a/c%20d");
        let folder = Location::parse("http://example.invalid/a/").unwrap();
        assert_eq!(folder.within("b").to_string(), image.to_string());
        assert_eq!(folder.within("b").key, image.key);
    }

    #[test]
    fn a_name_makes_the_key_that_its_url_makes() {
        let folder = Location::parse("http://example.invalid/a/").unwrap();
        for name in ["Größe-日本", "tilde~(x)!*'", "per%20cent", "a#b?c", "[x]{y}|z"] {
            let (within, beside) = (folder.within(name), folder.within("b").beside(name));
            let parsed = Location::parse(&within.to_string()).unwrap();
            assert_eq!((&within.key, beside.file_name()), (&parsed.key, name));
            assert_eq!((&beside.key, parsed.file_name()), (&parsed.key, name));
        }
        for name in [".", "..", "a/b"] {
            assert_eq!(folder.within(name).key.parts().count(), 2, "{name}");
        }
    }
}

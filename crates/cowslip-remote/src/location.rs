//! URLs of images, and the stores behind them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cowslip::{Error, ErrorKind, Result};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::multipart::MultipartStore;
use object_store::path::{Path as Key, PathPart};
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::client::{BUDGET, Connector, TIMEOUT};
use crate::credentials::{explained_azure, explained_google, explained_s3};
use crate::errors::store_error;
use crate::runtime::runtime;

const OPERATION: &str = "understand a URL";

/// Late bytes are requested a second time much sooner.
const SILENCE_READ: Duration = Duration::from_secs(10);
const SILENCE_WRITE: Duration = Duration::from_secs(30);
/// The use of a store: reading answers has another patience than sending parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Read,
    Write,
}

/// The place of an image, or a folder of images, in a store.
#[derive(Clone)]
pub struct Location {
    /// Without credentials: URLs with credentials are refused.
    url: Url,
    pub(crate) key: Key,
    store: Arc<dyn ObjectStore>,
    parts: Option<Arc<dyn MultipartStore>>,
    silence: Duration,
    /// Ends every wait for this location.
    cancel: CancellationToken,
}

impl Location {
    /// Parses a URL to read from, without any request to the store.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a URL of an unknown kind of store, for one with credentials, and if the environment's
    /// settings contradict each other.
    pub fn parse(url: &str) -> Result<Self> {
        Self::parse_for(url, Purpose::Read, &CancellationToken::new())
    }

    pub(crate) fn parse_for(
        text: &str,
        purpose: Purpose,
        cancel: &CancellationToken,
    ) -> Result<Self> {
        let refused = |why: String| Error::new(ErrorKind::Usage, OPERATION).because(why);
        let url = Url::parse(text).map_err(|error| refused(format!("no URL: {error}")))?;
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
            let is_azure = matches!(url.scheme(), "az" | "adl" | "azure" | "abfs" | "abfss");
            if !is_azure || url.password().is_some() || url.query().is_some() {
                let why = "a URL may not carry credentials or a query, which everybody could see";
                return Err(refused(why.into()).advise("set them in the environment"));
            }
        }
        // Inside the threads' runtime, to which the client's timers belong.
        let _inside = runtime()?.enter();
        let name = Path::new(url.as_str());
        let (scheme, key) = ObjectStoreScheme::parse(&url)
            .map_err(|error| store_error(OPERATION, name, &error.into()))?;
        let silence = silence(purpose)?;
        let (store, parts) = build(&scheme, &url, purpose, silence)
            .map_err(|error| refused(format!("{url}: {}", why_unbuilt(&error))))?
            .ok_or_else(|| refused(format!("{url}: s3, gs, az, http and https are known")))?;
        Ok(Self { url, key, store, parts, silence, cancel: cancel.clone() })
    }

    /// The same place, opened for writing.
    pub(crate) fn for_writing(&self) -> Result<Self> {
        Self::parse_for(self.url.as_str(), Purpose::Write, &self.cancel)
    }

    /// Its name in messages.
    pub fn name(&self) -> PathBuf {
        self.url.as_str().trim_end_matches('/').into()
    }

    /// Its last part.
    pub fn file_name(&self) -> &str {
        self.key.filename().unwrap_or("")
    }

    /// The location beside it with another name.
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

    /// The location in it, as a folder, with a name.
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

    pub(crate) fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    /// The time for which failing requests are retried.
    pub(crate) fn budget(&self) -> Duration {
        self.silence * BUDGET
    }

    /// The store for uploads in parts, if this kind of store has them.
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

/// A name as a part of a key: unchanged, as in a URL, unless it would lead elsewhere.
fn part(name: &str) -> PathPart<'_> {
    PathPart::parse(name).unwrap_or_else(|_| name.into())
}

type Built = (Arc<dyn ObjectStore>, Option<Arc<dyn MultipartStore>>);

/// The longest time that a request may move no byte.
fn silence(purpose: Purpose) -> Result<Duration> {
    let Some(text) = std::env::var_os(TIMEOUT) else {
        return Ok(match purpose {
            Purpose::Read => SILENCE_READ,
            Purpose::Write => SILENCE_WRITE,
        });
    };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    let seconds = seconds.filter(|seconds| (0.001..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        let why = format!("{TIMEOUT}={}: seconds are wanted, as in 30 or 0.5", text.display());
        Error::new(ErrorKind::Usage, OPERATION).because(why)
    })
}

fn build(
    scheme: &ObjectStoreScheme,
    url: &Url,
    purpose: Purpose,
    silence: Duration,
) -> object_store::Result<Option<Built>> {
    let retry = retry(purpose, silence);
    let connector = Connector { silence };
    Ok(Some(match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let builder = AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(retry);
            let builder = explained_s3(builder.with_http_connector(connector))?;
            let store = Arc::new(builder.build()?);
            (Arc::clone(&store) as _, Some(store))
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let builder = GoogleCloudStorageBuilder::from_env();
            let builder = builder.with_url(url.as_str()).with_retry(retry);
            let builder = explained_google(builder.with_http_connector(connector))?;
            let store = Arc::new(builder.build()?);
            (Arc::clone(&store) as _, Some(store))
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let builder = MicrosoftAzureBuilder::from_env();
            let builder = builder.with_url(url.as_str()).with_retry(retry);
            let builder = explained_azure(builder.with_http_connector(connector))?;
            let store = Arc::new(builder.build()?);
            (Arc::clone(&store) as _, Some(store))
        }
        ObjectStoreScheme::Http => {
            let options = ClientOptions::new().with_allow_http(true);
            let root = &url[..url::Position::BeforePath];
            let builder = HttpBuilder::new().with_url(root).with_client_options(options);
            let builder = builder.with_retry(retry).with_http_connector(connector);
            (Arc::new(builder.build()?), None)
        }
        _ => return Ok(None),
    }))
}

/// The reason why the environment's settings make no store.
fn why_unbuilt(error: &object_store::Error) -> String {
    let text = error.to_string();
    match text.contains("Account must be specified") {
        true => "AZURE_STORAGE_ACCOUNT_NAME, which names the account, is not set".to_owned(),
        false => text,
    }
}

/// Retries of the store's own client; the [fetcher](crate::fetcher) retries streams that break.
fn retry(purpose: Purpose, silence: Duration) -> RetryConfig {
    let (max_retries, retry_timeout) = match purpose {
        Purpose::Read => (5, silence * 2),
        Purpose::Write => (10, silence * BUDGET),
    };
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries,
        retry_timeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

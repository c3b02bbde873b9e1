//! A repository in a registry, and access to it.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use cowslip::image::OnProgress;
use cowslip::{Error, ErrorKind, Result};
use docker_credential::{CredentialRetrievalError, DockerCredential};
use futures_util::future::{Either, select};
use futures_util::stream::{StreamExt, try_unfold};
use oci_client::client::{ClientConfig, ClientProtocol, SizedStream};
use oci_client::errors::{DigestError, OciDistributionError, OciErrorCode};
use oci_client::manifest::{OciDescriptor, OciImageManifest, OciManifest};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};
use tokio::task::spawn_blocking;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

use super::PUSH;
use super::layer::{Layer, proceed, unpack};
use crate::attend::TICK;
use crate::errors::{reason, wait_longer};
use crate::location::{BUDGET, OCI, Purpose, silence};
use crate::runtime::{block_on, runtime};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// If set to `true`, remote registries are used without TLS, too.
const ALLOW_HTTP: &str = "COWSLIP_OCI_ALLOW_HTTP";

pub(super) struct Registry {
    operation: &'static str,
    /// Its name in messages.
    name: PathBuf,
    reference: Reference,
    client: Client,
    /// Requests that move no byte for this long are given up.
    silence: Duration,
    cancel: CancellationToken,
}

impl Registry {
    /// Parses a URL, and signs in with the credentials of Docker's configuration for the registry.
    pub(super) fn open(
        operation: &'static str,
        url: &str,
        purpose: RegistryOperation,
        cancel: &CancellationToken,
    ) -> Result<Self> {
        let refused = |why: String| Error::new(ErrorKind::Usage, operation).because(why);
        let text = url.strip_prefix(OCI).unwrap_or(url);
        if text.split('/').next().is_some_and(|host| host.contains('@')) {
            let why = "a URL may not carry credentials, which everybody could see";
            return Err(refused(why.into()).advise("use `docker login`"));
        }
        let reference: Reference =
            text.parse().map_err(|error| refused(format!("{url}: {error}")))?;
        let host = reference.registry();
        // Without a host `oci://registry/image` would mean Docker's registry, and the memory would be public there.
        if text.split_once('/').is_none_or(|(first, _)| first != host) {
            return Err(refused(format!("{url}: oci://HOST:PORT/REPOSITORY:TAG is wanted")));
        }
        let is_plain = is_loopback(host) || std::env::var(ALLOW_HTTP).is_ok_and(|it| it == "true");
        let silence = silence(Purpose::Write)?;
        // The client's timeout would include the time of sending a layer.
        let is_read = matches!(purpose, RegistryOperation::Pull);
        let config = ClientConfig {
            protocol: if is_plain { ClientProtocol::Http } else { ClientProtocol::Https },
            use_monolithic_push: true,
            read_timeout: is_read.then_some(silence),
            connect_timeout: Some(CONNECT_TIMEOUT),
            ..ClientConfig::default()
        };
        // Inside the threads' runtime, to which the client's timers belong.
        let _inside = runtime()?.enter();
        let client = Client::try_from(config)
            .map_err(|error| refused(format!("{url}: {}", reason(&error))))?;
        let (name, cancel) = (url.into(), cancel.clone());
        let registry = Self { operation, name, reference, client, silence, cancel };
        let credentials = registry.credentials()?;
        let signing_in = registry.client.auth(&registry.reference, &credentials, purpose);
        registry.wait(signing_in)?;
        Ok(registry)
    }

    /// The credentials that `docker login` stored.
    fn credentials(&self) -> Result<RegistryAuth> {
        use CredentialRetrievalError as Trouble;
        let host = match self.reference.registry() {
            "docker.io" => "https://index.docker.io/v1/",
            host => host,
        };
        match docker_credential::get_credential(host) {
            Ok(DockerCredential::UsernamePassword(user, password)) => {
                Ok(RegistryAuth::Basic(user, password))
            }
            Err(Trouble::NoCredentialConfigured | Trouble::ConfigNotFound) => {
                Ok(RegistryAuth::Anonymous)
            }
            // There is no file, or it cannot be read: the registry will tell if it needs credentials.
            Err(Trouble::ConfigReadError) => Ok(RegistryAuth::Anonymous),
            Err(Trouble::HelperFailure { stdout, .. }) if stdout.contains("not found") => {
                Ok(RegistryAuth::Anonymous)
            }
            // A helper's output may be a secret.
            Ok(DockerCredential::IdentityToken(_)) | Err(_) => {
                Err(self.error(ErrorKind::Denied).because(format!(
                    "what Docker's configuration has for {host} is no user and password"
                )))
            }
        }
    }

    /// Returns true if a layer is there.
    pub(super) fn has(&self, digest: &str) -> Result<bool> {
        self.wait(self.client.blob_exists(&self.reference, digest))
    }

    pub(super) fn send(&self, layer: &Layer, digest: &str, progress: OnProgress<'_>) -> Result<()> {
        let sent_bytes = Arc::new(AtomicU64::new(0));
        let (sent, total_bytes) = (Arc::clone(&sent_bytes), layer.len_bytes());
        let pieces = try_unfold(layer.pieces()?, move |mut pieces| {
            let sent = Arc::clone(&sent);
            async move {
                let read = spawn_blocking(move || pieces.next().map(|piece| (piece, pieces)));
                let (piece, pieces) = read.await.map_err(io::Error::other)??;
                sent.fetch_add(piece.as_ref().map_or(0, Bytes::len) as u64, Relaxed);
                Ok::<_, OciDistributionError>(piece.map(|piece| (piece, pieces)))
            }
        });
        let sending =
            self.client.push_blob_stream(&self.reference, pieces, digest, Some(total_bytes));
        block_on(&self.cancel, async {
            let mut sending = pin!(sending);
            let mut ticks = interval(TICK);
            let (mut last_bytes, mut moved) = (0, Instant::now());
            loop {
                match select(sending.as_mut(), pin!(ticks.tick())).await {
                    Either::Left((sent, _)) => {
                        return sent.map(drop).map_err(|error| self.refused(error));
                    }
                    Either::Right(_) => {
                        let now_bytes = sent_bytes.load(Relaxed);
                        if now_bytes != last_bytes {
                            (last_bytes, moved) = (now_bytes, Instant::now());
                        }
                        // A registry with all bytes may be checking and storing them.
                        let times = if now_bytes == total_bytes { BUDGET } else { 1 };
                        if moved.elapsed() > self.silence * times {
                            return Err(self.silent());
                        }
                        proceed(PUSH, &mut *progress, now_bytes, total_bytes)?;
                    }
                }
            }
        })
    }

    /// Has the tag name a manifest, and with that all layers.
    pub(super) fn publish(&self, config: Vec<u8>, manifest: OciImageManifest) -> Result<()> {
        let digest = manifest.config.digest.clone();
        self.wait(self.client.push_blob(&self.reference, config, &digest))?;
        let manifest = OciManifest::Image(manifest);
        self.wait(self.client.push_manifest(&self.reference, &manifest)).map(drop)
    }

    pub(super) fn manifest(&self) -> Result<OciImageManifest> {
        let pulling = self.client.pull_image_manifest(&self.reference, &RegistryAuth::Anonymous);
        self.wait(pulling).map(|(manifest, _)| manifest)
    }

    /// Writes the file of a layer, and returns its length.
    pub(super) fn fetch(
        &self,
        layer: &OciDescriptor,
        place: &Path,
        progress: OnProgress<'_>,
    ) -> Result<u64> {
        let stream = self.wait(self.client.pull_blob_stream(&self.reference, layer))?;
        let cancel = self.cancel.clone();
        unpack(Stream { stream, rest: Bytes::new(), cancel }, place, progress)
    }

    fn wait<T>(&self, future: impl Future<Output = Result<T, OciDistributionError>>) -> Result<T> {
        block_on(&self.cancel, async {
            let answer = timeout(self.silence, future).await.map_err(|_| self.silent())?;
            answer.map_err(|error| self.refused(error))
        })
    }

    fn silent(&self) -> Error {
        let why = format!("the registry was silent for {:?}", self.silence);
        self.error(ErrorKind::File).because(why).advise(wait_longer())
    }

    fn error(&self, kind: ErrorKind) -> Error {
        Error::new(kind, self.operation).of_file(&self.name)
    }

    /// A registry's refusal, without addresses of requests: these contain secrets that permit uploads and downloads.
    fn refused(&self, error: OciDistributionError) -> Error {
        use OciDistributionError as Refusal;
        let denied = || {
            let why = "the registry does not permit it";
            self.error(ErrorKind::Denied).because(why).advise("sign in with `docker login`")
        };
        let file = |why: String| self.error(ErrorKind::File).because(why);
        match error {
            Refusal::UnauthorizedError { .. } | Refusal::AuthenticationFailure(_) => denied(),
            Refusal::ImageManifestNotFoundError(_) => file("there is no such image".into()),
            Refusal::DigestError(_) => self
                .error(ErrorKind::Corrupt)
                .because("what came has another digest than the registry says"),
            Refusal::RegistryError { envelope, .. } => match envelope.errors.first() {
                Some(first) => match first.code {
                    OciErrorCode::Unauthorized | OciErrorCode::Denied => denied(),
                    OciErrorCode::ManifestUnknown
                    | OciErrorCode::NameUnknown
                    | OciErrorCode::NotFound => file("there is no such image".into()),
                    _ => file(reason(first)),
                },
                None => file("the registry refuses, and does not say why".into()),
            },
            Refusal::ServerError { code: 401 | 403, .. } => denied(),
            Refusal::ServerError { code, .. } => file(format!("the registry answers {code}")),
            Refusal::RequestError(error) => match error.status().map(|status| status.as_u16()) {
                Some(401 | 403) => denied(),
                _ => file(reason(&error.without_url())),
            },
            other => file(reason(&other)),
        }
    }
}

/// Returns true if no third party can listen.
fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// A blocking reader of a registry's stream.
struct Stream {
    stream: SizedStream,
    rest: Bytes,
    cancel: CancellationToken,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            let next = async { Ok::<_, Error>(self.stream.next().await) };
            match block_on(&self.cancel, next).map_err(io::Error::other)? {
                Some(piece) => self.rest = piece.map_err(without_address)?,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.rest.len());
        self.rest.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

/// A broken stream, without its address, which may permit downloads.
fn without_address(error: io::Error) -> io::Error {
    let Some(inner) = error.into_inner() else { return io::ErrorKind::Other.into() };
    match inner.downcast::<reqwest::Error>() {
        Ok(error) => io::Error::other(reason(&error.without_url())),
        Err(inner) if inner.is::<DigestError>() => {
            let why = "what came has another digest than the registry says";
            io::Error::new(io::ErrorKind::InvalidData, why)
        }
        Err(inner) => io::Error::other(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_alone_is_spoken_to_without_tls() {
        for host in ["127.0.0.1:5000", "localhost", "localhost:80", "127.9.9.9", "[::1]:5000"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["registry.example", "10.0.0.1:5000", "localhost.example", "127.0.0.1.example"]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_registry_is_named() {
        for url in ["oci://registry/image", "oci://image", "oci://me:secret@host.example/a:b"] {
            let cancel = CancellationToken::new();
            let opened = Registry::open(PUSH, url, RegistryOperation::Push, &cancel);
            let error = opened.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Usage, "{url}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}

//! HTTP for object stores: a request that moves no byte for a while fails.
//!
//! ```text
//!  request's body ──each piece that the socket takes──▶ ┌──────┐
//!                                                       │ Last │ ◀── nothing since `silence`: Timeout, tried again
//!  answer's head, then its body ──each frame──────────▶ └──────┘
//! ```
//! The client of `object_store` bounds the time from a request's start to its answer, and with that the time in which a
//! part is sent. A bound that suits a slow link there lets a silent store hang for minutes.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::{Either, select};
use http_body::{Body, Frame, SizeHint};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Certificate, NoProxy, Proxy};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// The variable with the seconds without a byte until a request is given up, in place of the defaults.
pub(crate) const TIMEOUT: &str = "COWSLIP_STORE_TIMEOUT";
/// A request is retried until this many times the silence have passed.
pub(crate) const BUDGET: u32 = 6;
/// Bytes handed to the socket at a time; each piece counts as a movement.
const PIECE_BYTES: usize = 64 << 10;
/// The longest time of a request, even if its bytes come steadily.
const LONGEST: Duration = Duration::from_secs(3600);

/// Makes clients that give up requests which move no byte for this long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connector {
    pub(crate) silence: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |source: BoxError| object_store::Error::Generic { store: "HTTP", source };
        let client = build(options).map_err(failed)?;
        Ok(HttpClient::new(Client { client, silence: self.silence }))
    }
}

type BoxError = Box<dyn StdError + Send + Sync>;

/// A client with the settings that `object_store` reads from the environment.
fn build(options: &ClientOptions) -> Result<reqwest::Client, BoxError> {
    use ClientConfigKey as Key;
    let text = |key| options.get_config_value(&key);
    let is = |key| text(key).is_some_and(|text| text == "true");
    let time = |key| text(key).map(|text| humantime::parse_duration(&text)).transpose();
    let agent = text(Key::UserAgent)
        .unwrap_or_else(|| concat!("cowslip/", env!("CARGO_PKG_VERSION")).into());
    let mut builder = reqwest::Client::builder()
        .user_agent(agent)
        .timeout(LONGEST)
        .https_only(!is(Key::AllowHttp))
        .tls_danger_accept_invalid_certs(is(Key::AllowInvalidCertificates));
    if let Some(time) = time(Key::ConnectTimeout)? {
        builder = builder.connect_timeout(time);
    }
    if let Some(time) = time(Key::PoolIdleTimeout)? {
        builder = builder.pool_idle_timeout(time);
    }
    if let Some(most) = text(Key::PoolMaxIdlePerHost) {
        builder = builder.pool_max_idle_per_host(most.parse()?);
    }
    if let Some(url) = text(Key::ProxyUrl) {
        let excludes = text(Key::ProxyExcludes).and_then(|hosts| NoProxy::from_string(&hosts));
        builder = builder.proxy(Proxy::all(url)?.no_proxy(excludes));
    }
    if let Some(certificate) = text(Key::ProxyCaCertificate) {
        builder = builder.tls_certs_merge([Certificate::from_pem(certificate.as_bytes())?]);
    }
    if is(Key::RandomizeAddresses) {
        builder = builder.dns_resolver(Shuffled);
    }
    Ok(builder.build()?)
}

/// Spreads connections over all addresses of a name.
struct Shuffled;

impl Resolve for Shuffled {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let mut addresses: Vec<_> = found.collect();
            fastrand::shuffle(&mut addresses);
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[derive(Debug)]
struct Client {
    client: reqwest::Client,
    silence: Duration,
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        // A store that assembles an object from its parts may say nothing meanwhile, and begin anew if it is asked
        // again.
        let assembles = parts.uri.query().is_some_and(|query| query.contains("uploadId="))
            && parts.method == http::Method::POST;
        let silence = if assembles { self.silence * BUDGET } else { self.silence };
        let url = parts.uri.to_string().parse().map_err(unknown)?;
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        let last = Last::default();
        *request.body_mut() = Some(match body.as_bytes() {
            // An empty body can then be sent again after a redirect.
            Some(bytes) if bytes.is_empty() => Bytes::new().into(),
            _ => reqwest::Body::wrap(Sent { body, rest: Bytes::new(), last: last.clone() }),
        });
        let answer = last.within(silence, self.client.execute(request)).await?;
        let (parts, body) = http::Response::from(answer.map_err(http_error)?).into_parts();
        let body = Received { body, silence, timer: None };
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}

/// The time when a request moved its last byte.
#[derive(Clone)]
struct Last(Arc<Mutex<Instant>>);

impl Default for Last {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Last {
    fn moved(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn at(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the result of `work`, unless no byte moves for this long.
    async fn within<T>(
        &self,
        silence: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, HttpError> {
        let mut work = pin!(work);
        loop {
            let until = self.at() + silence;
            match select(work.as_mut(), pin!(sleep_until(until))).await {
                Either::Left((done, _)) => return Ok(done),
                Either::Right(_) if self.at() + silence <= Instant::now() => {
                    return Err(silent(silence));
                }
                Either::Right(_) => {}
            }
        }
    }
}

/// A request's body, with its movements recorded.
struct Sent {
    body: HttpRequestBody,
    /// The remainder of the last piece from `body`, which the socket has not asked for yet.
    rest: Bytes,
    last: Last,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        self.last.moved();
        if self.rest.is_empty() {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(bytes) => self.rest = bytes,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return other,
            }
        }
        let length = self.rest.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let ahead = self.body.size_hint().exact().unwrap_or(0);
        SizeHint::with_exact(ahead + self.rest.len() as u64)
    }
}

/// An answer's body, which fails if no byte comes for this long.
struct Received {
    body: reqwest::Body,
    silence: Duration,
    /// Runs while a frame is awaited.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Body for Received {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let silence = self.silence;
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.timer = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(http_error)));
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(silence)));
        timer.as_mut().poll(context).map(|()| Some(Err(silent(silence))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// No byte came or went for this long.
#[derive(Debug)]
pub(crate) struct Silent(Duration);

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store was silent for {:?}", self.0)
    }
}

impl StdError for Silent {}

fn silent(silence: Duration) -> HttpError {
    HttpError::new(HttpErrorKind::Timeout, Silent(silence))
}

fn unknown(error: impl StdError + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, error)
}

/// The kind decides whether a request is tried again.
fn http_error(error: reqwest::Error) -> HttpError {
    let kind = match &error {
        error if error.is_timeout() => HttpErrorKind::Timeout,
        error if error.is_connect() => HttpErrorKind::Connect,
        error if error.is_decode() => HttpErrorKind::Decode,
        error => kind_of_cause(error),
    };
    // Messages about retries contain the address, unless it is a secret.
    HttpError::new(kind, error.without_url())
}

fn kind_of_cause(error: &reqwest::Error) -> HttpErrorKind {
    use std::io::ErrorKind as Io;
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(error) = inner.downcast_ref::<hyper::Error>()
            && (error.is_closed() || error.is_incomplete_message() || error.is_body_write_aborted())
        {
            return HttpErrorKind::Request;
        }
        match inner.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
            Some(Io::TimedOut) => return HttpErrorKind::Timeout,
            Some(
                Io::ConnectionAborted | Io::ConnectionReset | Io::BrokenPipe | Io::UnexpectedEof,
            ) => return HttpErrorKind::Interrupted,
            _ => {}
        }
        cause = inner.source();
    }
    HttpErrorKind::Unknown
}

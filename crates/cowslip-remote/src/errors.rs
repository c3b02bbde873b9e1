//! Refusals of stores, as this project's errors.

use std::error::Error as StdError;
use std::io;
use std::path::Path;

use cowslip::{Error, ErrorKind};
use cowslip_sys::error::io_kind;
use object_store::Error as StoreError;

use crate::client::{Silent, TIMEOUT};
use crate::missing_credentials::MissingCredentials;

/// Longer answers of a store are cut.
const MOST_CHARACTERS: usize = 300;

/// A store's refusal of an operation on an object.
pub(crate) fn store_error(operation: &'static str, name: &Path, error: &StoreError) -> Error {
    let failed = |kind, why: String| Error::new(kind, operation).of_file(name).because(why);
    match error {
        error if find::<MissingCredentials>(error).is_some() => {
            failed(ErrorKind::Denied, reason(error))
        }
        error if has_no_bucket(error) => failed(ErrorKind::File, "there is no such bucket".into()),
        StoreError::NotFound { .. } => failed(ErrorKind::File, "there is no such object".into()),
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            let code = code_of(error).map_or_else(String::new, |code| format!(" ({code})"));
            failed(ErrorKind::Denied, format!("the store does not permit it{code}"))
                .advise("check the credentials in the environment")
        }
        StoreError::Precondition { .. } => {
            failed(ErrorKind::Vanished, REPLACED.into()).advise(OPEN_AGAIN)
        }
        StoreError::NotImplemented { .. } | StoreError::NotSupported { .. } => {
            failed(ErrorKind::Unsupported, "this kind of store cannot do that".into())
        }
        other if find::<Silent>(other).is_some() => {
            failed(ErrorKind::File, reason(other)).advise(format!("set {TIMEOUT} to more seconds"))
        }
        other if is_short(other) => failed(ErrorKind::OutOfMemory, reason(other)),
        other => failed(ErrorKind::File, reason(other)),
    }
}

pub(crate) const REPLACED: &str = "the object was replaced since it was opened";
pub(crate) const OPEN_AGAIN: &str = "open it again";

/// Returns true if another attempt may have another answer.
pub(crate) fn is_passing(error: &StoreError) -> bool {
    matches!(error, StoreError::Generic { .. } | StoreError::JoinError { .. })
        && !has_no_bucket(error)
}

/// Returns true for a lack of memory, or of open files, on this machine.
fn is_short(error: &StoreError) -> bool {
    find::<io::Error>(error).is_some_and(|error| io_kind(error) == io::ErrorKind::OutOfMemory)
}

/// Returns true if there is no bucket, or container, as Azure calls it, of that name.
pub(crate) fn has_no_bucket(error: &StoreError) -> bool {
    let code = code_of(error);
    matches!(code.as_deref(), Some("NoSuchBucket" | "ContainerNotFound"))
}

/// The reason of a failure, down to its cause.
pub(crate) fn reason(error: &(dyn StdError + 'static)) -> String {
    if let Some(missing) = find::<MissingCredentials>(error) {
        return missing.to_string();
    }
    if let Some(silent) = find::<Silent>(error) {
        return format!("{silent}, at each attempt");
    }
    let text = whole(error);
    let answer = match (code_of(error), text.split_once("status code: ")) {
        (Some(code), _) => {
            let message = between(&text, "<Message>", "</Message>").unwrap_or_default();
            format!("the store answers {code}: {message}")
        }
        // For a page for browsers, only the status is useful.
        (None, Some((_, status))) => {
            let status = status.split_once(": <").map_or(status, |(status, _)| status);
            format!("the store answers {status}")
        }
        (None, None) => match (find::<std::io::Error>(error), address_in(&text)) {
            (Some(cause), Some(address)) => format!("{address}: {cause}"),
            _ => text,
        },
    };
    let line: String = answer.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match line.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// An error, and all of its causes.
fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    chain(error).find_map(|error| error.downcast_ref())
}

fn whole(error: &(dyn StdError + 'static)) -> String {
    chain(error).fold(String::new(), |said, cause| match cause.to_string() {
        text if said.is_empty() => text,
        text if said.contains(&text) => said,
        text => format!("{said}: {text}"),
    })
}

/// The store's own error code, from the XML of its answer.
fn code_of(error: &(dyn StdError + 'static)) -> Option<String> {
    let text = whole(error);
    let code = between(&text, "<Code>", "</Code>")?;
    let is_word = code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_word.then(|| code.to_owned())
}

/// The address of a request, from the message of the store's client; without its query, which may be a secret.
fn address_in(text: &str) -> Option<&str> {
    let url =
        text.split(' ').find(|word| word.starts_with("http://") || word.starts_with("https://"));
    url?.split('?').next()
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    text.split_once(begin)?.1.split_once(end).map(|(within, _)| within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Sent(&'static str, std::io::Error);

    impl std::fmt::Display for Sent {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for Sent {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.1)
        }
    }

    fn generic(text: &str) -> StoreError {
        StoreError::Generic { store: "S3", source: text.into() }
    }

    #[test]
    fn answers_are_read_and_not_shown_as_they_are() {
        let bucket = "Error performing PUT http://host/b/k in 1ms - Server returned non-2xx status code: \
            409 Conflict: <?xml version=\"1.0\"?>\n<Error><Code>BucketBusy</Code><Message>It is\nbusy.\
            </Message><RequestId>1</RequestId></Error>";
        assert_eq!(reason(&generic(bucket)), "the store answers BucketBusy: It is busy.");
        let page =
            "Server returned non-2xx status code: 502 Bad Gateway: <html><body>nginx</body></html>";
        assert_eq!(reason(&generic(page)), "the store answers 502 Bad Gateway");
        assert_eq!(reason(&generic("Connection refused")), "Generic S3 error: Connection refused");
        let address = "Error performing GET http://host/b?sig=secret in 1ms - HTTP error";
        let refused = std::io::Error::other("Connection refused");
        let source = Box::new(Sent(address, refused));
        let said = reason(&StoreError::Generic { store: "S3", source });
        assert_eq!(said, "http://host/b: Connection refused");
        let long = reason(&generic(&"é".repeat(1000)));
        assert_eq!(long.chars().count(), MOST_CHARACTERS + 1, "{long}");
    }

    #[test]
    fn a_remedy_is_apart_from_the_reason() {
        let said = |error| {
            let error = store_error("read", Path::new("s3://b/k"), &error);
            let (text, advice) = error.told();
            (text, advice.map(str::to_owned))
        };
        let source = "<Error><Code>AccessDenied</Code></Error>".into();
        let text = "s3://b/k: the store does not permit it (AccessDenied)".to_owned();
        let advice = "check the credentials in the environment".to_owned();
        let denied = StoreError::PermissionDenied { path: "k".into(), source };
        assert_eq!(said(denied), (text, Some(advice)));
        let text = "s3://b/k: there is no such object".to_owned();
        let missing = StoreError::NotFound { path: "k".into(), source: "404".into() };
        assert_eq!(said(missing), (text, None));
    }

    #[test]
    fn a_bucket_that_is_not_there_is_told_from_an_object() {
        for (code, said) in [
            ("NoSuchBucket", "no such bucket"),
            ("ContainerNotFound", "no such bucket"),
            ("NoSuchKey", "no such object"),
        ] {
            let source = format!("404 Not Found: <Error><Code>{code}</Code></Error>").into();
            let error = StoreError::NotFound { path: "k".into(), source };
            let error = store_error("read", Path::new("s3://b/k"), &error);
            assert!(error.to_string().contains(said), "{error}");
            assert_eq!(error.kind(), ErrorKind::File);
        }
    }
}

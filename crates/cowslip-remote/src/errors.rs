//! What stores refuse, as this project's errors.

use std::error::Error as StdError;
use std::path::Path;

use cowslip::{Error, ErrorKind};
use object_store::Error as StoreError;

use crate::client::Silent;
use crate::credentials::MissingCredentials;
use crate::location::TIMEOUT;

/// Longer answers of a store are cut.
const MOST_CHARACTERS: usize = 300;

/// A store's refusal of something done to an object.
pub(crate) fn store_error(operation: &'static str, name: &Path, error: &StoreError) -> Error {
    let (kind, why) = match error {
        error if find::<MissingCredentials>(error).is_some() => (ErrorKind::Denied, reason(error)),
        error if has_no_bucket(error) => (ErrorKind::File, "there is no such bucket".to_owned()),
        StoreError::NotFound { .. } => (ErrorKind::File, "there is no such object".to_owned()),
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            let code = code_of(error).map_or_else(String::new, |code| format!(" ({code})"));
            let why = format!(
                "the store does not permit it{code}: see the credentials in the environment"
            );
            (ErrorKind::Denied, why)
        }
        StoreError::Precondition { .. } => (ErrorKind::Vanished, REPLACED.to_owned()),
        StoreError::NotImplemented { .. } | StoreError::NotSupported { .. } => {
            (ErrorKind::Unsupported, "this kind of store cannot do that".to_owned())
        }
        other => (ErrorKind::File, reason(other)),
    };
    Error::new(kind, operation).of_file(name).hint(why)
}

pub(crate) const REPLACED: &str = "the object was replaced since it was opened: open it again";

/// Whether another attempt may have another answer.
pub(crate) fn is_passing(error: &StoreError) -> bool {
    matches!(error, StoreError::Generic { .. } | StoreError::JoinError { .. })
        && !has_no_bucket(error)
}

/// There is no bucket of that name, or container, as Azure calls it.
fn has_no_bucket(error: &StoreError) -> bool {
    let code = code_of(error);
    matches!(code.as_deref(), Some("NoSuchBucket" | "ContainerNotFound"))
}

/// What went wrong, down to its cause.
pub(crate) fn reason(error: &(dyn StdError + 'static)) -> String {
    if let Some(missing) = find::<MissingCredentials>(error) {
        return missing.to_string();
    }
    if let Some(silent) = find::<Silent>(error) {
        return format!(
            "{silent}, as often as it was asked ({TIMEOUT} changes how long it may be)"
        );
    }
    let text = whole(error);
    let answer = match (code_of(error), text.split_once("status code: ")) {
        (Some(code), _) => {
            let message = between(&text, "<Message>", "</Message>").unwrap_or_default();
            format!("the store answers {code}: {message}")
        }
        // A page for browsers says no more than its status.
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

/// An error, and all that caused it.
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

/// The store's own word for what is wrong, in the XML of its answer.
fn code_of(error: &(dyn StdError + 'static)) -> Option<String> {
    let text = whole(error);
    let code = between(&text, "<Code>", "</Code>")?;
    let is_word = code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_word.then(|| code.to_owned())
}

/// Where a request went, as the store's client writes it; without its query, which may be a secret.
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

//! Credentials, and the places that were searched if there are none.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as S3Key, AwsCredentialProvider};
use object_store::azure::{AzureConfigKey as AzureKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey as GoogleKey};
use tokio::time::timeout;

use crate::errors::reason;
use crate::missing_credentials::{MissingCredentials, Places};

/// A service that gives credentials answers in milliseconds, and does not exist on most machines.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes a builder's store report where it looked for credentials, unless the environment holds them.
pub(crate) fn explained_s3(builder: AmazonS3Builder) -> object_store::Result<AmazonS3Builder> {
    let get = |key| builder.get_config_value(&key);
    let is_set = |key| get(key).is_some();
    let is_anonymous = get(S3Key::SkipSignature).as_deref() == Some("true");
    if is_anonymous || is_set(S3Key::AccessKeyId) || is_set(S3Key::SecretAccessKey) {
        return Ok(builder);
    }
    let keys = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
    let tokens = "AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN";
    let containers = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, AWS_CONTAINER_CREDENTIALS_FULL_URI";
    let (unset, service) = match get(S3Key::WebIdentityTokenFile) {
        Some(file) if is_set(S3Key::RoleArn) => {
            (keys.to_owned(), format!("the token in {file}, by AWS_WEB_IDENTITY_TOKEN_FILE"))
        }
        _ if is_set(S3Key::ContainerCredentialsRelativeUri) => {
            let service = "the service of AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
            (format!("{keys}, {tokens}"), service.to_owned())
        }
        _ => match get(S3Key::ContainerCredentialsFullUri) {
            Some(uri) if is_set(S3Key::ContainerAuthorizationTokenFile) => (
                format!("{keys}, {tokens}"),
                format!("the service at {uri}, by AWS_CONTAINER_CREDENTIALS_FULL_URI"),
            ),
            _ => {
                let metadata = get(S3Key::MetadataEndpoint);
                let metadata = metadata.as_deref().unwrap_or("http://169.254.169.254");
                let service = format!("the instance metadata service at {metadata}");
                (format!("{keys}, {tokens}, {containers}"), service)
            }
        },
    };
    let found = builder.clone().build()?;
    let note = "~/.aws is not read, and a public bucket needs AWS_SKIP_SIGNATURE=true";
    let provider: AwsCredentialProvider =
        Arc::new(Explained::new(found.credentials(), unset, service, note));
    Ok(builder.with_credentials(provider))
}

/// Like [`explained_s3`].
pub(crate) fn explained_google(
    builder: GoogleCloudStorageBuilder,
) -> object_store::Result<GoogleCloudStorageBuilder> {
    let is = |key, wanted: &str| builder.get_config_value(&key).as_deref() == Some(wanted);
    let is_set = |key| builder.get_config_value(&key).is_some();
    let file = std::env::home_dir()
        .map(|home| home.join(".config/gcloud/application_default_credentials.json"));
    let has_file = file.as_ref().is_some_and(|file| file.exists());
    let keys = [
        GoogleKey::ServiceAccount,
        GoogleKey::ServiceAccountKey,
        GoogleKey::ApplicationCredentials,
    ];
    if has_file
        || is(GoogleKey::SkipSignature, "true")
        || is_set(GoogleKey::BearerToken)
        || keys.into_iter().any(is_set)
    {
        return Ok(builder);
    }
    let unset = "GOOGLE_SERVICE_ACCOUNT, GOOGLE_SERVICE_ACCOUNT_KEY, GOOGLE_APPLICATION_CREDENTIALS \
                 and GOOGLE_BEARER_TOKEN";
    let host = |name| std::env::var(name).ok();
    let host = host("GCE_METADATA_HOST").or_else(|| host("GCE_METADATA_ROOT"));
    let service = format!(
        "{} is not there; the metadata service at {}",
        file.unwrap_or_default().display(),
        host.as_deref().unwrap_or("metadata.google.internal")
    );
    let found = builder.clone().build()?;
    let note = "a public bucket needs GOOGLE_SKIP_SIGNATURE=true";
    let explained = Explained::new(found.credentials(), unset.into(), service, note);
    Ok(builder.with_credentials(Arc::new(explained)))
}

/// Like [`explained_s3`].
pub(crate) fn explained_azure(
    builder: MicrosoftAzureBuilder,
) -> object_store::Result<MicrosoftAzureBuilder> {
    let is = |key, wanted: &str| builder.get_config_value(&key).as_deref() == Some(wanted);
    let is_set = |key| builder.get_config_value(&key).is_some();
    let keys = [
        AzureKey::AccessKey,
        AzureKey::SasKey,
        AzureKey::Token,
        AzureKey::ClientSecret,
        AzureKey::FederatedTokenFile,
    ];
    if is(AzureKey::SkipSignature, "true")
        || is(AzureKey::UseEmulator, "true")
        || is(AzureKey::UseAzureCli, "true")
        || keys.into_iter().any(is_set)
    {
        return Ok(builder);
    }
    let unset = "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY, AZURE_STORAGE_TOKEN, \
                 AZURE_STORAGE_CLIENT_SECRET and AZURE_FEDERATED_TOKEN_FILE";
    let endpoint = builder.get_config_value(&AzureKey::MsiEndpoint);
    let endpoint = endpoint.as_deref().unwrap_or("http://169.254.169.254");
    let service = format!("the managed identity's service at {endpoint}");
    let found = builder.clone().build()?;
    let note = "a public container needs AZURE_SKIP_SIGNATURE=true";
    let explained = Explained::new(found.credentials(), unset.into(), service, note);
    Ok(builder.with_credentials(Arc::new(explained)))
}

/// A service's credentials.
#[derive(Debug)]
struct Explained<C> {
    service: Arc<dyn CredentialProvider<Credential = C>>,
    places: Places,
    /// True once it gave credentials: later failures are temporary.
    has_given: AtomicBool,
}

impl<C> Explained<C> {
    fn new(
        service: &Arc<dyn CredentialProvider<Credential = C>>,
        unset: String,
        name: String,
        note: &'static str,
    ) -> Self {
        let places = Places { unset, service: name, note };
        Self { service: Arc::clone(service), places, has_given: AtomicBool::new(false) }
    }
}

#[async_trait]
impl<C: fmt::Debug + Send + Sync> CredentialProvider for Explained<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        let why = match timeout(PATIENCE, self.service.get_credential()).await {
            Ok(Ok(credential)) => {
                self.has_given.store(true, Relaxed);
                return Ok(credential);
            }
            Ok(Err(error)) if self.has_given.load(Relaxed) => return Err(error),
            Ok(Err(error)) => reason(&error),
            Err(_) => format!("it does not answer within {} s", PATIENCE.as_secs()),
        };
        let missing = MissingCredentials { places: self.places.clone(), why };
        Err(object_store::Error::Unauthenticated { path: String::new(), source: missing.into() })
    }
}

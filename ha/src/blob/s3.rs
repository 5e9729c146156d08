//! Builds the client of a bucket of S3, or of a service with the same protocol. Sends no request: a missing
//! bucket or wrong credentials appear at the first use.
//!
//! Credentials, region and endpoint come from the usual `AWS_*` variables or the instance's role; trusted
//! certificates are the host's, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`.

use std::sync::Arc;
#[cfg(feature = "s3")]
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "s3")]
use std::time::Duration;

#[cfg(feature = "s3")]
use object_store::ClientConfigKey;
use object_store::ObjectStore;
#[cfg(feature = "s3")]
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, AwsCredentialProvider};

use crate::error::{Error, Result};

/// The timeout of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestTimeout {
    /// 30 s including the content, the library's default.
    Short,
    /// At most a day, while data arrives at least every 30 s: one request reads an object of any size.
    Long,
}

/// Opens `url`, which is `s3://` followed by `rest`: a bucket and optionally a prefix in it.
#[cfg(feature = "s3")]
pub(super) fn open(url: &str, rest: &str, timeout: RequestTimeout) -> Result<Arc<dyn ObjectStore>> {
    open_with(settings(AmazonS3Builder::from_env(), timeout), url, rest)
}

#[cfg(feature = "s3")]
fn settings(s3: AmazonS3Builder, timeout: RequestTimeout) -> AmazonS3Builder {
    match timeout {
        RequestTimeout::Short => s3,
        RequestTimeout::Long => {
            let with = |s3: AmazonS3Builder, key, value| {
                s3.with_config(AmazonS3ConfigKey::Client(key), value)
            };
            let s3 = with(s3, ClientConfigKey::Timeout, "1day");
            let s3 = with(s3, ClientConfigKey::ReadTimeout, "30s");
            s3.with_retry(object_store::RetryConfig {
                retry_timeout: Duration::from_hours(24),
                ..Default::default()
            })
        }
    }
}

#[cfg(feature = "s3")]
fn open_with(s3: AmazonS3Builder, url: &str, rest: &str) -> Result<Arc<dyn ObjectStore>> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(Error::Misconfigured(
            format!("{url} names no bucket: {}", super::URL_HELP).into(),
        ));
    }
    let unusable = |error: object_store::Error| {
        Error::Misconfigured(format!("{url} can't be used for blobs: {error}").into())
    };
    let s3 = s3.with_bucket_name(bucket);
    let s3 = match names_credentials(&s3) {
        true => s3,
        false => RoleOfHost::put_into(s3).map_err(unusable)?,
    };
    let s3 = s3.build().map_err(unusable)?;
    Ok(Arc::new(object_store::prefix::PrefixStore::new(s3, prefix)))
}

/// Whether the environment says where credentials are. Otherwise only the host can have a role.
#[cfg(feature = "s3")]
fn names_credentials(s3: &AmazonS3Builder) -> bool {
    let keys = [
        AmazonS3ConfigKey::AccessKeyId,
        AmazonS3ConfigKey::SecretAccessKey,
        AmazonS3ConfigKey::WebIdentityTokenFile,
        AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
        AmazonS3ConfigKey::ContainerCredentialsFullUri,
    ];
    keys.iter().any(|key| s3.get_config_value(key).is_some())
}

/// The credentials of the host's role. The first request for them fails soon, and its error says what to set: the
/// service that has them is on the host's network, or there is none. Once there were some, they are renewed with the
/// library's usual retries.
#[cfg(feature = "s3")]
#[derive(Debug)]
struct RoleOfHost {
    first: AwsCredentialProvider,
    later: AwsCredentialProvider,
    has_role: AtomicBool,
}

#[cfg(feature = "s3")]
impl RoleOfHost {
    fn put_into(s3: AmazonS3Builder) -> object_store::Result<AmazonS3Builder> {
        let retries = object_store::RetryConfig {
            max_retries: 2,
            retry_timeout: Duration::from_secs(5),
            ..Default::default()
        };
        let role = RoleOfHost {
            first: s3
                .clone()
                .with_retry(retries)
                .build()?
                .credentials()
                .clone(),
            later: s3.clone().build()?.credentials().clone(),
            has_role: AtomicBool::new(false),
        };
        Ok(s3.with_credentials(Arc::new(role)))
    }
}

#[cfg(feature = "s3")]
#[async_trait::async_trait]
impl object_store::CredentialProvider for RoleOfHost {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        if self.has_role.load(Ordering::Relaxed) {
            return self.later.get_credential().await;
        }
        let found = self.first.get_credential().await;
        self.has_role.fetch_or(found.is_ok(), Ordering::Relaxed);
        found.map_err(|error| object_store::Error::Generic {
            store: "S3",
            source: format!(
                "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of each \
                 process, or give its host a role that may use the bucket (asking for its role failed: {error})"
            )
            .into(),
        })
    }
}

/// Fails: S3 is not compiled in.
#[cfg(not(feature = "s3"))]
pub(super) fn open(
    url: &str,
    _rest: &str,
    _timeout: RequestTimeout,
) -> Result<Arc<dyn ObjectStore>> {
    Err(Error::Misconfigured(
        format!("{url} needs a build with the feature s3; without it: a file").into(),
    ))
}

#[cfg(all(test, feature = "s3"))]
#[path = "s3_tests.rs"]
mod tests;

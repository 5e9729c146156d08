//! Builds the client of a bucket of S3, or of a service with the same protocol. Sends no request: a missing
//! bucket or wrong credentials appear at the first use.
//!
//! Credentials, region and endpoint come from the usual `AWS_*` variables or the instance's role; trusted
//! certificates are the host's, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`.

use std::sync::Arc;
#[cfg(feature = "s3")]
use std::time::Duration;

#[cfg(feature = "s3")]
use object_store::ClientConfigKey;
use object_store::ObjectStore;
#[cfg(feature = "s3")]
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

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
    let s3 = s3.with_bucket_name(bucket).build().map_err(|error| {
        Error::Misconfigured(format!("{url} can't be used for blobs: {error}").into())
    })?;
    Ok(Arc::new(object_store::prefix::PrefixStore::new(s3, prefix)))
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

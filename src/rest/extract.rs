//! Reads the parts of a request; errors have this server's error body.

use std::collections::HashMap;
use std::fmt::Display;
use std::str::FromStr;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use bytes::Bytes;
use tanist_net::BodyError;
use tanist_proto::v1::ReadPosition;

use super::error::RestError;

/// Header with the epoch of the state that an answer shows.
const EPOCH: &str = "tanist-epoch";
/// Header with the change number of the state that an answer shows.
const CHANGE: &str = "tanist-change";
/// Header that marks an answer of a leader whose term the store does not confirm.
const TERM: &str = "tanist-term";

/// Parses an id in the path.
pub(super) fn id<T>(text: &str) -> Result<T, RestError>
where
    T: FromStr,
    T::Err: Display,
{
    text.parse()
        .map_err(|error| RestError::bad_request(format!("{error}")))
}

/// The query parameters; of several with one name, the last.
#[derive(Debug)]
pub(super) struct Parameters(pub(super) HashMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for Parameters {
    type Rejection = RestError;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Parameters, RestError> {
        let query = Query::<HashMap<String, String>>::from_request_parts(parts, state).await;
        match query {
            Ok(Query(parameters)) => Ok(Parameters(parameters)),
            Err(error) => Err(RestError::bad_request(error.body_text())),
        }
    }
}

impl Parameters {
    /// The value of `name` if it is there.
    pub(super) fn get<T>(&self, name: &str) -> Result<Option<T>, RestError>
    where
        T: FromStr,
        T::Err: Display,
    {
        let read = |text: &String| {
            text.parse().map_err(|error| {
                RestError::bad_request(format!("the query parameter `{name}={text}`: {error}"))
            })
        };
        self.0.get(name).map(read).transpose()
    }

    /// The value of `name`, a whole number, if it is there.
    pub(super) fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, RestError> {
        let read = |text: &String| {
            text.parse().map_err(|_| {
                RestError::bad_request(format!("{name} must be a whole number, not {text:?}"))
            })
        };
        self.0.get(name).map(read).transpose()
    }
}

impl Parameters {
    /// The comma-separated parts of a value; empty if it is not there.
    pub(super) fn list<T>(
        &self,
        name: &str,
        read: impl Fn(&str) -> Result<T, RestError>,
    ) -> Result<Vec<T>, RestError> {
        let text = self.0.get(name).map_or("", String::as_str);
        let parts = text.split(',').filter(|part| !part.is_empty());
        parts.map(read).collect()
    }
}

/// The query parameter of every read that asks for a [consistent](Parameters::consistent) answer.
const CONSISTENT: &str = "consistent";

impl Parameters {
    /// Whether the leader must confirm in the store that its term is the youngest before it answers.
    pub(super) fn consistent(&self) -> Result<bool, RestError> {
        Ok(self.flag(CONSISTENT)?.unwrap_or(false))
    }

    /// Whether `name` holds, if it is there.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, RestError> {
        match self.0.get(name).map(String::as_str) {
            None => Ok(None),
            Some("false") => Ok(Some(false)),
            // Also as `?name`.
            Some("true" | "") => Ok(Some(true)),
            Some(other) => Err(RestError::bad_request(format!(
                "the query parameter `{name}={other}` is neither true nor false"
            ))),
        }
    }
}

/// The parts of the path.
#[derive(Debug)]
pub(super) struct PathParts<T>(pub(super) T);

impl<S, T> FromRequestParts<S> for PathParts<T>
where
    S: Send + Sync,
    T: serde::de::DeserializeOwned + Send,
{
    type Rejection = RestError;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathParts<T>, RestError> {
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(path)) => Ok(PathParts(path)),
            Err(error) => Err(RestError::bad_request(error.body_text())),
        }
    }
}

/// A header's value, if it is there.
pub(super) fn header_text<'a>(
    headers: &'a HeaderMap,
    name: &str,
) -> Result<Option<&'a str>, RestError> {
    let read = |value: &'a HeaderValue| {
        value
            .to_str()
            .map_err(|_| RestError::bad_request(format!("the header `{name}` is not plain text")))
    };
    headers.get(name).map(read).transpose()
}

/// The length of the body as the client announced it, in bytes.
pub(super) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, RestError> {
    let text = header_text(headers, header::CONTENT_LENGTH.as_str())?;
    Ok(text.and_then(|text| text.parse().ok()))
}

/// Reads the body, if it has at most `limit` bytes.
pub(super) async fn read_body(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
) -> Result<Bytes, RestError> {
    let too_large = || {
        let text = format!("the body is larger than the {limit} bytes that are allowed");
        RestError::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    };
    if content_length(headers)?.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let read = to_bytes(body, limit).await;
    read.map_err(|error| broken_body(&error, too_large))
}

/// The error for a body, or the rest of it, that could not be read.
pub(super) fn broken_body(
    error: &(dyn std::error::Error + 'static),
    too_large: impl Fn() -> RestError,
) -> RestError {
    let causes = std::iter::successors(Some(error), |error| error.source());
    for cause in causes {
        if cause.is::<http_body_util::LengthLimitError>() {
            return too_large();
        }
        match cause.downcast_ref::<BodyError>() {
            Some(full @ BodyError::Full(_)) => {
                return RestError::new(StatusCode::SERVICE_UNAVAILABLE, full.to_string());
            }
            Some(silent @ BodyError::Silent) => {
                return RestError::new(StatusCode::REQUEST_TIMEOUT, silent.to_string());
            }
            Some(BodyError::Broken(_)) | None => {}
        }
    }
    RestError::bad_request(format!("the body could not be read: {error}"))
}

/// The headers that say which state a Dispatcher's answer shows.
pub(super) fn position_headers(as_of: Option<ReadPosition>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(position) = as_of {
        headers.insert(EPOCH, position.epoch.into());
        headers.insert(CHANGE, position.change.into());
        if position.suspended {
            headers.insert(TERM, HeaderValue::from_static("suspended"));
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_did_not_say_its_length_is_limited_all_the_same() {
        let read = |length: usize| read_body_of(vec![0; length]);
        assert_eq!(read(10).await.map(|bytes| bytes.len()), Ok(10));
        let error = read(11).await.expect_err("it is too large");
        assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
    }

    async fn read_body_of(bytes: Vec<u8>) -> Result<Bytes, RestError> {
        read_body(&HeaderMap::new(), Body::from(bytes), 10).await
    }
}

//! An error as an HTTP status and Flink's error body: `{"errors": ["..."]}`. A 503 has `Retry-After`: the request may
//! be sent again.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tanist_gateway::GatewayError;
use tanist_rest_model::{Errors, headers};

/// Seconds after which a request that found no leader may be sent again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// An answer that is an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {}", .errors.join("; "))]
pub(crate) struct RestError {
    /// Its status.
    pub(crate) status: StatusCode,
    /// The texts, at least one.
    pub(crate) errors: Vec<String>,
    /// Nothing is wrong, but other requests come first: the client may repeat the request without limit.
    pub(crate) is_busy: bool,
}

impl RestError {
    /// An error with one text.
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> RestError {
        RestError {
            status,
            errors: vec![error.into()],
            is_busy: false,
        }
    }

    /// The request is invalid.
    pub(crate) fn bad_request(error: impl Into<String>) -> RestError {
        RestError::new(StatusCode::BAD_REQUEST, error)
    }

    /// Other requests are being served, this one may be repeated later. The text must be printable ASCII.
    pub(crate) fn busy(error: impl Into<String>) -> RestError {
        RestError {
            is_busy: true,
            ..RestError::new(StatusCode::SERVICE_UNAVAILABLE, error)
        }
    }

    /// The named object does not exist.
    pub(crate) fn not_found(error: impl Into<String>) -> RestError {
        RestError::new(StatusCode::NOT_FOUND, error)
    }
}

impl From<GatewayError> for RestError {
    fn from(error: GatewayError) -> RestError {
        let status = match &error {
            GatewayError::Invalid(_) => StatusCode::BAD_REQUEST,
            GatewayError::NotFound(_) => StatusCode::NOT_FOUND,
            GatewayError::Conflict(_) | GatewayError::Incomparable(_) => StatusCode::CONFLICT,
            GatewayError::NotYet(_)
            | GatewayError::StoreRefused(_)
            | GatewayError::Unreachable { .. }
            | GatewayError::NoAnswer { .. }
            | GatewayError::Outdated { .. }
            | GatewayError::Unknown(_) => StatusCode::SERVICE_UNAVAILABLE,
            GatewayError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        RestError::new(status, error.to_string())
    }
}

impl IntoResponse for RestError {
    fn into_response(self) -> Response {
        let busy = self.errors.first().filter(|_| self.is_busy);
        let busy = busy.and_then(|reason| HeaderValue::from_str(reason).ok());
        let body = Json(Errors {
            errors: self.errors,
        });
        let mut response = (self.status, body).into_response();
        let fields = response.headers_mut();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            fields.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        if let Some(busy) = busy {
            fields.insert(headers::BUSY, busy);
        }
        response
    }
}

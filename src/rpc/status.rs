//! Conversion of a [`GatewayError`] to and from a gRPC status.
//!
//! The code identifies the error, with two exceptions: a header separates `StoreRefused` from `NotYet`; and if tonic
//! made the status of a transport error, `Unavailable` is `Unreachable` (not delivered), and `Unknown`, `Internal` and
//! `ResourceExhausted` are `NoAnswer` (it may have been handled). The epoch of `Outdated` is in a header.

use tanist_gateway::GatewayError;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

const EPOCH: &str = "tanist-epoch";
/// Header: the other side's store refused.
const BY_STORE: &str = "tanist-refused-by-store";

/// Converts an error for the other side.
pub(super) fn to_status(error: GatewayError) -> Status {
    let message = match &error {
        GatewayError::Unreachable { reason, .. }
        | GatewayError::NoAnswer { reason, .. }
        | GatewayError::Outdated { reason, .. } => reason.clone(),
        GatewayError::NotYet(text)
        | GatewayError::StoreRefused(text)
        | GatewayError::NotFound(text)
        | GatewayError::Conflict(text)
        | GatewayError::Incomparable(text)
        | GatewayError::Invalid(text)
        | GatewayError::Unknown(text)
        | GatewayError::Internal(text) => text.clone(),
    };
    match error {
        GatewayError::Unreachable { .. } | GatewayError::NotYet(_) => Status::unavailable(message),
        GatewayError::StoreRefused(_) => {
            let mut headers = MetadataMap::new();
            headers.insert(BY_STORE, MetadataValue::from_static("true"));
            Status::with_metadata(Code::Unavailable, message, headers)
        }
        GatewayError::NoAnswer { .. } => Status::deadline_exceeded(message),
        GatewayError::Outdated { epoch, .. } => {
            let mut headers = MetadataMap::new();
            headers.insert(EPOCH, MetadataValue::from(epoch));
            Status::with_metadata(Code::FailedPrecondition, message, headers)
        }
        GatewayError::NotFound(_) => Status::not_found(message),
        GatewayError::Conflict(_) => Status::already_exists(message),
        GatewayError::Incomparable(_) => Status::data_loss(message),
        GatewayError::Invalid(_) => Status::invalid_argument(message),
        GatewayError::Unknown(_) => Status::aborted(message),
        GatewayError::Internal(_) => Status::internal(message),
    }
}

/// Converts a status from `target`.
pub(super) fn from_status(target: &str, status: Status) -> GatewayError {
    let target = target.to_owned();
    let reason = status.message().to_owned();
    // A status that tonic created because there is no connection has the transport's error as its source.
    let transport = std::error::Error::source(&status).is_some();
    // In this order: a code means something else if it comes from the transport, or with the header.
    match status.code() {
        Code::Unavailable if transport => {
            let reason = root_cause(&status);
            GatewayError::Unreachable { target, reason }
        }
        Code::Unavailable if status.metadata().contains_key(BY_STORE) => {
            GatewayError::StoreRefused(reason)
        }
        Code::Unavailable => GatewayError::NotYet(reason),
        Code::DeadlineExceeded | Code::Cancelled => GatewayError::NoAnswer { target, reason },
        Code::FailedPrecondition => {
            let epoch = status
                .metadata()
                .get(EPOCH)
                .and_then(|value| value.to_str().ok())
                .and_then(|text| text.parse().ok())
                .unwrap_or(0);
            GatewayError::Outdated { epoch, reason }
        }
        Code::NotFound => GatewayError::NotFound(reason),
        Code::AlreadyExists => GatewayError::Conflict(reason),
        Code::DataLoss => GatewayError::Incomparable(reason),
        // The stream or its connection broke: the message may have been handled.
        Code::Unknown | Code::Internal | Code::ResourceExhausted if transport => {
            GatewayError::NoAnswer { target, reason }
        }
        Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted => {
            GatewayError::Invalid(reason)
        }
        Code::Aborted => GatewayError::Unknown(reason),
        Code::Ok
        | Code::Unknown
        | Code::PermissionDenied
        | Code::Unimplemented
        | Code::Internal
        | Code::Unauthenticated => GatewayError::Internal(reason),
    }
}

fn root_cause(status: &Status) -> String {
    let mut cause: &dyn std::error::Error = status;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_mean_the_same_on_the_other_side() {
        let outdated = GatewayError::Outdated {
            epoch: 7,
            reason: "epoch 6 is over".to_owned(),
        };
        for error in [
            outdated,
            GatewayError::NotYet("recovering".to_owned()),
            GatewayError::StoreRefused("no space".to_owned()),
            GatewayError::NotFound("no job".to_owned()),
            GatewayError::Conflict("taken".to_owned()),
            GatewayError::Incomparable("unreadable".to_owned()),
            GatewayError::Invalid("no name".to_owned()),
            GatewayError::Unknown("ask again".to_owned()),
            GatewayError::Internal("broken".to_owned()),
        ] {
            assert_eq!(from_status("x", to_status(error.clone())), error);
        }
    }

    #[test]
    fn a_connection_that_the_other_side_ends_for_too_many_frames_is_no_refusal_of_the_message() {
        let reason = "too_many_internal_resets".to_owned();
        let mut broken = Status::resource_exhausted(reason.clone());
        let source = std::io::Error::other("enhance your calm");
        broken.set_source(std::sync::Arc::new(source));
        let target = "x".to_owned();
        let expected = GatewayError::NoAnswer { target, reason };
        assert_eq!(from_status("x", broken), expected);
    }
}

//! Classifies errors of the client library: whether the request was sent, and whether it was applied.
//!
//! Only failures to connect, and refusals that etcd gives before or instead of applying, are definite. After
//! any other error (timeout, broken connection, a server that stops) the outcome is unknown. An error that is
//! wrongly classified as definite breaks the commit pipeline: so an unknown text or code is `NoAnswer`.

use std::error::Error as StdError;

use tonic::{Code, ConnectError, Status};

use super::STORE;
use crate::error::Error;

/// A failed attempt.
#[derive(Debug)]
pub(super) enum Failure {
    /// No connection: never sent. Another endpoint may work.
    NotSent(String),
    /// The server refused because it sees no raft leader: not applied. Another endpoint may work.
    NoLeader(String),
    /// The server refused the token: not applied. A new token may work.
    Token(String),
    /// The error for the caller.
    Final(Error),
}

/// The error of a request without an answer.
pub(super) fn no_answer(reason: impl Into<String>) -> Error {
    Error::NoAnswer {
        store: STORE,
        reason: reason.into(),
    }
}

/// Classifies an error of the client library.
pub(super) fn classify(error: etcd_client::Error) -> Failure {
    use etcd_client::Error as E;
    match error {
        E::GRpcStatus(status) => classify_status(&status),
        E::LeaseKeepAliveError(reason) if reason.contains("lease not found") => {
            Failure::Final(Error::SessionLost)
        }
        E::InvalidUri(_) | E::InvalidArgs(_) | E::InvalidMetadataValue(_) => {
            Failure::Final(Error::Misconfigured(format!("etcd: {error}").into()))
        }
        other => Failure::Final(no_answer(other.to_string())),
    }
}

fn classify_status(status: &Status) -> Failure {
    let reason = || status.message().to_owned();
    // Only a status that was created on the client side has a source.
    if let Some(source) = status.source() {
        return if is_connect_error(source) {
            Failure::NotSent(root_cause(source))
        } else {
            Failure::Final(no_answer(root_cause(source)))
        };
    }
    let unavailable = || {
        Failure::Final(Error::Unavailable {
            store: STORE,
            reason: reason(),
        })
    };
    let denied = || {
        Failure::Final(Error::Denied {
            store: STORE,
            reason: reason(),
        })
    };
    let text = status.message();
    if text.contains("invalid auth token") || text.contains("revision of auth store is old") {
        return Failure::Token(reason());
    }
    // The order counts: codes with a text come before the same code without.
    match status.code() {
        Code::Unavailable if text.ends_with("etcdserver: no leader") => Failure::NoLeader(reason()),
        Code::PermissionDenied | Code::Unauthenticated => denied(),
        Code::NotFound if text.contains("lease not found") => Failure::Final(Error::SessionLost),
        Code::InvalidArgument
            if text.contains("authentication failed") || text.contains("user name is empty") =>
        {
            denied()
        }
        Code::FailedPrecondition if text.contains("authentication is not enabled") => denied(),
        // Refused before the request is proposed, or by the rule that an active alarm applies instead of the
        // request.
        Code::ResourceExhausted if text.contains("space exceeded") => {
            Failure::Final(Error::OutOfSpace {
                store: STORE,
                reason: reason(),
            })
        }
        Code::ResourceExhausted if text.contains("too many requests") => unavailable(),
        Code::FailedPrecondition => unavailable(),
        Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented => Failure::Final(
            Error::Misconfigured(format!("etcd refused a request: {text}").into()),
        ),
        Code::ResourceExhausted if text.contains("message larger than max") => Failure::Final(
            Error::Misconfigured(format!("etcd refused a request: {text}").into()),
        ),
        code => Failure::Final(no_answer(format!("{code:?}: {text}"))),
    }
}

/// Whether a read failed because its answer is larger than the client's limit.
pub(super) fn is_answer_too_large(error: &etcd_client::Error) -> bool {
    let etcd_client::Error::GRpcStatus(status) = error else {
        return false;
    };
    matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted)
        && (status.message().contains("message length too large")
            || status.message().contains("message larger than max"))
}

/// Whether a read at a fixed revision failed because that revision is compacted, or is not of this store.
pub(super) fn is_compacted(error: &etcd_client::Error) -> bool {
    let etcd_client::Error::GRpcStatus(status) = error else {
        return false;
    };
    status.code() == Code::OutOfRange && status.message().contains("required revision")
}

fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn StdError + 'static)| {
        (*error).source()
    })
}

fn is_connect_error(error: &(dyn StdError + 'static)) -> bool {
    chain(error).any(|error| error.is::<ConnectError>())
}

fn root_cause(error: &(dyn StdError + 'static)) -> String {
    chain(error).last().unwrap_or(error).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Outcome;

    fn outcome(code: Code, message: &str) -> Option<Outcome> {
        match classify(etcd_client::Error::GRpcStatus(Status::new(code, message))) {
            Failure::Final(error) => Some(error.outcome()),
            Failure::NotSent(_) | Failure::NoLeader(_) | Failure::Token(_) => None,
        }
    }

    #[test]
    fn a_request_that_may_have_been_proposed_is_ambiguous() {
        for message in [
            "etcdserver: request timed out",
            "etcdserver: request timed out, possibly due to previous leader failure",
            "etcdserver: server stopped",
            "etcdserver: leader changed",
        ] {
            assert_eq!(
                outcome(Code::Unavailable, message),
                Some(Outcome::Ambiguous),
                "{message}"
            );
        }
        assert_eq!(outcome(Code::Unknown, "anything"), Some(Outcome::Ambiguous));
        assert_eq!(
            outcome(Code::Internal, "anything"),
            Some(Outcome::Ambiguous)
        );
    }

    #[test]
    fn refusals_are_definite() {
        let transient = Some(Outcome::Transient);
        let full = "etcdserver: mvcc: database space exceeded";
        assert_eq!(outcome(Code::ResourceExhausted, full), transient);
        assert_eq!(
            outcome(Code::NotFound, "etcdserver: requested lease not found"),
            transient
        );
        let fatal = Some(Outcome::Fatal);
        let failed = "etcdserver: authentication failed, invalid user ID or password";
        assert_eq!(outcome(Code::InvalidArgument, failed), fatal);
        assert_eq!(
            outcome(Code::InvalidArgument, "etcdserver: request is too large"),
            fatal
        );
    }

    #[test]
    fn an_expired_token_asks_for_a_new_one() {
        let status = Status::new(Code::Unauthenticated, "etcdserver: invalid auth token");
        let failure = classify(etcd_client::Error::GRpcStatus(status));
        assert!(matches!(failure, Failure::Token(_)), "{failure:?}");
    }
}

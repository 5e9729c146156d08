//! Names of the headers that both sides use.

/// Token that repeated attempts of one submission have in common.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Time after which a submission has no effect, in milliseconds by the clock of the term that [`DEADLINE_EPOCH`] names.
pub const DEADLINE: &str = "tanist-deadline";
/// Epoch of the term by whose clock [`DEADLINE`] is measured.
pub const DEADLINE_EPOCH: &str = "tanist-deadline-epoch";
/// Reason why the server is busy; the client may repeat the request without limit. A header, because a client that
/// sends a large body may receive only the head of the answer.
pub const BUSY: &str = "tanist-busy";

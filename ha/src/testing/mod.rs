//! Test support. For coordination stores: real servers as child processes, a proxy that breaks connections, a
//! decorator that loses answers on request, bounded waiting, the invariants, and the suite that every backend
//! passes. For blob stores: an S3 server, and certificates that no host trusts.
//!
//! Not for production: this code panics or blocks where a test may.

#[cfg(feature = "testing-s3")]
pub mod certificates;
pub mod conformance;
pub mod faulty;
pub mod invariants;
pub mod kinds;
pub mod proxy;
#[cfg(feature = "testing-s3")]
pub mod s3;
pub mod servers;
pub mod wait;

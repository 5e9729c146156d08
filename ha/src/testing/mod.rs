//! What tests of coordination stores need: real servers as child processes, a proxy that breaks connections on demand,
//! and bounded waiting.
//!
//! Not for production: everything here panics or blocks where a test may.

pub mod proxy;
pub mod servers;
pub mod wait;

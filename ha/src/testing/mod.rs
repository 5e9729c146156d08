//! What tests of coordination stores need: real servers as child processes, a proxy that breaks connections and a
//! decorator that loses answers on demand, bounded waiting, the invariants, and the suite that every backend passes.
//!
//! Not for production: everything here panics or blocks where a test may.

pub mod conformance;
pub mod faulty;
pub mod invariants;
pub mod proxy;
pub mod servers;
pub mod wait;

//! The exchange over real sockets.

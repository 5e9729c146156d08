//! The server on a real socket, over a Dispatcher that follows a script.

mod checkpoints;
mod flink_types;
mod ha;
mod kept_connection;
mod savepoints;
mod scripted;
mod serving;
mod submitting;
mod uploading;

//! The server on a real socket, over a Dispatcher that follows a script.

mod ha;
mod kept_connection;
mod scripted;
mod serving;
mod submitting;
mod uploading;

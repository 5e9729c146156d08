//! Follows keys through every break: reads, watches from that revision on, applies the events or reads again.
//!
//! etcd's watch streams never recover by themselves, and a cancelled one (compacted revision, expired token)
//! stays open and silent. So after any end of a stream the keys are read and watched again.
//!
//! Invariant: the watch begins at the revision after the read, so the last change is never missed; values in between
//! may be.

use std::time::Duration;

use etcd_client::{Event, WatchOptions, WatchResponse, WatchStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::client::{Connection, Position};
use super::status::{Failure, classify, no_answer};
use crate::error::{Error, Result};
use crate::retry::Backoff;

/// A key, or a range of keys including both ends.
#[derive(Debug, Clone)]
pub(super) struct Watched {
    pub(super) first: String,
    pub(super) last: Option<String>,
}

impl Watched {
    fn options(&self, from: i64) -> WatchOptions {
        let options = WatchOptions::new().with_start_revision(from);
        match &self.last {
            // The end of a range is exclusive; with an additional zero byte the last key is included.
            Some(last) => options.with_range(format!("{last}\0")),
            None => options,
        }
    }
}

/// Logs once that an operation fails, and once that it works again.
#[derive(Debug)]
pub(super) struct Outage {
    what: &'static str,
    lasts: bool,
}

impl Outage {
    pub(super) fn new(what: &'static str) -> Outage {
        Outage { what, lasts: false }
    }

    pub(super) fn goes_on(&mut self, endpoint: &str, error: &Error) {
        let what = self.what;
        if self.lasts {
            tracing::debug!(endpoint, %error, "etcd: still cannot {what}");
        } else {
            tracing::warn!(endpoint, %error, "etcd: cannot {what}, trying again");
        }
        self.lasts = true;
    }

    pub(super) fn is_over(&mut self, endpoint: &str) {
        if std::mem::take(&mut self.lasts) {
            tracing::info!(endpoint, "etcd: can {} again", self.what);
        }
    }
}

/// Keeps `level` at the value that `read` returns (with the store's revision), forever. `from_event` computes
/// the value from the newest event if that suffices; otherwise it is read again.
pub(super) async fn follow<T, R, Fut>(
    connection: Connection,
    watched: Vec<Watched>,
    level: watch::Sender<Option<T>>,
    what: &'static str,
    read: R,
    from_event: impl Fn(&Event) -> Option<Result<T>>,
) where
    T: PartialEq,
    R: Fn() -> Fut,
    Fut: Future<Output = Result<(T, i64)>>,
{
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
    let mut outage = Outage::new(what);
    let update = |value: T| {
        level.send_if_modified(|level| {
            let differs = level.as_ref() != Some(&value);
            if differs {
                *level = Some(value);
            }
            differs
        });
    };
    loop {
        // Ends with `Ok` when another call found the endpoint dead: that is not an outage of the watch.
        let watching = async {
            let (value, mut seen) = read().await?;
            update(value);
            let mut moved = connection.position();
            let position = *moved.borrow_and_update();
            let mut stream = open_watch(&connection, position, &watched, seen + 1).await?;
            loop {
                let message = tokio::select! {
                    biased;
                    message = next_message(&connection, position, &mut stream) => message?,
                    _ = moved.changed() => return Ok(()),
                };
                backoff.reset();
                outage.is_over(connection.endpoint(position));
                let Some((event, at)) = newest_event(&message).filter(|(_, at)| *at > seen) else {
                    continue;
                };
                let (value, revision) = match from_event(event) {
                    Some(value) => (value?, at),
                    None => read().await?,
                };
                update(value);
                seen = revision;
            }
        };
        if let Err(error) = watching.await {
            outage.goes_on(&connection.endpoints(), &error);
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }
}

/// Opens a stream with all watches on it.
async fn open_watch(
    connection: &Connection,
    position: Position,
    watched: &[Watched],
    from: i64,
) -> Result<WatchStream> {
    let opening = async {
        let mut client = connection.client(position).await?;
        let (first, others) = watched.split_first().expect("something is watched");
        let options = Some(first.options(from));
        let mut stream = client
            .watch(first.first.as_str(), options)
            .await
            .map_err(classify)?;
        for other in others {
            let options = Some(other.options(from));
            stream
                .watch(other.first.as_str(), options)
                .await
                .map_err(classify)?;
        }
        Ok(stream)
    };
    let opened = timeout(connection.request_timeout(), opening).await;
    match opened.unwrap_or_else(|_| Err(Failure::Final(no_answer("no watch was opened in time")))) {
        Ok(stream) => Ok(stream),
        Err(failure) => Err(left(connection, position, failure).await),
    }
}

/// The newest event of a message, with its revision.
fn newest_event(message: &WatchResponse) -> Option<(&Event, i64)> {
    let events = message.events().iter();
    let revision = |event: &Event| event.kv().map(etcd_client::KeyValue::mod_revision);
    events
        .filter_map(|event| Some((event, revision(event)?)))
        .max_by_key(|(_, at)| *at)
}

/// The next message of a stream that continues.
async fn next_message(
    connection: &Connection,
    position: Position,
    stream: &mut WatchStream,
) -> Result<WatchResponse> {
    let message = match stream.message().await {
        Ok(Some(message)) => message,
        Ok(None) => return Err(no_answer("the watch ended")),
        Err(error) => return Err(left(connection, position, classify(error)).await),
    };
    if message.canceled() {
        // The token may have expired: etcd reports that as a missing permission. If the permission is really
        // missing, the next read fails.
        let _ = connection.renew_token(position).await;
        return Err(no_answer(format!(
            "the watch was cancelled {}",
            reason(&message)
        )));
    }
    Ok(message)
}

fn reason(message: &WatchResponse) -> String {
    match message.compact_revision() {
        0 => format!("({})", message.cancel_reason()),
        revision => format!("(compacted up to revision {revision})"),
    }
}

/// Moves away from an endpoint whose stream failed.
async fn left(connection: &Connection, position: Position, failure: Failure) -> Error {
    if let Failure::Token(_) = failure {
        // The result shows when the stream is opened again.
        let _ = connection.renew_token(position).await;
    } else {
        connection.leave(position);
    }
    connection.error_of(failure)
}

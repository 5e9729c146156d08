//! Queries the status of the other JobManagers over REST.
//!
//! No decision depends on the answers. A process that does not answer in time is reported as such.

use std::time::Duration;

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use futures::future::join_all;
use http_body_util::{BodyExt as _, Full, Limited};
use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::Member;
use tanist_net::{HttpClient, http_client, http_connector};
use tanist_rest_model::{OwnStatus, paths};

/// Maximum size of an answer between JobManagers, in bytes.
const LONGEST_ANSWER: usize = 1 << 20;

/// Asks other JobManagers. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Peers {
    http: HttpClient<Full<Bytes>>,
}

/// The status of another process, as reported by itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PeerAnswer {
    pub(super) own: OwnStatus,
    /// Offset of its wall clock in milliseconds, positive if ahead of this process's: accurate to half a round
    /// trip.
    pub(super) clock_offset_ms: i64,
}

impl Peers {
    pub(super) fn new() -> Peers {
        Peers {
            http: http_client(http_connector(None)),
        }
    }

    /// The status of each of `members` as reported by itself, in their order.
    pub(super) async fn statuses(
        &self,
        members: &[Member],
        timeout: Duration,
    ) -> Vec<Result<PeerAnswer, String>> {
        join_all(members.iter().map(async |member| {
            let no_address = || "it has no REST address".to_owned();
            let address = member.addresses.get("rest").ok_or_else(no_address)?;
            let asked = wall_clock_ms();
            let own = self.fetch_status(address, timeout).await?;
            let answered = wall_clock_ms();
            if own.process != member.process.as_str() {
                let other = &own.process;
                return Err(format!("{other} answers at {address}"));
            }
            let middle = asked.midpoint(answered);
            let offset = i128::from(own.wall_clock) - i128::from(middle);
            Ok(PeerAnswer {
                clock_offset_ms: i64::try_from(offset).unwrap_or(i64::MAX),
                own,
            })
        }))
        .await
    }

    async fn fetch_status(&self, address: &str, timeout: Duration) -> Result<OwnStatus, String> {
        let (version, path) = (paths::VERSION, paths::HA_SELF);
        let request = Request::get(format!("http://{address}{version}{path}"))
            .body(Full::default())
            .map_err(|error| format!("{address} is no address: {error}"))?;
        let exchange = async {
            let failed =
                |error: &(dyn std::error::Error + 'static)| format!("{address}: {}", root(error));
            let answer = self.http.request(request).await;
            let answer = answer.map_err(|error| failed(&error))?;
            if answer.status() != StatusCode::OK {
                return Err(format!("{address} answered {}", answer.status()));
            }
            let body = Limited::new(answer.into_body(), LONGEST_ANSWER);
            let body = body.collect().await.map_err(|error| failed(&*error))?;
            let own = serde_json::from_slice(&body.to_bytes());
            own.map_err(|error| format!("{address}: {error}"))
        };
        let answer = tokio::time::timeout(timeout, exchange).await;
        answer.unwrap_or_else(|_| Err(format!("{address} did not answer within {timeout:?}")))
    }
}

/// hyper's own messages say less than their causes.
fn root<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    std::iter::successors(Some(error), |error| error.source())
        .last()
        .unwrap_or(error)
}

//! The part of `history/<epoch>` that says how a term followed the former one.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tanist_ha::clock::millis;
use tanist_ha::election::{Detection, LeaderSession};

/// Durations are in milliseconds, by the clock of the process that took over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TakeoverRecord {
    /// The epoch of the former term.
    pub former_epoch: u64,
    /// Its leader, if known.
    pub former: Option<String>,
    /// The incarnation of that process, if a heartbeat of it was ever received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_incarnation: Option<String>,
    /// The address of its heartbeats, at which a later term finds out whether the takeover was a false alarm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_address: Option<String>,
    /// The evidence for which the former leader was deposed.
    pub detection: Detection,
    /// When the detection was complete, in milliseconds since 1970.
    pub detected_at_ms: u64,
    /// Time from the leader's last heartbeat to the detection; `None` if none was ever received.
    pub noticed_after_ms: Option<f64>,
    /// Time from the detection until this process led.
    pub deposed_after_ms: f64,
    /// The former leader answered afterwards.
    #[serde(default)]
    pub false_alarm: bool,
}

impl TakeoverRecord {
    /// The takeover of this term; `None` for a cluster's first.
    pub(crate) fn of(session: &LeaderSession) -> Option<TakeoverRecord> {
        let takeover = session.takeover()?;
        let fraction = |duration: Duration| duration.as_secs_f64() * 1000.0;
        let deposed_after = takeover.deposed_after();
        let until_granted = millis(deposed_after);
        let former = &takeover.evidence.former;
        Some(TakeoverRecord {
            former_epoch: takeover.former_epoch.get(),
            former: former.process.as_ref().map(ToString::to_string),
            former_incarnation: former.incarnation.clone(),
            former_address: former.address.clone(),
            detection: takeover.evidence.detection,
            detected_at_ms: takeover.granted_ms.saturating_sub(until_granted),
            noticed_after_ms: takeover.noticed_after().map(fraction),
            deposed_after_ms: fraction(deposed_after),
            false_alarm: false,
        })
    }
}

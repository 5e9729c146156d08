//! What `history/<epoch>` says of how a term followed the former one.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tanist_ha::clock::millis;
use tanist_ha::election::{Detection, LeaderSession};

/// Durations in milliseconds, by the clock of the process that took over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TakeoverRecord {
    /// The epoch of the former term.
    pub former_epoch: u64,
    /// Who led it, if that was known.
    pub former: Option<String>,
    /// Which start of it, if it was ever heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_incarnation: Option<String>,
    /// Where its beats were served: there a later term finds out whether it was well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_address: Option<String>,
    /// How it was found out that it had to end.
    pub detection: Detection,
    /// When that was clear: milliseconds since 1970.
    pub detected_at_ms: u64,
    /// How long after the leader's last sign of life; nothing if none was ever heard.
    pub noticed_after_ms: Option<f64>,
    /// How long after it was clear this process led.
    pub deposed_after_ms: f64,
    /// The former leader was seen well afterwards.
    #[serde(default)]
    pub false_alarm: bool,
}

impl TakeoverRecord {
    /// Of this term; nothing for a cluster's first.
    pub(in crate::process) fn of(session: &LeaderSession) -> Option<TakeoverRecord> {
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

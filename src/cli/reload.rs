//! SIGHUP: a process that runs a part of a cluster reads its configuration again, and continues.
//!
//! Only the log level takes effect at once. Changes of other options are logged and take effect at the next
//! start. An invalid configuration changes nothing.

use std::collections::BTreeMap;

use tanist_config::{Configuration, LoadOptions};
use tanist_telemetry as telemetry;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

/// The option that takes effect without a restart.
const RELOADABLE: &str = "log.level";

/// Handles the signal until the runtime ends. From the call on, the signal does not end the process.
pub(super) fn on_hangup(load: LoadOptions, running: Configuration) {
    let mut hangup = match signal(SignalKind::hangup()) {
        Ok(hangup) => hangup,
        Err(error) => {
            warn!(%error, "SIGHUP can't be handled");
            return;
        }
    };
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let load = load.clone();
            let loading = tokio::task::spawn_blocking(|| Configuration::load(load));
            match loading.await {
                // Compared with the configuration of the process's start, so that pending changes are reported again.
                Ok(Ok(read)) => take_effect(&running, &read),
                Ok(Err(error)) => {
                    warn!(%error, "SIGHUP: the configuration is invalid, nothing is changed");
                }
                Err(error) => warn!(%error, "SIGHUP: the configuration could not be read"),
            }
        }
    });
}

fn take_effect(running: &Configuration, read: &Configuration) {
    let level = read.log().level.as_str();
    let filter = std::env::var(telemetry::FILTER_VARIABLE).ok();
    if let Err(error) = telemetry::set_level(level, filter.as_deref()) {
        warn!(%error, "SIGHUP: the log level can't be changed");
    }
    let waiting = changed(running, read).join(", ");
    if waiting.is_empty() {
        info!(level, "SIGHUP: the configuration was read again");
    } else {
        warn!(
            level,
            waiting,
            "SIGHUP: the configuration was read again; these options take effect at the next start"
        );
    }
}

/// The options that differ, except [`RELOADABLE`].
fn changed(running: &Configuration, read: &Configuration) -> Vec<&'static str> {
    let of = |configuration: &Configuration| -> BTreeMap<&'static str, Option<String>> {
        let settings = configuration.explicit_settings().into_iter();
        settings.map(|it| (it.key, it.value)).collect()
    };
    let (before, after) = (of(running), of(read));
    let keys = before.keys().chain(after.keys()).copied();
    let mut changed: Vec<&str> = keys
        .filter(|key| *key != RELOADABLE && before.get(key) != after.get(key))
        .collect();
    changed.sort_unstable();
    changed.dedup();
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_wait_for_the_next_start_are_named_once() {
        let set = |pairs: &[(&str, &str)]| {
            let mut load = LoadOptions::default();
            for (key, value) in pairs {
                load = load.with(key, value);
            }
            Configuration::load(load).expect("valid")
        };
        let running = set(&[
            ("log.level", "info"),
            ("rest.port", "1"),
            ("heartbeat.interval", "5 s"),
        ]);
        let read = set(&[
            ("log.level", "debug"),
            ("rest.port", "2"),
            ("client.timeout", "9 s"),
        ]);
        let expected = ["client.timeout", "heartbeat.interval", "rest.port"];
        assert_eq!(changed(&running, &read), expected);
        assert!(
            changed(
                &running,
                &set(&[
                    ("log.level", "warn"),
                    ("rest.port", "1"),
                    ("heartbeat.interval", "5 s")
                ])
            )
            .is_empty()
        );
    }
}

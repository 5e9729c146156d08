//! Builds the options of TaskManagers that a driver starts, and warns of fixed ports, which only one of them can have.

use super::super::options::WorkerOptions;
use super::super::table::*;
use super::super::value::WorkerDriver;
use super::Builder;

impl Builder<'_> {
    pub(super) fn workers(&mut self) -> WorkerOptions {
        let driver = self.values.get(&RM_DRIVER);
        let max_failure_rate = self.values.get(&RM_MAX_FAILURE_RATE);
        self.require(max_failure_rate > 0.0, &[RM_MAX_FAILURE_RATE.name], || {
            "must be above zero".to_owned()
        });
        let (min_slots, max_slots) = (self.values.get(&SLOTS_MIN), self.values.get(&SLOTS_MAX));
        let keys = [SLOTS_MIN.name, SLOTS_MAX.name];
        self.require(min_slots <= max_slots, &keys, || {
            format!(
                "the minimum must not be above the maximum: write `{}: {min_slots}` or more",
                keys[1]
            )
        });
        if driver == WorkerDriver::LocalProcess {
            let ports = [
                (TM_PORT.name, self.values.get(&TM_PORT)),
                (TM_DATA_PORT.name, self.values.get(&TM_DATA_PORT)),
            ];
            for (key, ports) in ports {
                if ports.is_one_fixed() {
                    self.warnings.push(format!(
                        "{}, but all TaskManagers that the driver starts are on one host: only one of them can have it",
                        self.values.describe(key)
                    ));
                }
            }
        }
        let registration_timeout = self.positive(&RM_REGISTRATION_TIMEOUT);
        // For this time a JobMaster waits for the tasks of a TaskManager, to adopt them: it must not be stopped before.
        let lost = self.values.get(&HEARTBEAT_TIMEOUT);
        self.not_above(
            (&HEARTBEAT_TIMEOUT, lost),
            (&RM_REGISTRATION_TIMEOUT, registration_timeout),
        );
        let log_dir = self.values.find(&RM_LOG_DIR);
        WorkerOptions {
            driver,
            log_dir: log_dir.unwrap_or_else(|| self.working_dir().join("workers")),
            idle_timeout: self.positive(&RM_IDLE_TIMEOUT),
            registration_timeout,
            max_failure_rate,
            retry_interval: self.positive(&RM_RETRY_INTERVAL),
            min_slots,
            max_slots,
            redundant: self.values.get(&REDUNDANT_TMS),
        }
    }
}

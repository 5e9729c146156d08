//! Random faults of calls and transactions, all from one seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tanist_gateway::local::{Delivery, Fault};

/// The fate of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Fate {
    #[default]
    Passes,
    /// It is applied, its answer is lost.
    LosesReply,
    /// It is answered, and a copy of it arrives later.
    IsDuplicated(Duration),
    /// Its sender gives it up, and it arrives after this time.
    ComesLate(Duration),
}

/// Random faults of calls and transactions. Rates are per thousand.
#[derive(Debug)]
pub(crate) struct RandomFaults {
    random: StdRng,
    /// Rate of calls that are refused.
    pub unreachable: u32,
    /// Rate of calls and transactions whose answer is lost.
    pub lost: u32,
    /// Rate of calls that never arrive, or arrive after their caller has given up.
    pub silent: u32,
    /// Rate of calls and transactions that arrive again later.
    pub duplicates: u32,
    /// Maximum delay of each direction, in milliseconds.
    pub delay_ms: u64,
    /// Rate of deployments that arrive again later, or after their caller has given up. Separate, because there
    /// are few deployments, and outdated ones must be refused.
    pub late_deployments: u32,
    /// Nothing gets lost between JobManagers and TaskManagers.
    pub spares_task_managers: bool,
}

impl RandomFaults {
    pub(crate) fn of_seed(seed: u64) -> RandomFaults {
        RandomFaults {
            random: StdRng::seed_from_u64(seed),
            unreachable: 20,
            lost: 30,
            silent: 4,
            duplicates: 30,
            delay_ms: 40,
            late_deployments: 600,
            spares_task_managers: false,
        }
    }

    /// Like [`of_seed`](Self::of_seed), but nothing gets lost between JobManagers and TaskManagers.
    pub(crate) fn sparing_task_managers(seed: u64) -> RandomFaults {
        RandomFaults {
            spares_task_managers: true,
            ..RandomFaults::of_seed(seed)
        }
    }

    fn happens(&mut self, of_a_thousand: u32) -> bool {
        self.random.random_range(0..1000) < of_a_thousand
    }

    /// From a millisecond to about two minutes; each power of two is equally likely.
    fn late(&mut self) -> Duration {
        let most = 1_u64 << self.random.random_range(0..=17_u32);
        Duration::from_millis(self.random.random_range(1..=most))
    }

    /// The delivery of a call of this method between these processes.
    pub(super) fn delivery(&mut self, method: &str, ends: [&str; 2]) -> Delivery {
        let is_deployment = method == "submit_tasks";
        let (duplicates, silent) = match is_deployment {
            true => (self.late_deployments, self.late_deployments / 10),
            false => (self.duplicates, self.silent),
        };
        let most = self.delay_ms;
        let mut way = || Duration::from_millis(self.random.random_range(0..=most));
        let (there, back) = (way(), way());
        let duplicate = self.happens(duplicates).then(|| self.late());
        let mut delivery = Delivery {
            there,
            back,
            duplicate,
            fault: Fault::None,
        };
        let is_spared = ends.iter().any(|end| end.starts_with("tm"));
        if self.spares_task_managers && is_spared {
            return delivery;
        }
        if self.happens(self.unreachable) {
            delivery.fault = Fault::Unreachable;
        } else if self.happens(self.lost) {
            delivery.fault = Fault::LoseReplies;
        } else if self.happens(silent) {
            delivery.fault = Fault::Silent;
            let arrives = is_deployment || self.random.random_bool(0.5);
            delivery.duplicate = arrives.then(|| self.late());
        }
        delivery
    }

    pub(super) fn fate(&mut self) -> Fate {
        if self.happens(self.lost) {
            Fate::LosesReply
        } else if self.happens(self.duplicates) {
            Fate::IsDuplicated(self.late())
        } else if self.happens(self.duplicates) {
            Fate::ComesLate(self.late())
        } else {
            Fate::Passes
        }
    }

    /// Duration of a request's way to the store.
    pub(super) fn store_delay(&mut self) -> Duration {
        Duration::from_millis(self.random.random_range(0..=self.delay_ms / 4))
    }
}

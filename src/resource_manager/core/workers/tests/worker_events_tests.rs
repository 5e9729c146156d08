//! Workers of earlier terms of which only the driver reports anything.

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_ha::clock::Uptime;
use tanist_proto::id::ResourceId;
use tanist_proto::resources::{Resources, WorkerResourceSpec};

use crate::core::workers::planning::Shortages;
use crate::core::workers::{Admission, Effect, Starter, Workers};
use crate::workers::{Found, WorkerRecord, WorkersOptions};

const SLOTS: u32 = 2;

/// The next leader, at another place, where a worker was being released; and that worker.
fn successor() -> (Workers, ResourceId) {
    let spec = WorkerResourceSpec::new(Resources::ZERO, SLOTS);
    let starter = Starter {
        driver: "test",
        place: "there".to_owned(),
        epoch: 2,
        seed: 1,
    };
    let record = WorkerRecord {
        driver: "test".to_owned(),
        place: "here".to_owned(),
        epoch: 1,
        requested_at_ms: 1,
        slots: SLOTS,
        resources: None,
        releasing: true,
    };
    let worker: ResourceId = "worker-1-a-0".parse().expect("an id");
    let recorded = vec![(worker.clone(), record)];
    let mut workers = Workers::new(WorkersOptions::of(spec), starter, recorded);
    let asked = workers.take_effects();
    assert!(matches!(asked.as_slice(), [Effect::Recover(_)]));
    (workers, worker)
}

fn timeout(workers: &Workers) -> Duration {
    workers.options.registration_timeout
}

#[test]
fn one_that_was_being_released_and_is_heard_of_no_more_is_given_up() {
    for found in [Some(Found::Unseen), Some(Found::Running), None] {
        let (mut workers, worker) = successor();
        let now = Uptime::START;
        let said = found.map(|found| (worker.clone(), found));
        workers.recovered(now, Ok(said.into_iter().collect()));
        workers.take_effects();
        let late = now + timeout(&workers);
        assert_eq!(workers.next_deadline(), Some(late), "{found:?}");
        workers.on_time(late - Duration::from_millis(1));
        assert_eq!(workers.take_effects(), [], "{found:?}");
        workers.on_time(late);
        let stopped = workers.take_effects();
        assert_eq!(stopped, [Effect::RemoveRecord(worker.clone())], "{found:?}");
        assert_eq!(workers.failures, 0, "nobody has failed to start it");
        workers.stopped(&worker);
        assert!(workers.record_of(&worker).is_none());
    }
}

#[test]
fn one_that_was_being_released_and_registers_leaves_in_its_own_time() {
    for is_early in [true, false] {
        let (mut workers, worker) = successor();
        let now = Uptime::START;
        let welcome = Admission::Welcome { is_releasing: true };
        if is_early {
            assert_eq!(workers.register(&worker, SLOTS), welcome);
        }
        let found = vec![(worker.clone(), Found::Unseen)];
        workers.recovered(now, Ok(found));
        if !is_early {
            assert_eq!(workers.register(&worker, SLOTS), welcome);
        }
        assert_eq!(workers.next_deadline(), None);
        workers.on_time(now + 2 * timeout(&workers));
        assert_eq!(workers.take_effects(), []);
        workers.lost(&worker);
        assert_eq!(workers.take_effects(), [Effect::RemoveRecord(worker)]);
    }
}

#[test]
fn one_that_was_being_released_and_has_not_registered_counts_and_is_not_expected() {
    let (mut workers, worker) = successor();
    let now = Uptime::START;
    workers.options.min_slots = SLOTS;
    workers.options.max_slots = SLOTS;
    workers.recovered(now, Ok(vec![(worker.clone(), Found::Unseen)]));
    let registered = BTreeMap::new();
    workers.review(now, Shortages::default(), &registered);
    assert_eq!(workers.take_effects(), [], "there is no place for another");
    workers.on_time(now + timeout(&workers));
    workers.stopped(&worker);
    workers.take_effects();
    workers.review(now, Shortages::default(), &registered);
    let started = workers.take_effects();
    assert!(
        matches!(started.as_slice(), [Effect::Start(_)]),
        "{started:?}"
    );
}

#[test]
fn one_that_was_being_released_elsewhere_is_given_up_when_the_cluster_ends() {
    let (mut workers, worker) = successor();
    let now = Uptime::START;
    workers.recovered(now, Ok(vec![(worker.clone(), Found::Unseen)]));
    workers.dismiss();
    workers.review(now, Shortages::default(), &BTreeMap::new());
    assert_eq!(workers.take_effects(), [Effect::RemoveRecord(worker)]);
}

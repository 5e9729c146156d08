//! The registered TaskManagers alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::recovered::{id, location};
use crate::core::execution_graph::execution::Cancellation;
use crate::core::task_managers::TaskManagers;
use crate::core::{Connection, Refusal, Registration};

fn connection(number: u64) -> Connection {
    Connection {
        task_manager: id("tm0"),
        registration: Registration::new(number),
    }
}

fn register(known: &mut TaskManagers, number: u64) -> Result<(), Refusal> {
    known.admit(&connection(number))?;
    known.register(&connection(number), Arc::new(location("tm0", "1")));
    Ok(())
}

#[test]
fn only_the_youngest_registration_counts_also_after_it_is_removed() {
    let mut known = TaskManagers::default();
    register(&mut known, 2).expect("the first one");
    assert!(register(&mut known, 2).is_err() && register(&mut known, 1).is_err());
    let version = known.version();
    register(&mut known, 3).expect("a younger one");
    assert_ne!(known.version(), version);
    assert!(known.check(&connection(2)).is_err() && known.check(&connection(3)).is_ok());
    assert!(known.remove(&id("tm0")).is_some());
    assert!(matches!(
        known.check(&connection(3)),
        Err(Refusal::NotRegistered(_))
    ));
    assert!(register(&mut known, 3).is_err(), "it was seen");
}

#[test]
fn an_end_is_acknowledged_once_in_each_registration() {
    let mut known = TaskManagers::default();
    assert!(!known.report_end(&id("tm0"), (0, 1)), "not registered");
    register(&mut known, 1).expect("the first one");
    assert!(known.report_end(&id("tm0"), (0, 1)) && known.report_end(&id("tm0"), (1, 1)));
    let acknowledged = known.acknowledge(None, |(task, _)| task == 0);
    assert_eq!(acknowledged[&connection(1)], [(0, 1)]);
    let acknowledged = known.acknowledge(None, |(task, _)| task == 0);
    assert!(acknowledged.is_empty());
    let among = [(id("tm0"), 1, 1)].into_iter().collect();
    let acknowledged = known.acknowledge(Some(among), |_| true);
    assert_eq!(acknowledged[&connection(1)], [(1, 1)]);
}

#[test]
fn the_stop_is_sent_once_in_each_registration() {
    let mut known = TaskManagers::default();
    register(&mut known, 1).expect("the first one");
    assert_eq!(known.begin_stop(), [connection(1)]);
    assert_eq!(known.begin_stop(), []);
    register(&mut known, 2).expect("a younger one");
    assert_eq!(known.begin_stop(), [connection(2)]);
}

#[test]
fn a_release_without_an_answer_is_sent_again_when_the_partition_is_reported() {
    let mut known = TaskManagers::default();
    register(&mut known, 1).expect("the first one");
    let (tm, partition) = (id("tm0"), (0, 1));
    assert!(known.add_partition(&tm, partition));
    let release = |known: &mut TaskManagers| known.release_partitions(None, |_| false).len();
    assert_eq!((release(&mut known), release(&mut known)), (1, 0));
    let reported = BTreeSet::from([partition]);
    known.report_partitions(&tm, &reported, false);
    assert_eq!(release(&mut known), 0, "its answer is awaited");
    known.note_cancelled(&tm, 0, 1, Cancellation::Failed);
    known.report_partitions(&tm, &reported, false);
    assert_eq!(release(&mut known), 1);
}

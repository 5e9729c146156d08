//! The rules of the slot table, each by itself.

use std::time::Duration;

use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, JobId};
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources, WorkerResourceSpec};

use crate::core::slot_table::*;

fn holder(job: u128, allocation: u128) -> SlotHolder {
    SlotHolder {
        job: JobId::from_bits(job),
        allocation: AllocationId::from_bits(allocation),
    }
}

const DEFAULT: ResourceProfile = ResourceProfile::Unknown;

fn resources(cpu: u32, task_memory: u64) -> Resources {
    Resources {
        cpu: CpuCores::whole(cpu),
        task_memory,
        ..Resources::ZERO
    }
}

fn profile(cpu: u32, task_memory: u64) -> ResourceProfile {
    resources(cpu, task_memory).into()
}

fn table() -> SlotTable {
    SlotTable::new(&WorkerResourceSpec::new(resources(2, 200), 2))
}

#[test]
fn a_repeated_request_is_granted_and_another_one_learns_who_holds_the_slot() {
    let mut table = table();
    let answer = table.request(0, holder(1, 1), &DEFAULT);
    assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
    let answer = table.request(0, holder(1, 1), &DEFAULT);
    assert_eq!(answer, RequestAnswer::Allocated { is_new: false });
    assert_eq!(
        table.request(0, holder(2, 2), &DEFAULT),
        RequestAnswer::Occupied(holder(1, 1))
    );
    assert!(matches!(
        table.request(1, holder(1, 1), &DEFAULT),
        RequestAnswer::Refused(_)
    ));
    assert!(matches!(
        table.request(2, holder(1, 3), &DEFAULT),
        RequestAnswer::Refused(_)
    ));
}

#[test]
fn what_a_slot_takes_is_reserved_from_the_total_until_nothing_runs_in_it() {
    let mut table = table();
    let large = profile(1, 150);
    let answer = table.request(0, holder(1, 1), &large);
    assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
    let offer = table.offer(holder(1, 1)).expect("it is held");
    assert_eq!(ResourceProfile::from_message(offer.profile.as_ref()), large);
    for (allocation, wanted) in [(2, &DEFAULT), (9, &large)] {
        let answer = table.request(1, holder(2, allocation), wanted);
        let RequestAnswer::Refused(reason) = answer else {
            panic!("it does not fit: {answer:?}");
        };
        assert!(
            reason.contains("50 bytes") && reason.contains("200 bytes"),
            "{reason}"
        );
    }
    let answer = table.request(1, holder(2, 3), &profile(1, 50));
    assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
    table.release(holder(1, 1).allocation);
    table.free_released(|_| true);
    let refused = table.request(0, holder(2, 4), &DEFAULT);
    assert_eq!(refused, RequestAnswer::Occupied(holder(1, 1)));
    table.free_released(|_| false);
    let answer = table.request(0, holder(2, 4), &large);
    assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
    table.release(holder(2, 4).allocation);
    table.free_released(|_| false);
    let late = table.request(1, holder(2, 9), &large);
    assert!(
        matches!(late, RequestAnswer::Refused(_)),
        "it was refused: {late:?}"
    );
}

#[test]
fn a_dynamic_slot_exists_only_while_it_is_held() {
    let mut table = table();
    let answer = table.request(7, holder(1, 1), &profile(1, 120));
    assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
    let again = table.request(7, holder(1, 1), &profile(1, 120));
    assert_eq!(again, RequestAnswer::Allocated { is_new: false });
    let other = table.request(7, holder(2, 2), &profile(1, 10));
    assert_eq!(other, RequestAnswer::Occupied(holder(1, 1)));
    let numbers = |table: &SlotTable| -> Vec<u32> {
        table
            .report(|_| 0)
            .slots
            .iter()
            .map(|slot| slot.slot)
            .collect()
    };
    assert_eq!(numbers(&table), [0, 1, 7]);
    let report = table.report(|_| 0);
    let reported = ResourceProfile::from_message(report.slots[2].profile.as_ref());
    assert_eq!(
        reported,
        profile(1, 120),
        "so that the next leader knows it"
    );
    // Both default slots are free, and nothing is left for either.
    let refused = table.request(0, holder(2, 3), &DEFAULT);
    assert!(matches!(refused, RequestAnswer::Refused(_)), "{refused:?}");
    let without_profile = table.request(8, holder(2, 4), &DEFAULT);
    assert!(matches!(without_profile, RequestAnswer::Refused(_)));
    table.release(holder(1, 1).allocation);
    assert_eq!(table.free_released(|_| false), [(7, holder(1, 1))]);
    assert_eq!(numbers(&table), [0, 1]);
    assert_eq!(table.statuses([7])[0].allocation, None);
    let back = table.request(7, holder(1, 1), &profile(1, 120));
    assert!(matches!(back, RequestAnswer::Refused(_)), "it was freed");
    let answer = table.request(0, holder(2, 5), &DEFAULT);
    assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
}

#[test]
fn a_repeated_request_reserves_nothing_more() {
    let mut table = table();
    for _ in 0..5 {
        table.request(0, holder(1, 1), &DEFAULT);
    }
    let answer = table.request(1, holder(1, 2), &DEFAULT);
    assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
}

#[test]
fn a_released_slot_is_free_when_nothing_runs_in_it_and_its_allocation_never_comes_back() {
    let mut table = table();
    table.request(0, holder(1, 1), &DEFAULT);
    table.activate(holder(1, 1).allocation);
    assert!(table.release(holder(1, 1).allocation));
    assert!(table.free_released(|_| true).is_empty());
    assert_eq!(
        table.request(0, holder(2, 2), &DEFAULT),
        RequestAnswer::Occupied(holder(1, 1))
    );
    assert_eq!(table.free_released(|_| false), [(0, holder(1, 1))]);
    assert!(matches!(
        table.request(0, holder(1, 1), &DEFAULT),
        RequestAnswer::Refused(_)
    ));
    let answer = table.request(0, holder(2, 2), &DEFAULT);
    assert_eq!(answer, RequestAnswer::Allocated { is_new: true });
}

#[tokio::test(start_paused = true)]
async fn an_allocated_slot_expires_only_while_its_time_runs() {
    let mut table = table();
    let now = Uptime::START;
    let later = now + Duration::from_secs(60);
    table.request(0, holder(1, 1), &DEFAULT);
    assert_eq!(table.expired(later), []);
    let timeout = Duration::from_secs(10);
    table.review_timeouts(now, timeout, |job| job == JobId::from_bits(1));
    assert_eq!(table.expired(later), [holder(1, 1)]);
    table.review_timeouts(later, timeout, |_| true);
    assert_eq!(table.expired(later), [holder(1, 1)], "it runs on");
    table.review_timeouts(later, timeout, |_| false);
    assert_eq!(table.expired(later), []);
    table.review_timeouts(now, timeout, |_| true);
    table.activate(holder(1, 1).allocation);
    assert_eq!(table.expired(later), []);
}

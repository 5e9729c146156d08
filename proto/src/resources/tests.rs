//! Tests of resources, profiles and worker specifications.

use super::*;
use crate::v1 as pb;

const MB: u64 = 1 << 20;

fn cpu(text: &str) -> CpuCores {
    text.parse().expect("a number of cores")
}

fn resources(cores: &str, task: u64, gpus: u64) -> Resources {
    Resources {
        cpu: cpu(cores),
        task_memory: task * MB,
        network_memory: 2 * MB,
        managed_memory: 3 * MB,
        ..Resources::ZERO
    }
    .with_extended("gpu", gpus)
}

fn profile(cores: &str, task: u64, gpus: u64) -> ResourceProfile {
    resources(cores, task, gpus).into()
}

#[test]
fn cores_round_trip_through_their_text_and_are_exact() {
    for text in ["0", "1", "0.5", "1.333333", "12.000001"] {
        assert_eq!(cpu(text).to_string(), text);
        assert_eq!(CpuCores::from_cores(cpu(text).cores()), cpu(text));
    }
    assert_eq!(cpu(".5"), cpu("0.50"));
    for text in [
        "",
        ".",
        "-1",
        "1e3",
        "0.0000001",
        "1.2.3",
        "NaN",
        "99999999999999999999",
    ] {
        assert!(text.parse::<CpuCores>().is_err(), "{text:?}");
    }
    for cores in [-1.0, f64::NAN, f64::NEG_INFINITY] {
        assert_eq!(CpuCores::from_cores(cores), CpuCores::ZERO);
    }
    let tenth = cpu("0.1").millionths();
    assert_eq!(CpuCores::from_millionths(3 * tenth), cpu("0.3"));
}

#[test]
fn what_is_added_and_taken_away_again_leaves_what_was() {
    let (small, large) = (resources("0.1", 10, 1), resources("2.7", 100, 0));
    let sum = large.plus(&small);
    assert_eq!(
        sum,
        resources("2.8", 110, 1).plus(&Resources {
            network_memory: 2 * MB,
            managed_memory: 3 * MB,
            ..Resources::ZERO
        })
    );
    assert_eq!(sum.minus(&small), Some(large.clone()));
    assert_eq!(large.minus(&small), None, "it has no gpu");
    assert_eq!(large.saturating_minus(&small).extended("gpu"), 0);
    assert_eq!(small.times(3).divided_by(3), small);
    assert_eq!(small.times(0), Resources::ZERO);
}

#[test]
fn equal_parts_fit_as_often_as_there_are_and_what_is_rounded_off_is_nobodys() {
    for count in 1..=64 {
        let total = resources("7", 1_003, 5);
        let part = total.divided_by(count);
        assert!(total.covers(&part.times(count)), "{count}");
        assert!(total.holds(&part).is_some_and(|fits| fits >= count.into()));
    }
    assert_eq!(resources("7", 1, 5).divided_by(6).extended("gpu"), 0);
    assert_eq!(resources("7", 1, 5).holds(&Resources::ZERO), None);
    assert_eq!(
        resources("7", 1, 5).holds(&resources("1", 1, 2)),
        Some(1),
        "by network memory"
    );
}

#[test]
fn a_slot_serves_what_is_exactly_it_and_what_is_unknown() {
    let (any, unknown) = (ResourceProfile::Any, ResourceProfile::Unknown);
    let (small, large) = (profile("1", 10, 0), profile("2", 20, 1));
    assert!(small.is_matching(&small) && small.is_matching(&unknown));
    assert!(!large.is_matching(&small) && !small.is_matching(&large));
    assert!(any.is_matching(&large) && any.is_matching(&unknown));
    assert!(!small.is_matching(&any));
}

#[test]
fn one_profile_has_no_less_than_another_only_by_every_field() {
    let (any, unknown) = (ResourceProfile::Any, ResourceProfile::Unknown);
    let large = profile("2", 20, 1);
    for smaller in [
        profile("1", 20, 1),
        profile("2", 10, 1),
        profile("2", 20, 0),
        large.clone(),
    ] {
        assert!(large.all_fields_no_less_than(&smaller), "{smaller}");
        assert_eq!(smaller.all_fields_no_less_than(&large), smaller == large);
    }
    assert!(any.all_fields_no_less_than(&large) && any.all_fields_no_less_than(&any));
    assert!(!large.all_fields_no_less_than(&any));
    assert!(!unknown.all_fields_no_less_than(&large) && !large.all_fields_no_less_than(&unknown));
}

#[test]
fn any_and_unknown_stay_what_they_are_in_sums() {
    let (any, unknown) = (ResourceProfile::Any, ResourceProfile::Unknown);
    let one = profile("1", 10, 1);
    assert_eq!(one.merge(&any), any);
    assert_eq!(any.merge(&unknown), any);
    assert_eq!(one.merge(&unknown), unknown);
    assert_eq!(unknown.multiply(3), unknown);
    assert_eq!(one.merge(&one), one.multiply(2));
    assert_eq!(one.multiply(2).subtract(&one), Ok(one.clone()));
    assert_eq!(any.subtract(&one), Ok(any.clone()));
    assert_eq!(unknown.subtract(&one), Ok(unknown));
    let error = one.subtract(&one.multiply(2)).expect_err("too much");
    assert_eq!(
        error.to_string(),
        "2 cores, 20 mb of task memory, 4 mb of network memory, 6 mb of managed memory, 2 gpu can't be taken from 1 cores, \
         10 mb of task memory, 2 mb of network memory, 3 mb of managed memory, 1 gpu"
    );
}

#[test]
fn profiles_round_trip_through_messages() {
    for profile in [
        ResourceProfile::Unknown,
        ResourceProfile::Any,
        profile("0.333333", 7, 2),
        Resources::ZERO.into(),
    ] {
        let message = profile.to_message();
        assert_eq!(ResourceProfile::from_message(message.as_ref()), profile);
    }
}

#[test]
fn memory_of_an_older_program_is_for_tasks() {
    let message = pb::ResourceProfile {
        cpu_cores: 1.5,
        memory_bytes: 7 * MB,
        ..pb::ResourceProfile::default()
    };
    let resources = Resources::from(&message);
    assert_eq!((resources.cpu, resources.task_memory), (cpu("1.5"), 7 * MB));
    assert_eq!(resources.total_memory(), 7 * MB);
}

#[test]
fn a_worker_serves_what_is_not_more_than_all_it_has() {
    let worker = WorkerResourceSpec::new(resources("4", 40, 2), 4);
    assert_eq!(worker.default_slot().cpu, cpu("1"));
    assert_eq!(worker.default_slot().extended("gpu"), 0);
    assert!(worker.can_serve(&ResourceProfile::Unknown));
    assert!(worker.can_serve(&profile("4", 40, 2)));
    assert!(!worker.can_serve(&profile("4.000001", 40, 2)));
    assert!(!worker.can_serve(&profile("1", 1, 3)));
    assert_eq!(WorkerResourceSpec::new(Resources::ZERO, 0).slots(), 1);
}

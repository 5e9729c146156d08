//! Tests of the memory model alone: which parts follow from which options.

use proptest::prelude::*;
use tanist_proto::resources::{Resources, WorkerResourceSpec};

use super::memory::*;

const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;

/// The default values of the options.
fn defaults() -> MemoryOptions {
    MemoryOptions {
        process: None,
        flink: None,
        framework: 128 * MB,
        task: None,
        network: Share {
            fraction: 0.1,
            min: 64 * MB,
            max: u64::MAX,
        },
        managed: None,
        managed_fraction: 0.4,
        overhead: Share {
            fraction: 0.1,
            min: 192 * MB,
            max: GB,
        },
        is_configured: false,
    }
}

fn configured() -> MemoryOptions {
    MemoryOptions {
        is_configured: true,
        ..defaults()
    }
}

#[test]
fn without_configuration_the_system_decides_however_little_that_is() {
    let memory = defaults().resolve(8 * GB).expect("enough");
    assert_eq!(memory.process(), 8 * GB);
    assert_eq!(memory.overhead, 8 * GB / 10);
    assert_eq!(memory.network, (8 * GB - memory.overhead) / 10);
    for bytes in [0, 1, 100 * MB, 300 * MB] {
        let memory = defaults().resolve(bytes).expect("nothing is too little");
        assert_eq!(memory.process(), bytes);
    }
    let memory = defaults().resolve(8 * GB).expect("enough");
    assert_eq!(memory.managed, memory.flink() * 2 / 5);
}

#[test]
fn one_total_is_divided_and_the_task_memory_is_the_rest() {
    let of_process = MemoryOptions {
        process: Some(4 * GB),
        managed_fraction: 0.25,
        ..configured()
    };
    let memory = of_process.resolve(0).expect("enough");
    let flink = memory.flink();
    assert_eq!((memory.process(), memory.overhead), (4 * GB, 4 * GB / 10));
    assert_eq!((memory.managed, memory.framework), (flink / 4, 128 * MB));
    let of_flink = MemoryOptions {
        flink: Some(2 * GB),
        managed: Some(GB),
        ..configured()
    };
    let memory = of_flink.resolve(0).expect("enough");
    assert_eq!((memory.flink(), memory.managed), (2 * GB, GB));
    assert_eq!(memory.overhead, 2 * GB / 9, "a tenth of all");
    let both = MemoryOptions {
        process: Some(3 * GB),
        ..of_flink.clone()
    };
    assert_eq!(both.resolve(0).expect("1 gb is allowed").overhead, GB);
}

#[test]
fn the_parts_give_the_totals() {
    let parts = MemoryOptions {
        task: Some(GB),
        managed: Some(GB),
        ..configured()
    };
    let memory = parts.resolve(0).expect("nothing contradicts");
    assert_eq!((memory.task, memory.managed), (GB, GB));
    assert_eq!(memory.network, (2 * GB + 128 * MB) / 9);
    let task_alone = MemoryOptions {
        managed: None,
        ..parts.clone()
    };
    let memory = task_alone.resolve(0).expect("the fractions say the rest");
    let near =
        |bytes: u64, fraction: f64| bytes.abs_diff((memory.flink() as f64 * fraction) as u64) <= 2;
    assert_eq!(memory.task, GB);
    assert!(
        near(memory.managed, 0.4) && near(memory.network, 0.1),
        "{memory:?}"
    );
    let bounded = MemoryOptions {
        network: Share {
            max: 64 * MB,
            ..task_alone.network
        },
        ..task_alone
    };
    let memory = bounded.resolve(0).expect("the network is bounded");
    assert_eq!(memory.network, 64 * MB);
    assert!(
        memory.managed.abs_diff(memory.flink() * 2 / 5) <= 2,
        "{memory:?}"
    );
    let with_total = MemoryOptions {
        flink: Some(3 * GB),
        ..parts
    };
    let memory = with_total.resolve(0).expect("the network gets the rest");
    assert_eq!(memory.network, GB - 128 * MB);
}

#[test]
fn contradictions_show_the_sum() {
    let too_much = MemoryOptions {
        flink: Some(2 * GB),
        task: Some(GB),
        managed: Some(GB),
        ..configured()
    };
    let message = too_much.resolve(0).expect_err("too much").to_string();
    for part in [
        "128 mb of framework",
        "1 gb of task",
        "at least 64 mb of network",
        "1 gb of managed",
        "the 2 gb",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let no_room = MemoryOptions {
        process: Some(2 * GB),
        flink: Some(2 * GB),
        ..configured()
    };
    let message = no_room.resolve(0).expect_err("no overhead").to_string();
    assert!(
        message.contains("leaves 0 b for the overhead, not 192 mb to 1 gb"),
        "{message}"
    );
    let open = MemoryOptions {
        task: Some(GB),
        managed_fraction: 0.95,
        ..configured()
    };
    let message = open.resolve(0).expect_err("of what?").to_string();
    assert!(
        message.contains("are 1.05 of a total") && message.contains("managed.size"),
        "{message}"
    );
    let by_default = MemoryOptions {
        flink: Some(2 * GB),
        task: Some(GB + GB / 2),
        ..configured()
    };
    let message = by_default.resolve(0).expect_err("too much").to_string();
    assert!(
        message.contains("`taskmanager.memory.managed.fraction` is 0.4"),
        "{message}"
    );
    let small = MemoryOptions {
        process: Some(100 * MB),
        ..configured()
    };
    let message = small.resolve(0).expect_err("too little").to_string();
    assert!(
        message.contains("less than the overhead of 192 mb"),
        "{message}"
    );
}

fn exact(memory: &TaskManagerMemory) -> MemoryOptions {
    let only = |bytes| Share {
        fraction: 0.1,
        min: bytes,
        max: bytes,
    };
    MemoryOptions {
        framework: memory.framework,
        task: Some(memory.task),
        network: only(memory.network),
        managed: Some(memory.managed),
        overhead: only(memory.overhead),
        ..configured()
    }
}

proptest! {
    #[test]
    fn what_is_divided_adds_up_and_a_worker_that_is_started_with_it_has_the_same(
        process in 700 * MB..64 * GB,
        managed in proptest::option::of(0..100 * MB),
        fraction in 0.0..0.5,
    ) {
        let options = MemoryOptions {
            process: Some(process),
            managed,
            managed_fraction: fraction,
            ..configured()
        };
        if let Ok(memory) = options.resolve(0) {
            prop_assert_eq!(memory.process(), process);
            prop_assert_eq!(exact(&memory).resolve(0), Ok(memory));
            let worker = WorkerResourceSpec::new(
                Resources {
                    task_memory: memory.task,
                    network_memory: memory.network,
                    managed_memory: memory.managed,
                    ..Resources::ZERO
                },
                1,
            );
            let started = options.for_worker(&worker);
            prop_assert_eq!(started.flink(), memory.flink());
            prop_assert!(started.process().abs_diff(process) <= 8, "{started:?}");
        }
    }
}

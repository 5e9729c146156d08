//! The resources of a TaskManager, from its options.

use super::*;

#[test]
fn what_a_task_manager_has_follows_from_its_options() {
    let configuration = Configuration::load(with(&[
        ("taskmanager.cpu.cores", "3.5"),
        ("taskmanager.numberOfTaskSlots", "2"),
        ("taskmanager.memory.flink.size", "2 gb"),
        ("taskmanager.memory.managed.size", "512 mb"),
        ("external-resources", "gpu:2, fpga:1:FPGAS"),
    ]));
    let configuration = configuration.expect("valid");
    let worker = configuration
        .taskmanager()
        .worker(CpuCores::whole(64), u64::MAX);
    let worker = worker.expect("it adds up");
    let slot = worker.default_slot();
    assert_eq!(slot.cpu.to_string(), "1.75");
    assert_eq!(slot.managed_memory, 256 << 20);
    assert_eq!((slot.extended("gpu"), slot.extended("fpga")), (1, 0));
    let counted = worker.total().total_memory();
    assert_eq!(counted, (2 << 30) - (128 << 20), "all but the framework's");
}

#[test]
fn a_task_manager_that_is_started_for_a_worker_has_what_that_is_to_have() {
    let configuration = Configuration::defaults();
    let memory = &configuration.taskmanager().memory;
    let wanted = memory.resolve(7 << 30).expect("enough");
    let settings = wanted.settings();
    let pairs: Vec<(&str, &str)> = settings
        .iter()
        .map(|(key, it)| (*key, it.as_str()))
        .collect();
    let started = Configuration::load(with(&pairs)).expect("valid");
    let memory = &started.taskmanager().memory;
    assert_eq!(memory.resolve(1 << 30), Ok(wanted));
}

#[test]
fn memory_that_does_not_add_up_is_refused_with_the_sum_and_who_said_so() {
    let message = refusal(with(&[
        ("taskmanager.memory.flink.size", "1 gb"),
        ("taskmanager.memory.task.size", "1 gb"),
    ]));
    for part in [
        "`taskmanager.memory.flink.size` is `1 gb` (-D)",
        "128 mb of framework + 1 gb of task",
        "can't be the 1 gb that are there",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let message = refusal(with(&[("taskmanager.memory.network.max", "1 mb")]));
    assert!(
        message.contains("write at least `taskmanager.memory.network.max: 64 mb`"),
        "{message}"
    );
    let message = refusal(with(&[("taskmanager.memory.network.fraction", "1")]));
    assert!(message.contains("less than 1"), "{message}");
}

#[test]
fn keys_of_a_jvm_are_answered_with_what_to_write() {
    for (key, instead) in [
        (
            "taskmanager.memory.task.heap.size",
            "taskmanager.memory.task.size",
        ),
        ("taskmanager.memory.jvm-metaspace.size", "there is no JVM"),
        ("env.java.opts", "there is no JVM"),
        ("jobmanager.heap.size", "there is no heap"),
        (
            "taskmanager.memory.jvm-overhead.max",
            "taskmanager.memory.overhead.max",
        ),
        (
            "external-resource.gpu.amount",
            "external-resources: NAME:AMOUNT",
        ),
    ] {
        let message = refusal(with(&[(key, "1 gb")]));
        assert!(message.contains(instead), "{key}: {message}");
    }
}

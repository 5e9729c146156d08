//! Options of checkpoints.

use std::time::Duration;

use super::*;

fn checkpoints(pairs: &[(&str, &str)]) -> CheckpointOptions {
    let configuration = Configuration::load(with(pairs)).expect("valid");
    configuration.checkpoints().clone()
}

#[test]
fn none_are_taken_unless_an_interval_is_set() {
    let defaults = checkpoints(&[]);
    assert_eq!(defaults.interval, None);
    assert_eq!(defaults.min_pause, Duration::ZERO);
    assert_eq!(defaults.timeout, Duration::from_secs(600));
    assert_eq!(defaults.tolerable_failures, None);
    assert_eq!(defaults.retained.get(), 1);
    let retention = CheckpointRetention::DeleteOnCancellation;
    assert_eq!(defaults.retention, retention);
    assert_eq!(defaults.savepoint_dir, None);
    let off = checkpoints(&[("execution.checkpointing.interval", "0")]);
    assert_eq!(off.interval, None);
}

#[test]
fn all_options_are_read() {
    let set = checkpoints(&[
        ("execution.checkpointing.interval", "10 ms"),
        ("execution.checkpointing.min-pause", "5 ms"),
        ("execution.checkpointing.timeout", "1 min"),
        ("execution.checkpointing.tolerable-failed-checkpoints", "0"),
        ("execution.checkpointing.num-retained", "3"),
        ("execution.checkpointing.mode", "exactly-once"),
        ("execution.checkpointing.max-concurrent-checkpoints", "1"),
        (
            "execution.checkpointing.externalized-checkpoint-retention",
            "RETAIN_ON_CANCELLATION",
        ),
        ("execution.checkpointing.savepoint-dir", "s3://bucket/sp/"),
    ]);
    let retention = CheckpointRetention::RetainOnCancellation;
    assert_eq!(set.retention, retention);
    let directory = set.savepoint_dir.map(|it| it.to_string());
    assert_eq!(directory.as_deref(), Some("s3://bucket/sp"));
    assert_eq!(set.interval, Some(Duration::from_millis(10)));
    assert_eq!(set.min_pause, Duration::from_millis(5));
    assert_eq!(set.timeout, Duration::from_secs(60));
    assert_eq!(set.tolerable_failures, Some(0));
    assert_eq!(set.retained.get(), 3);
    let any_number = checkpoints(&[("execution.checkpointing.tolerable-failed-checkpoints", "-1")]);
    assert_eq!(any_number.tolerable_failures, None);
}

#[test]
fn what_is_not_supported_is_refused_in_words() {
    let cases = [
        (
            "interval",
            "9 ms",
            "write at least `10 ms`, or 0 for no checkpoints",
        ),
        ("interval", "often", "is no duration"),
        ("timeout", "0", "must be longer than zero"),
        ("num-retained", "0", "is no whole number from 1"),
        (
            "tolerable-failed-checkpoints",
            "-2",
            "is neither a whole number from 0 nor -1 (which tolerates any number)",
        ),
        (
            "mode",
            "AT_LEAST_ONCE",
            "is not supported: barriers are always aligned, so that no record counts twice; write `EXACTLY_ONCE`",
        ),
        ("mode", "sometimes", "is no mode: write `EXACTLY_ONCE`"),
        (
            "max-concurrent-checkpoints",
            "2",
            "is not supported: a region has one checkpoint in progress at most; write 1",
        ),
        (
            "incremental",
            "true",
            "checkpoints always are incremental: remove it",
        ),
        (
            "unaligned",
            "true",
            "barriers are always aligned: remove it",
        ),
        (
            "externalized-checkpoint-retention",
            "NO_EXTERNALIZED_CHECKPOINTS",
            "is not supported: the newest checkpoint of a job that FAILED is always kept; write `DELETE_ON_CANCELLATION`",
        ),
        (
            "externalized-checkpoint-retention",
            "never",
            "is neither `DELETE_ON_CANCELLATION` nor `RETAIN_ON_CANCELLATION`",
        ),
        (
            "savepoint-dir",
            "savepoints",
            "is no absolute path: processes start in different directories",
        ),
        ("savepoint-dir", "", "is empty"),
        ("savepoint-dir", "hdfs://a/b", "has an unknown scheme"),
    ];
    for (name, value, words) in cases {
        let key = format!("execution.checkpointing.{name}");
        let message = refusal(with(&[(&key, value)]));
        assert!(message.contains(&key), "{message}");
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn checkpoints_are_with_other_objects_unless_a_place_is_named() {
    const ETCD: (&str, &str) = ("high-availability.type", "etcd");
    const ENDPOINTS: (&str, &str) = ("high-availability.etcd.endpoints", "localhost:2379");
    const DIR: &str = "execution.checkpointing.dir";
    let storage = ("high-availability.storageDir", "/mnt/ha");
    let places = |pairs: &[(&str, &str)]| {
        let configuration = Configuration::load(with(pairs)).expect("valid");
        configuration.ha().blob_places().expect("there are some")
    };
    let same = places(&[ETCD, ENDPOINTS, storage, (DIR, "/mnt/ha")]);
    assert_eq!(same.checkpoints, None);
    let bucket = places(&[ETCD, ENDPOINTS, storage, (DIR, "s3://bucket/state")]);
    let bucket = bucket.checkpoints.expect("a place");
    assert_eq!((&*bucket.url, bucket.shared), ("s3://bucket/state", true));
    // All hosts that share the one directory share the other one.
    for shared in [false, true] {
        let declared = (
            "high-availability.storage-shared",
            if shared { "true" } else { "false" },
        );
        let another = places(&[ETCD, ENDPOINTS, storage, declared, (DIR, "/mnt/state")]);
        let another = another.checkpoints.expect("a place");
        assert_eq!((&*another.url, another.shared), ("/mnt/state", shared));
    }
    let message = refusal(with(&[ETCD, ENDPOINTS, (DIR, "/mnt/state")]));
    assert!(message.contains(DIR), "{message}");
    assert!(
        message.contains("high-availability.storageDir"),
        "{message}"
    );
}

fn state_recovery(pairs: &[(&str, &str)]) -> StateRecoveryOptions {
    let configuration = Configuration::load(with(pairs)).expect("valid");
    configuration.client().state_recovery.clone()
}

#[test]
fn jobs_begin_from_the_start_unless_a_savepoint_or_a_job_is_named() {
    assert_eq!(state_recovery(&[]), StateRecoveryOptions::default());
    let id = "0123456789abcdef0123456789abcdef";
    let cases = [
        (
            "/savepoints/savepoint-012345-ab",
            "/savepoints/savepoint-012345-ab",
        ),
        ("file:/savepoints/a", "/savepoints/a"),
        ("s3://bucket/a", "s3://bucket/a"),
        (&format!("job:{id}"), &format!("job:{id}")),
    ];
    for (text, shown) in cases {
        let set = state_recovery(&[
            ("execution.state-recovery.path", text),
            ("execution.state-recovery.ignore-unclaimed-state", "true"),
            ("execution.state-recovery.claim-mode", "NO_CLAIM"),
        ]);
        assert_eq!(set.path.map(|it| it.to_string()).as_deref(), Some(shown));
        assert!(set.ignore_unclaimed_state);
        assert_eq!(set.claim_mode, ClaimMode::NoClaim);
    }
    for (text, mode) in [
        ("claim", ClaimMode::Claim),
        ("no-claim", ClaimMode::NoClaim),
    ] {
        let set = state_recovery(&[("execution.state-recovery.claim-mode", text)]);
        assert_eq!(set.claim_mode, mode);
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
}

#[test]
fn what_a_job_can_not_begin_from_is_refused_in_words() {
    let cases = [
        (
            "claim-mode",
            "legacy",
            "is not supported: nothing but the job that it belongs to removes a checkpoint",
        ),
        (
            "claim-mode",
            "some",
            "is no claim mode: write `NO_CLAIM` or `CLAIM`",
        ),
        (
            "path",
            "job:1",
            "names no job: write `job:` and its id, 32 hex digits",
        ),
        (
            "path",
            "savepoint-1",
            "is no absolute path: processes start in different directories",
        ),
    ];
    for (name, value, words) in cases {
        let key = format!("execution.state-recovery.{name}");
        let message = refusal(with(&[(&key, value)]));
        assert!(message.contains(&key), "{message}");
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn former_keys_of_flink_are_answered_with_the_present_ones() {
    let cases = [
        ("state.checkpoints.dir", "execution.checkpointing.dir"),
        (
            "state.savepoints.dir",
            "execution.checkpointing.savepoint-dir",
        ),
        ("execution.savepoint.path", "execution.state-recovery.path"),
        (
            "execution.savepoint.ignore-unclaimed-state",
            "execution.state-recovery.ignore-unclaimed-state",
        ),
        (
            "execution.savepoint-restore-mode",
            "execution.state-recovery.claim-mode",
        ),
    ];
    for (former, present) in cases {
        let message = refusal(with(&[(former, "/a")]));
        assert!(
            message.ends_with(&format!("write `{present}`")),
            "{message}"
        );
        assert!(find(present).is_some(), "{present}");
    }
}

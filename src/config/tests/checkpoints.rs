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
    ]);
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
            "unaligned",
            "true",
            "barriers are always aligned: remove it",
        ),
    ];
    for (name, value, words) in cases {
        let key = format!("execution.checkpointing.{name}");
        let message = refusal(with(&[(&key, value)]));
        assert!(message.contains(&key), "{message}");
        assert!(message.contains(words), "{message}");
    }
}

//! Relations between options.

use std::time::Duration;

use super::*;

#[test]
fn related_options_must_fit_and_the_message_says_what_to_write() {
    let etcd = ("high-availability.type", "etcd");
    let endpoints = ("high-availability.etcd.endpoints", "a:1");
    let zookeeper = ("high-availability.type", "zookeeper");
    let quorum = ("high-availability.zookeeper.quorum", "a:1");
    let cases: &[(&[(&str, &str)], &str)] = &[
        (
            &[("heartbeat.interval", "60 s")],
            "write `heartbeat.timeout: 2 min` or more",
        ),
        (
            &[("jobstore.expiration-time", "5 min")],
            "`jobstore.expiration-time: 10 min`",
        ),
        (
            &[("client.timeout", "2 h")],
            "`jobstore.expiration-time: 20 h`",
        ),
        (
            &[("client.retry-period", "2 min")],
            "write at least `client.timeout: 2 min`",
        ),
        (
            &[("blob.orphan-grace", "1 s")],
            "`blob.orphan-grace: 10 min`",
        ),
        (&[etcd], "etcd-1:2379"),
        (&[zookeeper], "zk-1:2181"),
        (
            &[
                etcd,
                endpoints,
                ("high-availability.etcd.lease-ttl", "1500 ms"),
            ],
            "whole seconds",
        ),
        (
            &[
                etcd,
                endpoints,
                ("high-availability.etcd.request-timeout", "5 s"),
            ],
            "write `high-availability.etcd.request-timeout: 2500 ms` or less",
        ),
        (
            &[etcd, endpoints, ("high-availability.etcd.user", "x")],
            "set both or none",
        ),
        (
            &[
                zookeeper,
                quorum,
                (
                    "high-availability.zookeeper.client.connection-timeout",
                    "10 s",
                ),
            ],
            "connection-timeout: 5 s` or less",
        ),
        (
            &[
                etcd,
                endpoints,
                ("high-availability.storage-shared", "true"),
            ],
            "write the directory",
        ),
        (
            &[("high-availability.inline-threshold", "2 mb")],
            "`1 kb` to `512 kb`",
        ),
        (&[("rpc.max-message-size", "1 kb")], "`1 mb` to `1 gb`"),
        (
            &[("rpc.inline-deployment-threshold", "9 mb")],
            "at most half of `rpc.max-message-size`",
        ),
        (
            &[("rest.server.max-content-length", "2 gb")],
            "`1 kb` to `1 gb`",
        ),
        (
            &[("high-availability.store.max-graph-size", "65 mb")],
            "write at most `64 mb`",
        ),
        (
            &[("parallelism.default", "129")],
            "write `parallelism.default: 128` or less",
        ),
        (&[("pipeline.max-parallelism", "40000")], "at most 32768"),
        (
            &[("cluster.registration.initial-timeout", "1 min")],
            "max-timeout: 1 min`",
        ),
        (
            &[("restart-strategy.exponential-delay.jitter-factor", "1.5")],
            "write 0 to 1",
        ),
        (
            &[(
                "restart-strategy.exponential-delay.backoff-multiplier",
                "0.5",
            )],
            "write 1 or more",
        ),
        (
            &[(
                "restart-strategy.exponential-delay.initial-backoff",
                "2 min",
            )],
            "max-backoff: 2 min`",
        ),
        (&[("rpc.ask.timeout", "0")], "longer than zero"),
        (
            &[("resourcemanager.job.timeout", "50 s")],
            "write `resourcemanager.job.timeout: 100 s` or more",
        ),
        (
            &[("recovery.stall-timeout", "10 s")],
            "write `recovery.stall-timeout: 20 s` or more",
        ),
        (
            &[
                zookeeper,
                quorum,
                ("high-availability.zookeeper.client.session-timeout", "60 s"),
            ],
            "write `recovery.stall-timeout: 2 min` or more",
        ),
        (
            &[
                ("heartbeat.interval", "500 ms"),
                ("heartbeat.timeout", "1 s"),
            ],
            "before TaskManagers count as lost",
        ),
        (
            &[("high-availability.detector.hold-off-timeout", "5 min")],
            "tasks must outlast the wait",
        ),
        (
            &[
                zookeeper,
                quorum,
                ("high-availability.detector.hold-off-timeout", "1 s"),
                ("job-manager-failover-timeout", "10 s"),
            ],
            "tasks must outlast the lease",
        ),
        (
            &[("high-availability.transfer-timeout", "30 s")],
            "hands over before its process is ended",
        ),
        (
            &[
                ("taskmanager.isolation-timeout", "40 s"),
                ("taskmanager.isolation-cancellation-timeout", "6 s"),
            ],
            "tasks must have stopped before others start elsewhere",
        ),
        (
            &[
                ("heartbeat.timeout", "20 s"),
                ("taskmanager.isolation-timeout", "15 s"),
            ],
            "at most nine tenths of the last together, 18 s",
        ),
        (
            &[("taskmanager.isolation-timeout", "500 ms")],
            "write at least `1 s`",
        ),
        (
            &[("jobmanager.rpc.address", "0.0.0.0")],
            "write this host's name",
        ),
    ];
    for (pairs, part) in cases {
        let message = refusal(with(pairs));
        assert!(message.contains(part), "{pairs:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{pairs:?}: {message}");
    }
}

#[test]
fn the_detector_is_slower_than_its_beats_and_quicker_than_the_lease() {
    let load = |silence: &str, ask: &str| {
        let options = LoadOptions::default()
            .with("high-availability.type", "etcd")
            .with("high-availability.etcd.endpoints", "etcd-1:2379")
            .with("high-availability.detector.silence-timeout", silence)
            .with("high-availability.detector.inquiry-timeout", ask);
        Configuration::load(options)
    };
    let detector = load("1 s", "300 ms")
        .expect("valid")
        .options()
        .ha
        .detector
        .clone();
    assert_eq!(detector.hold_off_timeout, Duration::from_secs(10));
    for (silence, ask) in [
        ("299 ms", "300 ms"),
        ("800 ms", "199 ms"),
        ("5 s", "300 ms"),
    ] {
        load(silence, ask).expect_err("out of proportion");
    }
}

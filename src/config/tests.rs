//! Tests of [`super`] through its public interface: sources and their order, what is refused and how, relations.

use std::time::Duration;

use tanist_proto::resources::CpuCores;

use super::*;

fn write(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("tanist.yaml");
    std::fs::write(&path, text).expect("a file in it");
    (dir, path)
}

fn environment(pairs: &[(&str, &str)]) -> LoadOptions {
    let owned = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    LoadOptions {
        environment: owned.collect(),
        ..LoadOptions::default()
    }
}

fn with(pairs: &[(&str, &str)]) -> LoadOptions {
    pairs
        .iter()
        .fold(LoadOptions::default(), |load, (key, value)| {
            load.with(key, value)
        })
}

/// The messages of the problems, one a line.
fn refusal(load: LoadOptions) -> String {
    let error = Configuration::load(load).expect_err("must be refused");
    error
        .problems
        .iter()
        .map(|problem| problem.message.as_str())
        .collect::<Vec<_>>()
        .join("\n")
}

fn source(configuration: &Configuration, key: &str) -> String {
    let setting = configuration.settings().into_iter().find(|s| s.key == key);
    setting.expect("a known key").source.to_string()
}

#[test]
fn nothing_set_gives_valid_defaults_on_loopback() {
    let configuration = Configuration::defaults();
    assert!(matches!(
        configuration.ha().backend,
        BackendOptions::Embedded(_)
    ));
    assert!(configuration.jobmanager().bind_host.is_loopback());
    assert!(configuration.rest().bind_address.is_loopback());
    assert!(configuration.taskmanager().bind_host.is_loopback());
    assert_eq!(configuration.heartbeat().timeout, Duration::from_secs(50));
    assert_eq!(
        configuration.client().retry_period,
        Duration::from_millis(200)
    );
    assert_eq!(configuration.client().rest, None);
    assert_eq!(configuration.rest().bind_ports, PortRange::single(8081));
    assert_eq!(configuration.explicit_settings(), []);
    assert_eq!(configuration.warnings(), [""; 0]);
}

#[test]
fn environment_overrides_the_file_and_a_flag_overrides_both() {
    let (_dir, path) =
        write("rest.port: 1\njobmanager:\n  rpc:\n    port: 2\nslot.idle.timeout: 3 s\n");
    let variables = [
        ("TANIST_REST_PORT", "11"),
        ("TANIST_JOBMANAGER_RPC_PORT", "12"),
        ("PATH", "/bin"),
    ];
    let load = environment(&variables)
        .with_file(&path)
        .with("rest.port", "20")
        .with("rest.port", "21");
    let configuration = Configuration::load(load).expect("valid");
    assert_eq!(configuration.rest().bind_ports, PortRange::single(21));
    assert_eq!(configuration.jobmanager().ports, PortRange::single(12));
    assert_eq!(
        configuration.resources().slot_idle_timeout,
        Duration::from_secs(3)
    );
    assert_eq!(source(&configuration, "rest.port"), "-D");
    assert_eq!(
        source(&configuration, "jobmanager.rpc.port"),
        "environment TANIST_JOBMANAGER_RPC_PORT"
    );
    assert_eq!(
        source(&configuration, "slot.idle.timeout"),
        format!("{}:5", path.display())
    );
    assert_eq!(source(&configuration, "parallelism.default"), "default");
    assert_eq!(configuration.explicit_settings().len(), 3);
    assert_eq!(configuration.file(), Some(path.as_path()));
}

#[test]
fn the_directory_of_the_file_may_come_from_the_environment() {
    let (dir, path) = write("rest.port: 1234\n");
    let conf_dir = dir.path().to_str().expect("a Unicode path");
    let load = environment(&[("TANIST_CONF_DIR", conf_dir)]);
    let configuration = Configuration::load(load).expect("valid");
    assert_eq!(configuration.file(), Some(path.as_path()));
    let message = refusal(environment(&[("TANIST_CONF_DIR", "/nowhere")]));
    assert!(
        message.contains("/nowhere/tanist.yaml can't be read"),
        "{message}"
    );
}

#[test]
fn an_unknown_key_is_answered_with_the_nearest_one() {
    let (_dir, path) = write("heartbeat.intervall: 1 s\ntaskmanager.numberoftaskslots: 2\n");
    let message = refusal(LoadOptions::default().with_file(&path));
    assert!(
        message.contains("did you mean `heartbeat.interval`?"),
        "{message}"
    );
    assert!(message.contains("tanist.yaml:1"), "{message}");
    assert!(
        message.contains("did you mean `taskmanager.numberOfTaskSlots`?"),
        "{message}"
    );
    let message = refusal(with(&[("restart-strategy", "none"), ("xyzzy", "1")]));
    assert!(
        message.contains("write `restart-strategy.type`"),
        "{message}"
    );
    assert!(
        message.contains("unknown key `xyzzy` (-D): docs/configuration.md"),
        "{message}"
    );
}

#[test]
fn an_unknown_variable_of_ours_is_refused_and_a_reserved_one_is_not() {
    let message = refusal(environment(&[("TANIST_REST_PROT", "1")]));
    assert!(
        message.contains("did you mean TANIST_REST_PORT?"),
        "{message}"
    );
    let reserved = [
        ("TANIST_FAILPOINTS", "x"),
        ("TANIST_LOG", "debug"),
        ("TANIST_TEST_ALL", "1"),
    ];
    Configuration::load(environment(&reserved)).expect("reserved names set no option");
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let (_dir, path) = write("rest.port: many\nnope: 1\nlog.level: lauter\n");
    let load = environment(&[("TANIST_NOPE", "1")])
        .with_file(path)
        .with("heartbeat.interval", "1 min")
        .with("parallelism.default", "200");
    let mut load = load;
    load.overrides.push("no-value".to_owned());
    let error = Configuration::load(load).expect_err("seven mistakes");
    assert_eq!(error.problems.len(), 7, "{error}");
    assert!(
        error
            .to_string()
            .starts_with("the configuration has 7 problems:\n  - "),
        "{error}"
    );
}

#[test]
fn a_value_that_can_not_be_read_is_not_compared_as_well() {
    let message = refusal(with(&[
        ("heartbeat.timeout", "soon"),
        ("heartbeat.interval", "2 min"),
    ]));
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(
        message.starts_with("`heartbeat.timeout: soon` is no duration"),
        "{message}"
    );
}

#[test]
fn a_key_set_twice_in_the_file_is_refused_in_whichever_form() {
    let (_dir, path) = write("rest.port: 1\nrest:\n  port: 2\n");
    let message = refusal(LoadOptions::default().with_file(path));
    assert!(
        message.contains("set twice") && message.contains("line 1"),
        "{message}"
    );
}

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
fn a_store_is_described_by_its_own_options() {
    let (_dir, path) = write(
        "high-availability:\n  type: zookeeper\n  cluster-id: blue\n  storageDir: /mnt/ha\n  storage-shared: true\n  \
         zookeeper:\n    quorum: [zk1, zk2:2182]\n    auth: {user: tanist, password: 0123}\n    \
         client.session-timeout: 1 s\n",
    );
    let configuration = Configuration::load(LoadOptions::default().with_file(path)).expect("valid");
    let ha = configuration.ha();
    assert_eq!(ha.cluster_id.as_str(), "blue");
    assert!(ha.storage.as_ref().is_some_and(|storage| storage.shared));
    let BackendOptions::Zookeeper(zookeeper) = &ha.backend else {
        panic!("{:?}", ha.backend)
    };
    assert_eq!(zookeeper.quorum[1].to_string(), "zk2:2182");
    assert_eq!(zookeeper.connection_timeout, Duration::from_millis(500));
    let auth = zookeeper.auth.as_ref().expect("a user");
    assert_eq!(auth.password.reveal(), "0123");
}

#[test]
fn the_embedded_store_lives_in_the_users_state_directory() {
    let directory = |load: LoadOptions| {
        let configuration = Configuration::load(load).expect("valid");
        match &configuration.ha().backend {
            BackendOptions::Embedded(embedded) => embedded.directory.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        directory(environment(&[("HOME", "/h")])),
        Path::new("/h/.local/state/tanist")
    );
    assert_eq!(
        directory(environment(&[("XDG_STATE_HOME", "/s")])),
        Path::new("/s/tanist")
    );
    assert_eq!(directory(environment(&[])), Path::new("/var/lib/tanist"));
    assert_eq!(
        directory(with(&[("high-availability.embedded.dir", "/d")])),
        Path::new("/d")
    );
}

#[test]
fn a_secret_is_in_no_error_no_setting_and_no_debug_output() {
    let key = "high-availability.etcd.password";
    let load = with(&[
        ("high-availability.type", "etcd"),
        ("high-availability.etcd.endpoints", "a:1"),
        ("high-availability.etcd.user", "root"),
        (key, "hunter2"),
    ]);
    let configuration = Configuration::load(load.clone()).expect("valid");
    let shown = format!("{configuration:?} {:?}", configuration.settings());
    assert!(
        shown.contains(MASK) && !shown.contains("hunter2"),
        "{shown}"
    );
    let message = refusal(load.with("heartbeat.interval", "1 h"));
    assert!(!message.contains("hunter2"), "{message}");
    let message = refusal(with(&[(key, "")]));
    assert!(
        message.starts_with(&format!("`{key}: {MASK}` is empty")),
        "{message}"
    );
}

#[test]
fn arguments_are_shown_without_secrets() {
    let key = "high-availability.etcd.password";
    let arguments = [
        "tanist".to_owned(),
        format!("-D{key}=hunter2"),
        format!("{key}=hunter=2"),
        "-Dhigh-availability.etcd.pasword=hunter2".to_owned(),
        "-Dsome.password=hunter2".to_owned(),
        "rest.port=1".to_owned(),
    ];
    let masked = mask_arguments(arguments);
    assert_eq!(masked[1], format!("-D{key}={MASK}"));
    assert_eq!(masked[2], format!("{key}={MASK}"));
    assert_eq!(masked[4], format!("-Dsome.password={MASK}"));
    assert_eq!(masked[5], "rest.port=1");
    assert!(!masked.concat().contains("hunter"), "{masked:?}");
}

#[test]
fn what_is_allowed_but_hardly_meant_is_warned_of() {
    let warnings = |pairs: &[(&str, &str)]| {
        let configuration = Configuration::load(with(pairs)).expect("valid");
        configuration.warnings().join("\n")
    };
    let open = warnings(&[("rest.bind-address", "0.0.0.0")]);
    assert!(open.contains("full control"), "{open}");
    let unreachable = warnings(&[("jobmanager.rpc.address", "node-1")]);
    assert!(
        unreachable.contains("`jobmanager.bind-host: 0.0.0.0` lets them"),
        "{unreachable}"
    );
    let unused = warnings(&[("restart-strategy.fixed-delay.attempts", "3")]);
    assert!(unused.contains("has no effect"), "{unused}");
    assert_eq!(warnings(&[("jobmanager.rpc.address", "localhost")]), "");
}

#[test]
fn an_address_for_others_follows_from_what_is_bound() {
    let load = with(&[
        ("jobmanager.bind-host", "0.0.0.0"),
        ("jobmanager.rpc.address", "node-1"),
        ("rest.bind-address", "0.0.0.0"),
        ("taskmanager.bind-host", "10.0.0.7"),
    ]);
    let configuration = Configuration::load(load).expect("valid");
    assert_eq!(configuration.rest().address.as_str(), "node-1");
    assert_eq!(configuration.taskmanager().host.as_str(), "10.0.0.7");
}

#[test]
fn every_restart_strategy_is_built_from_its_own_options() {
    let strategy = |pairs: &[(&str, &str)]| {
        Configuration::load(with(pairs))
            .expect("valid")
            .restart_strategy()
            .clone()
    };
    for none in ["none", "off", "disable"] {
        let built = strategy(&[("restart-strategy.type", none)]);
        assert_eq!(built, RestartStrategyOptions::None, "{none}");
    }
    let written_together = strategy(&[("restart-strategy.type", "failurerate")]);
    assert_eq!(
        written_together,
        strategy(&[("restart-strategy.type", "failure-rate")])
    );
    let fixed = [
        ("restart-strategy.type", "fixed-delay"),
        ("restart-strategy.fixed-delay.attempts", "7"),
    ];
    let expected = RestartStrategyOptions::FixedDelay {
        attempts: 7,
        delay: Duration::from_secs(1),
    };
    assert_eq!(strategy(&fixed), expected);
    assert!(matches!(
        strategy(&[]),
        RestartStrategyOptions::ExponentialDelay { .. }
    ));
}

#[test]
fn the_files_in_deploy_are_valid_also_with_what_they_comment_out() {
    for store in ["embedded", "etcd", "zookeeper"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("deploy/{store}.yaml"));
        let load = LoadOptions::default().with_file(&path);
        let configuration = Configuration::load(load).expect(store);
        let backend = &configuration.ha().backend;
        let expected = match store {
            "etcd" => matches!(backend, BackendOptions::Etcd(_)),
            "zookeeper" => matches!(backend, BackendOptions::Zookeeper(_)),
            _ => matches!(backend, BackendOptions::Embedded(_)),
        };
        assert!(expected, "{store}: {backend:?}");

        // A key set twice is a choice that the file offers; everything else must hold at once.
        let text = std::fs::read_to_string(&path).expect("just loaded");
        let (_dir, all) = write(&uncommented(&text));
        if let Err(error) = Configuration::load(LoadOptions::default().with_file(all)) {
            panic!("{store}: {error}");
        }
    }
}

/// `text` with its commented-out settings in force; of a key that is there twice only the last.
fn uncommented(text: &str) -> String {
    let is_setting = |line: &str| {
        let key = line.split_once(':').map(|(key, _)| key.trim_start());
        key.is_some_and(|key| !key.is_empty() && !key.contains(' ') && !key.starts_with("TANIST"))
    };
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let commented = line
            .trim_start()
            .strip_prefix("# ")
            .filter(|rest| is_setting(rest));
        let line = commented.map_or_else(|| line.to_owned(), |rest| " ".repeat(indent) + rest);
        let key = line.split_once(':').map(|(key, _)| format!("{key}:"));
        lines.retain(|earlier| {
            let same = key.as_ref().is_some_and(|key| earlier.starts_with(key));
            !same || !line.starts_with(' ') || !line.contains("storageDir")
        });
        lines.push(line);
    }
    lines.join("\n")
}

#[test]
fn the_detector_is_slower_than_its_beats_and_quicker_than_the_lease() {
    let load = |silence: &str, ask: &str| {
        let options = LoadOptions::default()
            .with("high-availability.type", "etcd")
            .with("high-availability.etcd.endpoints", "etcd-1:2379")
            .with("high-availability.detector.silence-timeout", silence)
            .with("high-availability.detector.ask-timeout", ask);
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

//! What follows from options, and how they are shown: stores, secrets, addresses, restart strategies.

use std::time::Duration;

use tanist_ha::zookeeper::ZooKeeperOptions;

use super::*;

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
    let zookeeper = store::<ZooKeeperOptions>(&configuration);
    assert_eq!(zookeeper.quorum, ["zk1:2181", "zk2:2182"]);
    assert_eq!(zookeeper.namespace, "/tanist/blue");
    assert_eq!(zookeeper.connect_timeout, Duration::from_millis(500));
    assert_eq!(ha.backend.lease(), Some(Duration::from_secs(1)));
    let credentials = ("tanist".to_owned(), "0123".to_owned());
    assert_eq!(zookeeper.digest, Some(credentials));
    let shown = format!("{ha:?}");
    assert!(!shown.contains("0123"), "{shown}");
    assert_eq!(ha.place.to_string(), "high-availability.zookeeper.quorum");
}

#[test]
fn the_embedded_store_lives_in_the_users_state_directory() {
    let directory = |load: LoadOptions| {
        let configuration = Configuration::load(load).expect("valid");
        let cluster = configuration.ha().backend.directory();
        let cluster = cluster.expect("it is in a directory");
        assert!(cluster.ends_with("default"), "{cluster:?}");
        cluster.parent().expect("not the root").to_owned()
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

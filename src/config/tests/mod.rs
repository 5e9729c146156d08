//! Tests of [`super`] through its public interface. Here: the order of sources, and refused values with their errors.

use std::any::Any;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use tanist_ha::backend::Backend;
use tanist_proto::resources::CpuCores;

mod checkpoints;
mod derived_values;
mod related;
mod resources;
mod secrets;
mod service_variables;

use super::*;

fn write(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("tanist.yaml");
    std::fs::write(&path, text).expect("a file in it");
    set_mode(&path, 0o600);
    (dir, path)
}

fn set_mode(path: &Path, mode: u32) {
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, mode).expect("a file of ours");
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

/// The messages of the problems, one per line.
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

/// The options of the configured store.
fn store<T: Backend>(configuration: &Configuration) -> &T {
    let backend: &dyn Any = &*configuration.ha().backend;
    backend.downcast_ref().expect("a store of this kind")
}

#[test]
fn nothing_set_gives_valid_defaults_on_loopback() {
    let configuration = Configuration::defaults();
    assert_eq!(configuration.ha().backend.name(), "embedded");
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
        message.contains("unknown key `xyzzy` (-D): docs/reference/configuration.md"),
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
fn the_files_in_deploy_are_valid_also_with_what_they_comment_out() {
    for store in ["embedded", "etcd", "zookeeper"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../deploy/{store}.yaml"));
        let load = LoadOptions::default().with_file(&path);
        let configuration = Configuration::load(load).expect(store);
        let backend = &configuration.ha().backend;
        assert_eq!(backend.name(), store, "{backend:?}");

        // The file offers a choice for a key that it contains twice; all other settings must be valid together.
        let text = std::fs::read_to_string(&path).expect("just loaded");
        let files = tempfile::tempdir().expect("a directory");
        for name in ["etcd-password", "zookeeper-password"] {
            let file = files.path().join(name);
            std::fs::write(&file, "secret\n").expect("written");
            set_mode(&file, 0o600);
        }
        let here = files.path().to_string_lossy();
        let text = text.replace("/etc/tanist", &here);
        let (_dir, all) = write(&uncommented(&text));
        if let Err(error) = Configuration::load(LoadOptions::default().with_file(all)) {
            panic!("{store}: {error}");
        }
    }
}

/// `text` with its commented-out settings enabled. Of a key that occurs twice only the last counts.
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

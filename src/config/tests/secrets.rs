//! Secrets: where they may be set, in which form, and that they are never shown.

use tanist_ha::etcd::EtcdOptions;

use super::*;

const PASSWORD: &str = "high-availability.etcd.password";
const FILE: &str = "high-availability.etcd.password-file";
const VARIABLE: &str = "TANIST_HIGH_AVAILABILITY_ETCD_PASSWORD";

/// The options of an etcd with a user, without the password.
fn etcd() -> LoadOptions {
    with(&[
        ("high-availability.type", "etcd"),
        ("high-availability.etcd.endpoints", "a:1"),
        ("high-availability.etcd.user", "root"),
    ])
}

fn password(load: LoadOptions) -> String {
    let configuration = Configuration::load(load).expect("valid");
    let etcd = store::<EtcdOptions>(&configuration);
    let (_, password) = etcd.user.as_ref().expect("a user");
    password.clone()
}

fn by_environment(name: &str, value: &str) -> LoadOptions {
    let mut load = etcd();
    load.environment.push((name.to_owned(), value.to_owned()));
    load
}

/// A file in a directory of its own.
fn secret_file(name: &str, text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("written");
    set_mode(&path, mode);
    (dir, path)
}

#[test]
fn a_secret_is_in_no_error_no_setting_and_no_debug_output() {
    let load = by_environment(VARIABLE, "hunter2");
    let configuration = Configuration::load(load.clone()).expect("valid");
    let shown = format!("{configuration:?} {:?}", configuration.settings());
    assert!(
        shown.contains(MASK) && !shown.contains("hunter2"),
        "{shown}"
    );
    let message = refusal(load.with("heartbeat.interval", "1 h"));
    assert!(!message.contains("hunter2"), "{message}");
    let message = refusal(environment(&[(VARIABLE, "")]));
    assert!(
        message.starts_with(&format!("`{PASSWORD}: {MASK}` is empty")),
        "{message}"
    );
}

#[test]
fn a_secret_on_the_command_line_is_refused_with_the_form_to_use() {
    for key in [PASSWORD, "high-availability.zookeeper.auth.password"] {
        let message = refusal(with(&[(key, "hunter2")]));
        assert!(
            message.contains(&format!("`-D {key}-file=FILE`")),
            "{message}"
        );
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn a_password_is_read_from_a_file_that_others_can_not_read() {
    for (text, read) in [("hunter2\n", "hunter2"), ("a b\r\n", "a b"), ("x", "x")] {
        let (_dir, path) = secret_file("p", text, 0o600);
        assert_eq!(password(etcd().with(FILE, &path.to_string_lossy())), read);
    }
    for mode in [0o604, 0o602, 0o622] {
        let (_dir, path) = secret_file("p", "hunter2", mode);
        let message = refusal(etcd().with(FILE, &path.to_string_lossy()));
        assert!(message.contains("`chmod 600 "), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
    let (_dir, path) = secret_file("p", "\n", 0o600);
    let message = refusal(etcd().with(FILE, &path.to_string_lossy()));
    assert!(message.contains("is empty"), "{message}");
    let message = refusal(etcd().with(FILE, "/nowhere"));
    assert!(message.contains("can't be read"), "{message}");
}

#[test]
fn a_credential_of_systemd_needs_no_option() {
    let (dir, _path) = secret_file("tanist.etcd-password", "hunter2\n", 0o440);
    let directory = dir.path().to_string_lossy().into_owned();
    let load = by_environment("CREDENTIALS_DIRECTORY", &directory);
    assert_eq!(password(load.clone()), "hunter2");
    let configuration = Configuration::load(load).expect("valid");
    let source = source(&configuration, PASSWORD);
    assert!(source.ends_with("tanist.etcd-password"), "{source}");
}

#[test]
fn a_secret_in_two_places_is_refused() {
    let (dir, path) = secret_file("tanist.etcd-password", "hunter2", 0o600);
    let file = path.to_string_lossy();
    let directory = dir.path().to_string_lossy();
    let both = by_environment(VARIABLE, "x").with(FILE, &file);
    let other = by_environment("CREDENTIALS_DIRECTORY", &directory).with(FILE, &file);
    for load in [both, other] {
        let message = refusal(load);
        assert!(message.contains("one secret, one place"), "{message}");
    }
}

/// A user who can read one can read the other: a password in the configuration is as safe as one in a file.
#[test]
fn a_configuration_that_others_can_read_must_not_have_a_password() {
    let text = format!("{PASSWORD}: hunter2\n");
    let (_dir, path) = write(&text);
    let load = || etcd().with_file(&path);
    assert_eq!(password(load()), "hunter2");
    set_mode(&path, 0o644);
    let message = refusal(load());
    assert!(message.contains("lets other users read"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
}

/// A process that is started with this configuration reads the secret from the same file.
#[test]
fn what_is_read_from_a_file_is_handed_on_as_its_name() {
    let (_dir, path) = secret_file("p", "hunter2", 0o600);
    let load = etcd().with(FILE, &path.to_string_lossy());
    let configuration = Configuration::load(load).expect("valid");
    let environment = configuration.environment();
    assert!(!format!("{environment:?}").contains("hunter2"));
    let again = LoadOptions {
        environment,
        ..LoadOptions::default()
    };
    assert_eq!(password(again), "hunter2");
}

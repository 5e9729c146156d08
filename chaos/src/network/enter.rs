//! How a test, or a measurement, gets a network and mounts of its own: its binary runs it once more, alone, in fresh namespaces.
//!
//! As root that takes a network namespace; else a user namespace too, in which the test is root and nowhere else. What the
//! test says inside is said by the test outside; it fails if the one inside does not pass.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use parking_lot::Mutex;

use crate::guard::Guard;

/// Names, inside, the test that runs there.
const INSIDE: &str = "TANIST_TEST_NETWORK";

/// Says, inside, which directory goes with the test: what is mounted in it is not seen outside.
const DIRECTORY: &str = "TANIST_TEST_NETWORK_DIRECTORY";

/// What is needed, with the packages of Debian that have it.
const PROGRAMS: [(&str, &str); 4] = [
    ("mount", "mount"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
];

/// Runs `test` in a network of its own. `name` is the test's full name, as libtest lists it.
pub fn on_a_network_of_its_own<F: Future<Output = anyhow::Result<()>>>(
    name: &str,
    test: impl FnOnce() -> F,
) -> anyhow::Result<()> {
    if is_inside(name) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        return runtime.block_on(test());
    }
    run_inside(name)
}

/// Mounts a file system of so many bytes, in memory, that is gone with the test. Only in [`on_a_network_of_its_own`].
pub fn small_file_system(name: &str, bytes: u64) -> anyhow::Result<PathBuf> {
    let directory = std::env::var_os(DIRECTORY).context("the test has no mounts of its own")?;
    let path = PathBuf::from(directory).join(name);
    std::fs::create_dir(&path)?;
    let mounted = Command::new("mount")
        .args([
            "-t",
            "tmpfs",
            "-o",
            &format!("size={bytes},mode=0700"),
            "tmpfs",
        ])
        .arg(&path)
        .stdin(Stdio::null())
        .output()
        .context("cannot start mount")?;
    ensure!(
        mounted.status.success(),
        "cannot mount a file system: {}",
        String::from_utf8_lossy(&mounted.stderr)
    );
    Ok(path)
}

/// Whether this process runs inside under this name.
pub fn is_inside(name: &str) -> bool {
    std::env::var(INSIDE).is_ok_and(|inside| inside == name)
}

fn run_inside(name: &str) -> anyhow::Result<()> {
    let output = run_self_inside(name, &["--exact", name, "--nocapture"])?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    ensure!(
        output.status.success(),
        "the test failed in its own network: {}",
        output.status
    );
    // A name that matches no test would pass too.
    ensure!(
        said.contains("1 passed"),
        "{name:?} is not the name of one test of this binary"
    );
    Ok(())
}

/// Runs this process's own program once more with these arguments, to its end, in a network of its own, where
/// [`is_inside`] tells it so.
pub fn run_self_inside(name: &str, arguments: &[&str]) -> anyhow::Result<Output> {
    let namespaces = namespaces()?;
    let program = std::env::current_exe().context("cannot find the own program")?;
    let directory = tempfile::Builder::new()
        .prefix("tanist-network-")
        .tempdir()?
        .keep();
    // Ends what is inside if this process is killed; what that one started then ends by guards of its own.
    let guard = Arc::new(Mutex::new(Guard::start(&directory)?));
    let child = Command::new("unshare")
        .args(namespaces)
        .args(["--", "sh", "-c", r#"ip link set lo up && exec "$0" "$@""#])
        .arg(program)
        .args(arguments)
        .env(INSIDE, name)
        .env(DIRECTORY, &directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start unshare")?;
    let pid = child.id();
    guard.lock().watch(pid);
    let output = child.wait_with_output()?;
    guard.lock().forget(pid);
    Ok(output)
}

/// The arguments of `unshare` that give this process a network of its own.
fn namespaces() -> anyhow::Result<&'static [&'static str]> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |program: &str| std::env::split_paths(&path).any(|at| at.join(program).is_file());
    check_programs(there)?;
    let ways: [&[&str]; 2] = [
        &["--net", "--uts", "--mount"],
        &["--user", "--map-root-user", "--net", "--uts", "--mount"],
    ];
    let mut said = String::new();
    for way in ways {
        let tried = Command::new("unshare")
            .args(way)
            .args(["--", "ip", "link", "set", "lo", "up"])
            .stdin(Stdio::null())
            .output()
            .context("cannot start unshare")?;
        if tried.status.success() {
            return Ok(way);
        }
        said = String::from_utf8_lossy(&tried.stderr).into_owned();
    }
    bail!(
        "tests of network cuts need namespaces, which this system refuses ({}): run them as root, or allow user namespaces \
         to everybody (on Ubuntu `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`)",
        said.trim()
    )
}

fn check_programs(there: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    for (program, package) in PROGRAMS {
        ensure!(
            there(program),
            "{program} is not installed, which tests of network cuts need: run `cargo xtask setup`, or install the Debian \
             package `{package}`"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_the_package_that_has_it() {
        let error = check_programs(|program| program != "nsenter").expect_err("one is missing");
        let text = error.to_string();
        assert!(
            text.contains("nsenter") && text.contains("util-linux"),
            "{text}"
        );
    }

    #[test]
    fn a_name_that_no_test_has_is_an_error() {
        let error = on_a_network_of_its_own("no::such::test", async || Ok(()))
            .expect_err("there is no such test");
        let text = error.to_string();
        assert!(text.contains("no::such::test"), "{text}");
    }
}

//! Gives a test, or a measurement, its own network and mounts: its binary runs itself once more, alone,
//! in fresh namespaces.
//!
//! For root this takes a network namespace; for other users also a user namespace, inside which the test
//! is root. The outer test prints the output of the inner one, and fails if that does not pass.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use parking_lot::Mutex;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::guard::Guard;

/// Names the test to the inner process.
const INSIDE: &str = "TANIST_TEST_NETWORK";

/// Names the directory of the test to the inner process: file systems mounted in it are not visible outside.
const DIRECTORY: &str = "TANIST_TEST_NETWORK_DIRECTORY";

/// The required programs, with their Debian packages.
const PROGRAMS: [(&str, &str); 4] = [
    ("mount", "mount"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
];

/// Runs `test` in a network of its own. `name` is the full name of the test, as libtest lists it.
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

/// Mounts a file system of this size in memory, which disappears with the test. Only in [`on_a_network_of_its_own`].
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

/// Whether this process is the inner process of this test.
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

/// Runs this process's own program once more with these arguments, to its end, in a network of its own.
/// There [`is_inside`] returns true.
pub fn run_self_inside(name: &str, arguments: &[&str]) -> anyhow::Result<Output> {
    let namespaces = namespaces()?;
    let program = std::env::current_exe().context("cannot find the own program")?;
    let directory = tempfile::Builder::new()
        .prefix("tanist-network-")
        .tempdir()?
        .keep();
    // Ends the inner process if this process is killed; the inner process has guards for its own children.
    let guard = Arc::new(Mutex::new(Guard::start(&directory)?));
    // Files, not pipes: the end is awaited without reading.
    let (said, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = Command::new("unshare")
        .args(namespaces)
        .args(["--", "sh", "-c", r#"ip link set lo up && exec "$0" "$@""#])
        .arg(program)
        .args(arguments)
        .env(INSIDE, name)
        .env(DIRECTORY, &directory)
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(errors.try_clone()?)
        .spawn()
        .context("cannot start unshare")?;
    let pid = child.id();
    guard.lock().watch(pid);
    // Waits without reaping, so that the guard releases the id first.
    let id = WaitId::Pid(Pid::from_child(&child));
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    rustix::io::retry_on_intr(|| waitid(id.clone(), options))?;
    guard.lock().release(pid);
    Ok(Output {
        status: child.wait()?,
        stdout: content(said)?,
        stderr: content(errors)?,
    })
}

fn content(mut file: File) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut content)?;
    Ok(content)
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
         to all users (on Ubuntu `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`)",
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

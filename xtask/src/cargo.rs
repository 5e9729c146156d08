//! The tasks that run cargo: which commands, with which features, in which order.

use std::env::consts::EXE_SUFFIX;
use std::num::NonZero;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;

use crate::{links, prose};

/// Features that tests need besides the default ones.
const TEST_FEATURES: &str = "failpoints,tanist-ha/testing,s3,https";
/// Rust's variable for the number of tests that run at the same time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// Runs the tests of all crates, or those that match a filter.
pub(crate) fn test(all: bool, filters: &[String]) -> anyhow::Result<()> {
    let mut command = cargo(&["test", "--workspace", "--features", TEST_FEATURES]);
    if all {
        // Read by the tests' support. Its limits are those of a quiet machine.
        command.env("TANIST_TEST_ALL", "1");
    } else if std::env::var_os(TEST_THREADS).is_none() {
        // Tests of processes wait most of the time.
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        command.env(TEST_THREADS, (2 * cores).to_string());
    }
    if !filters.is_empty() {
        command.arg("--").args(filters);
    }
    run(&mut command)
}

/// Runs jobs that verify themselves among faults: all steps of a checkpoint (alone, in pairs, without the store, cut
/// off), and a run with this number of kills. One store after the other, since each run has the machine for itself.
/// Then runs a job of which one region fails; with one and a half times this number of failures.
pub(crate) fn chaos(kills: u64, seed: Option<u64>, stores: &[String]) -> anyhow::Result<()> {
    for store in stores {
        for part in ["checkpoint_steps", "checkpoint_faults", "fault_run"] {
            let mut command = cargo(&["test", "--features", TEST_FEATURES, "--test", "cluster"]);
            command.args(["--", "--nocapture", "--test-threads", "1"]);
            for module in ["", "servers::", "networks::"] {
                command.arg(format!("{part}::{module}{store}"));
            }
            command.env("TANIST_TEST_KILLS", kills.to_string());
            if let Some(seed) = seed {
                command.env("TANIST_TEST_SEED", seed.to_string());
            }
            run(&mut command)?;
        }
    }
    let mut command = cargo(&["test", "--features", TEST_FEATURES, "--test", "cluster"]);
    command.args(["--", "--test-threads", "1", "checkpoint_regions"]);
    run(command.env("TANIST_TEST_FLAPS", (kills * 3 / 2).to_string()))
}

/// Takes this number of checkpoints of a job, this far apart, and checks that nothing grows.
pub(crate) fn soak(checkpoints: u64, interval_ms: u64) -> anyhow::Result<()> {
    let mut command = cargo(&["test", "--features", TEST_FEATURES, "--test", "cluster"]);
    command.args(["--", "--nocapture", "checkpoint_growth"]);
    command.env("TANIST_TEST_CHECKPOINTS", checkpoints.to_string());
    run(command.env("TANIST_TEST_INTERVAL_MS", interval_ms.to_string()))
}

/// Runs every check, even after one has failed, and fails with the names of the failed ones.
pub(crate) fn lint() -> anyhow::Result<()> {
    let mut documentation = cargo(&["doc", "--workspace", "--no-deps", "--all-features"]);
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ];
    let mut checks = vec![
        (
            "format (`cargo xtask fix` mends it)",
            cargo(&["fmt", "--all", "--check"]),
        ),
        ("clippy", cargo(&clippy)),
        ("documentation", documentation),
    ];
    if has_cargo_deny() {
        checks.push(("dependencies", cargo(&["deny", "--all-features", "check"])));
    } else {
        println!("licences and advisories are not checked: `cargo install cargo-deny` for that");
    }
    let mut failed = Vec::new();
    for (name, mut check) in checks {
        if run(&mut check).is_err() {
            failed.push(name);
        }
    }
    failed.extend(failed_documents());
    verdict(&failed)
}

/// Checks prose and links, and nothing that needs a compiler.
pub(crate) fn lint_documents() -> anyhow::Result<()> {
    verdict(&failed_documents())
}

/// The names of the failed checks of prose and links.
fn failed_documents() -> Vec<&'static str> {
    let mut failed = Vec::new();
    for (name, outcome) in [("prose", prose::check()), ("links", links::check())] {
        if let Err(error) = outcome {
            println!("{error}");
            failed.push(name);
        }
    }
    failed
}

fn verdict(failed: &[&str]) -> anyhow::Result<()> {
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("failed: {}", failed.join(", "))
    }
}

/// Builds the book of `docs/` into the target directory.
pub(crate) fn book(program: &Path) -> anyhow::Result<()> {
    // mdBook takes a relative directory as relative to the book.
    let destination = std::path::absolute(target().join("book"))?;
    let mut command = Command::new(program);
    run(command
        .args(["build", "docs", "--dest-dir"])
        .arg(&destination))?;
    println!("the book is {}", destination.join("index.html").display());
    Ok(())
}

/// Applies all automatic fixes.
pub(crate) fn fix() -> anyhow::Result<()> {
    run(&mut cargo(&[
        "clippy",
        "--fix",
        "--allow-dirty",
        "--allow-staged",
        "--workspace",
        "--all-targets",
        "--all-features",
    ]))?;
    // The tests that compare generated files with their generators now write the files instead.
    for package in ["tanist-config", "tanist-cli", "tanist-model"] {
        let mut documentation = cargo(&["test", "--package", package, "--lib", "reference"]);
        run(documentation.env("TANIST_TEST_WRITE_DOCS", "1"))?;
    }
    run(&mut cargo(&["fmt", "--all"]))
}

/// Builds the demo and, without SQL, the program, and becomes the demo, so that signals and the exit code are its
/// own. In a profile that builds fast: the demo shows that a takeover works and how long it takes, which hardly depends
/// on the profile. For figures use the benchmarks.
pub(crate) fn demo(arguments: &[String]) -> anyhow::Result<()> {
    // One build for both: their dependencies have the same features.
    run(&mut cargo(&[
        "build",
        "--profile",
        "demo",
        "--package",
        "tanist",
        "--package",
        "tanist-chaos",
        "--bin",
        "tanist",
        "--bin",
        "tanist-demo",
        "--no-default-features",
    ]))?;
    let program = target().join("demo").join("tanist-demo");
    let failure = Command::new(&program).args(arguments).exec();
    bail!("{} could not be run: {failure}", program.display())
}

/// Builds the program and runs Flink's own client against a cluster of it.
pub(crate) fn flink() -> anyhow::Result<()> {
    run(&mut cargo(&[
        "build",
        "--profile",
        "demo",
        "--package",
        "tanist",
        "--bin",
        "tanist",
    ]))?;
    let program = target().join("demo").join(format!("tanist{EXE_SUFFIX}"));
    run(Command::new("tests/flink/check.sh").arg(program))
}

/// Builds the released program and the benchmarks, each separately: together, features that only the
/// harness needs would get into the program.
pub(crate) fn bench(arguments: &[String]) -> anyhow::Result<()> {
    for (package, program) in [("tanist", "tanist"), ("tanist-bench", "tanist-bench")] {
        let build = ["build", "--release", "--package", package, "--bin", program];
        run(&mut cargo(&build))?;
    }
    let built = target().join("release");
    let mut command = Command::new(built.join(format!("tanist-bench{EXE_SUFFIX}")));
    let program = built.join(format!("tanist{EXE_SUFFIX}"));
    run(command.arg("--program").arg(program).args(arguments))
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// A command of the cargo that runs this program.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments);
    // Set by the cargo that runs this program; its child builds other packages.
    for variable in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
        command.env_remove(variable);
    }
    command
}

fn has_cargo_deny() -> bool {
    cargo(&["deny", "--version"])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Runs `command` and fails if it fails.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let line = line.join(" ");
    println!("$ {line}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("`{line}` failed: {status}"),
        Err(error) => bail!("`{line}` could not be run: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The compiler's messages about the failpoint file alone. Its dependencies are missing, so it does
    /// not compile; the messages that the test looks for come before that.
    fn compiler_says(directory: &Path, arguments: &[&str]) -> String {
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../ha/src/failpoint.rs");
        let output = Command::new(compiler)
            .args(["--edition", "2024", "--crate-type", "lib"])
            .args(["--emit", "metadata", "--out-dir"])
            .arg(directory)
            .args(arguments)
            .arg(file)
            .output()
            .expect("there is a compiler where tests are compiled");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    #[test]
    fn a_release_with_failpoints_does_not_compile_unless_it_says_so() {
        let directory = std::env::temp_dir();
        let directory = directory.join(format!("tanist-xtask-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("made");
        let with = ["--cfg", "feature=\"failpoints\""];
        let release = ["-C", "opt-level=3"];
        let says_so = ["--cfg", "feature=\"failpoints-in-release\""];
        let refusal = "no release may have it";
        for (arguments, is_refused) in [
            ([&with[..], &release].concat(), true),
            ([&with[..], &says_so, &release].concat(), false),
            ([&with[..], &["-C", "debug-assertions=on"]].concat(), false),
            (release.to_vec(), false),
        ] {
            let said = compiler_says(&directory, &arguments);
            assert_eq!(said.contains(refusal), is_refused, "{arguments:?}: {said}");
        }
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}

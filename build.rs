//! Sets the revision that the program is built from: `TANIST_BUILD_REVISION` if that is set, else git's.
//!
//! Only release builds ask git: a development build would be recompiled after every commit.
//!
//! Release builds also pack the relative relocations of the program (`DT_RELR`) where the C library can load that. They
//! are read at each start, and unpacked they take 4 MB of the program's resident memory.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TANIST_BUILD_REVISION");
    let given = std::env::var("TANIST_BUILD_REVISION")
        .ok()
        .filter(|given| !given.is_empty());
    let release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let revision = match given {
        Some(given) => given,
        None if release => git_revision().unwrap_or_else(|| "unknown".to_owned()),
        None => "development".to_owned(),
    };
    println!("cargo::rustc-env=TANIST_BUILD_REVISION={revision}");
    if release && can_load_packed_relocations() {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Whether the program is built for this host and its glibc is at least 2.36, the first that loads `DT_RELR`.
fn can_load_packed_relocations() -> bool {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if variable("TARGET") != variable("HOST") || variable("CARGO_CFG_TARGET_ENV") != "gnu" {
        return false;
    }
    let glibc = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let text = glibc.map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8(text).unwrap_or_default();
    let version = text.trim().strip_prefix("glibc ").unwrap_or_default();
    let mut numbers = version
        .split('.')
        .map(|number| number.parse().unwrap_or(0_u32));
    (numbers.next(), numbers.next()) >= (Some(2), Some(36))
}

fn git_revision() -> Option<String> {
    // HEAD changes with the branch, its log with every commit. A missing path would run this script every time.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

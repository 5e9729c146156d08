//! Sets the revision that the program is built from: `TANIST_BUILD_REVISION` if that is set, else git's.
//!
//! Only release builds ask git: a development build would be recompiled after every commit.

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

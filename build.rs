//! Packs the relative relocations of a released program (`DT_RELR`) where the C library can load that. They are read at
//! each start, and unpacked they take 4 MB of the program's resident memory.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
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

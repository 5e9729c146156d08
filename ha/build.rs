//! Reports what to do if protoc is missing, which the build of the crate `etcd-client` needs.
//!
//! Cargo may build that crate first. Inside this repository it then gets the same advice from
//! `.cargo/protoc`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PROTOC");
    if std::env::var_os("CARGO_FEATURE_ETCD").is_none() {
        return;
    }
    let protoc = std::env::var_os("PROTOC").unwrap_or_else(|| "protoc".into());
    let answers = Command::new(&protoc)
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success());
    if !answers {
        let name = protoc.display();
        println!("cargo::error={name} can't be run, and etcd's protocol is compiled with protoc.");
        println!(
            "cargo::error=Run `cargo xtask setup` once: it brings one. Or set PROTOC to the path of yours."
        );
        println!(
            "cargo::error=Or build without etcd: --no-default-features --features zookeeper,embedded"
        );
    }
}

//! Says what to do when there is no protoc, which the build of the crate `etcd-client` needs.
//!
//! It has no dependencies, so that it can run before that build fails with a message of its own.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PROTOC");
    if std::env::var_os("CARGO_FEATURE_ETCD").is_none() {
        return;
    }
    let named = std::env::var_os("PROTOC").map(PathBuf::from);
    let problem = match named {
        Some(path) if path.is_file() || in_path(&path) => return,
        Some(path) => format!("PROTOC is {}, which isn't there", path.display()),
        None if in_path(Path::new("protoc")) => return,
        None => "there is no protoc".to_owned(),
    };
    println!("cargo::error={problem}, and etcd's protocol is compiled with it.");
    println!(
        "cargo::error=Run `cargo xtask setup` once: it brings one. Or install protobuf-compiler and set PROTOC to its path."
    );
    println!(
        "cargo::error=Or build without etcd: --no-default-features --features zookeeper,embedded"
    );
}

fn in_path(program: &Path) -> bool {
    if program.components().count() != 1 {
        return false;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

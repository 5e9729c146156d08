//! The project's one entry: set-up, tests, lints, demo and benchmarks. Every command first makes sure that what it
//! needs is there.

use std::path::Path;

use anyhow::Context as _;

fn main() -> anyhow::Result<()> {
    install_protoc(Path::new(".tools/protoc"))
}

/// Puts the bundled protoc and its standard definitions where `.cargo/config.toml` points `PROTOC` at.
fn install_protoc(home: &Path) -> anyhow::Result<()> {
    let bundled =
        protoc_bin_vendored::protoc_bin_path().context("no bundled protoc for this platform")?;
    let include = protoc_bin_vendored::include_path().context("no bundled protobuf definitions")?;
    std::fs::create_dir_all(home.join("bin"))?;
    std::fs::copy(bundled, home.join("bin/protoc")).context("cannot write protoc")?;
    copy_tree(&include, &home.join("include"))
}

fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in
        std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?
    {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

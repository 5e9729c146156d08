//! Installs tools for building and testing that do not come with Rust: protoc (for etcd's client), etcd, ZooKeeper,
//! tools for network namespaces, a browser. For one benchmark also Apache Flink, from PyPI, and for the documents
//! mdBook, from crates.io. Existing tools are not changed. If a tool can't be installed, the error contains the command
//! that installs it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::cargo::{cargo, run};

/// Where the script in `PROTOC` (set in `.cargo/config.toml`) expects protoc, relative to the project's root.
const PROTOC_HOME: &str = ".tools/protoc";
/// Where Debian's package `zookeeper` puts the server.
const ZOOKEEPER_JAR: &str = "/usr/share/java/zookeeper.jar";
/// The version of Flink for the comparison: the sizes of its processes depend on the version.
const FLINK: &str = "2.3.0";
/// Where `cargo xtask bench --beside-flink` expects Flink, relative to the project's root.
const FLINK_HOME: &str = ".tools/flink";
/// The version of mdBook, and where it is installed, relative to the project's root.
const MDBOOK: &str = "0.5.4";
const MDBOOK_HOME: &str = ".tools/mdbook";
/// The jobs for measuring Flink.
const FLINK_JOBS: &str = "benches/flink";

/// Installs the bundled protoc and its standard definitions, unless protoc is there or `PROTOC` names another one.
pub(crate) fn protoc() -> anyhow::Result<()> {
    let home = Path::new(PROTOC_HOME);
    let program = home.join("bin/protoc");
    let script = Path::new(".cargo/protoc").canonicalize().ok();
    let named = std::env::var_os("PROTOC").and_then(|named| Path::new(&named).canonicalize().ok());
    if program.exists() || (named.is_some() && named != script) {
        return Ok(());
    }
    let bundled = protoc_bin_vendored::protoc_bin_path().context(
        "no protoc is bundled for this platform: install one and set PROTOC to its path",
    )?;
    let include = protoc_bin_vendored::include_path().context("no bundled protobuf definitions")?;
    copy_tree(&include, &home.join("include"))?;
    std::fs::create_dir_all(home.join("bin"))?;
    // Renamed into place, so that no process runs an incomplete program.
    let partial = home.join(format!("bin/protoc.{}", std::process::id()));
    std::fs::copy(bundled, &partial)
        .with_context(|| format!("cannot write {}", partial.display()))?;
    std::fs::rename(&partial, &program).context("cannot put protoc in place")?;
    println!("put protoc into {PROTOC_HOME}");
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    let entries =
        std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
    for entry in entries {
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

/// Installs the servers for the tests, and the tools that cut networks, if they are missing.
pub(crate) fn servers() -> anyhow::Result<()> {
    install(&missing_packages(&Installed::find()))?;
    let missing = missing_packages(&Installed::find());
    if !missing.is_empty() {
        bail!("still missing after installing: {}", missing.join(" "));
    }
    Ok(())
}

/// Downloads Flink's jars and compiles the jobs for the comparison, unless they are there.
pub(crate) fn flink() -> anyhow::Result<()> {
    let wanted = [
        (in_path("javac"), "default-jdk-headless"),
        (in_path("python3"), "python3"),
        (has_pip(), "python3-pip"),
    ];
    install(&missing_of(&wanted))?;
    let home = Path::new(FLINK_HOME);
    let jars = home.join("pyflink/lib");
    if !jars.join(format!("flink-dist-{FLINK}.jar")).exists() {
        std::fs::create_dir_all(home)?;
        let package = format!("apache-flink-libraries=={FLINK}");
        let download = ["-m", "pip", "download", "--no-deps", "--dest"];
        let mut pip = Command::new("python3");
        run(pip.args(download).arg(home).arg(package))?;
        let wheel = files(home, "whl")?.pop().context("pip brought no wheel")?;
        let mut unpack = Command::new("python3");
        run(unpack.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(home))?;
        // The wheel is as large as its unpacked content.
        std::fs::remove_file(wheel)?;
    }
    let classes = home.join("classes");
    std::fs::create_dir_all(&classes)?;
    let mut compiler = Command::new("javac");
    compiler.args(["-nowarn", "-proc:none", "-cp"]);
    compiler.arg(jars.join("*")).arg("-d").arg(&classes);
    run(compiler.args(files(Path::new(FLINK_JOBS), "java")?))?;
    let mut jar = Command::new("jar");
    jar.arg("cf").arg(home.join("jobs.jar")).arg("-C");
    run(jar.arg(&classes).arg("."))
}

/// Builds mdBook from crates.io, with the versions of its own lock file, unless it is there. Returns its path.
pub(crate) fn mdbook() -> anyhow::Result<PathBuf> {
    let program = Path::new(MDBOOK_HOME).join("bin").join("mdbook");
    let version = Command::new(&program).arg("--version").output();
    let is_there = version.is_ok_and(|output| {
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim() == format!("mdbook v{MDBOOK}")
    });
    if is_there {
        return Ok(program);
    }
    println!("installing mdBook {MDBOOK} into {MDBOOK_HOME}");
    let install = ["install", "mdbook", "--version", MDBOOK, "--locked"];
    // Without the server, which takes most of the build.
    let features = ["--no-default-features", "--features", "search"];
    let mut command = cargo(&[&install[..], &features].concat());
    // Its own target directory, which `cargo install` removes afterwards.
    command.env_remove("CARGO_TARGET_DIR");
    run(command.args(["--force", "--root", MDBOOK_HOME]))
        .context("could not install mdBook, which needs crates.io")?;
    Ok(program)
}

fn has_pip() -> bool {
    let version = Command::new("python3")
        .args(["-m", "pip", "--version"])
        .output();
    version.is_ok_and(|output| output.status.success())
}

/// The files of a directory with this ending, sorted.
fn files(directory: &Path, ending: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == ending) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Installs these packages, if any.
fn install(missing: &[&str]) -> anyhow::Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    let by_hand = format!("sudo apt-get update && sudo apt-get install {packages}");
    if !in_path("apt-get") {
        bail!(
            "missing for the tests: {packages} (as Debian and Ubuntu call them; `{by_hand}` there). Elsewhere, `etcd`, \
             `java` and `chromium` must be in PATH and ZooKeeper's jars in {}",
            Path::new(ZOOKEEPER_JAR)
                .parent()
                .unwrap_or(Path::new("/"))
                .display()
        );
    }
    let as_root = is_root();
    if !as_root && !in_path("sudo") {
        bail!(
            "missing for the tests: {packages}. As root: `{}`",
            by_hand.replace("sudo ", "")
        );
    }
    println!("installing what is missing for the tests: {packages}");
    let install = ["install", "--yes", "--no-install-recommends"];
    apt_get(as_root, &["update"])
        .and_then(|()| apt_get(as_root, &[install.as_slice(), missing].concat()))
        .with_context(|| format!("could not install {packages}; by hand: `{by_hand}`"))?;
    println!(
        "the tests start servers of their own: those that the packages may have started can be stopped"
    );
    Ok(())
}

/// The tools that are installed.
struct Installed {
    etcd: bool,
    zookeeper: bool,
    java: bool,
    ip: bool,
    namespaces: bool,
    chromium: bool,
}

impl Installed {
    fn find() -> Installed {
        Installed {
            etcd: in_path("etcd"),
            zookeeper: Path::new(ZOOKEEPER_JAR).exists(),
            java: in_path("java"),
            ip: in_path("ip"),
            namespaces: in_path("unshare") && in_path("nsenter"),
            chromium: in_path("chromium"),
        }
    }
}

fn missing_packages(installed: &Installed) -> Vec<&'static str> {
    let wanted = [
        (installed.etcd, "etcd-server"),
        (installed.zookeeper, "zookeeper"),
        (installed.java, "default-jre-headless"),
        (installed.ip, "iproute2"),
        (installed.namespaces, "util-linux"),
        (installed.chromium, "chromium"),
    ];
    missing_of(&wanted)
}

fn missing_of(wanted: &[(bool, &'static str)]) -> Vec<&'static str> {
    let missing = wanted.iter().filter(|(there, _)| !there);
    missing.map(|(_, package)| *package).collect()
}

fn apt_get(as_root: bool, arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(if as_root { "env" } else { "sudo" });
    if !as_root {
        command.arg("env");
    }
    run(command
        .args(["DEBIAN_FRONTEND=noninteractive", "apt-get"])
        .args(arguments))
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_installed() {
        let all_are = |there| Installed {
            etcd: there,
            zookeeper: there,
            java: there,
            ip: there,
            namespaces: there,
            chromium: there,
        };
        assert_eq!(missing_packages(&all_are(true)), [""; 0]);
        let all = [
            "etcd-server",
            "zookeeper",
            "default-jre-headless",
            "iproute2",
            "util-linux",
            "chromium",
        ];
        assert_eq!(missing_packages(&all_are(false)), all);
        let some = Installed {
            zookeeper: false,
            ip: false,
            ..all_are(true)
        };
        assert_eq!(missing_packages(&some), ["zookeeper", "iproute2"]);
    }

    #[test]
    fn programs_are_looked_for_in_path() {
        assert!(in_path("cargo"));
        assert!(!in_path("no-such-program-anywhere"));
    }
}

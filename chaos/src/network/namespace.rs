//! A network namespace with its own host name: created, entered, and removed when it is dropped.
//!
//! A holder process keeps it: it reads from a pipe of the test process, and ends with that process in any
//! case. The namespace ends with the last process in it.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context as _, ensure};
use rustix::system::sethostname;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Reports that the namespace is ready, and waits for the end of its input.
const HOLDER: &str = "ip link set lo up && echo ready && exec cat > /dev/null";

/// A namespace and its holder process.
#[derive(Debug)]
pub(super) struct Namespace {
    holder: Child,
    pipe: Option<ChildStdin>,
}

impl Namespace {
    /// Creates a namespace with only the loopback interface.
    pub(super) fn create(host_name: &str) -> anyhow::Result<Namespace> {
        let mut holder = Command::new("unshare")
            .args(["--net", "--uts", "--", "sh", "-c", HOLDER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("cannot start unshare")?;
        let pipe = holder.stdin.take();
        let output = holder.stdout.take().context("its output is a pipe")?;
        let namespace = Namespace { holder, pipe };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(
            line.trim_end() == "ready",
            "the namespace of {host_name} could not be made"
        );
        let (holder, name) = (namespace.holder(), host_name.to_owned());
        Namespace::inside(holder, move || {
            let namespace = File::open(format!("/proc/{holder}/ns/uts"))?;
            move_into_link_name_space(namespace.as_fd(), None)?;
            Ok(sethostname(name.as_bytes())?)
        })
        .with_context(|| format!("cannot name the host {host_name}"))?;
        Ok(namespace)
    }

    /// Id of the holder process, through which other processes enter the namespace.
    pub(super) fn holder(&self) -> u32 {
        self.holder.id()
    }

    /// The command that enters it and executes the program that follows.
    pub(super) fn entrance(&self) -> Vec<String> {
        let holder = self.holder().to_string();
        ["nsenter", "--target", &holder, "--net", "--uts", "--"]
            .map(str::to_owned)
            .to_vec()
    }

    /// Runs lines of `ip` in the namespace.
    pub(super) fn ip(&self, lines: &str) -> anyhow::Result<()> {
        let entrance = self.entrance();
        let mut command = Command::new(&entrance[0]);
        command.args(&entrance[1..]).arg("ip");
        ip_batch(command, lines)
    }

    /// Runs `open` inside: a socket stays in the namespace in which its thread created it.
    pub(super) fn inside<T: Send + 'static>(
        holder: u32,
        open: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        // Only this thread changes its namespace, and it ends here.
        let thread = std::thread::spawn(move || {
            let namespace = File::open(format!("/proc/{holder}/ns/net"))?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            open()
        });
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread inside panicked")))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.pipe = None;
        let _ = self.holder.wait();
    }
}

/// Runs lines of `ip` in the namespace of this process.
pub(super) fn ip_here(lines: &str) -> anyhow::Result<()> {
    ip_batch(Command::new("ip"), lines)
}

fn ip_batch(mut command: Command, lines: &str) -> anyhow::Result<()> {
    let mut child = command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start ip")?;
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(lines.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "ip refused one of these lines: {}\n{lines}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

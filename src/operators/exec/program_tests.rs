//! Programs whose supervisor does not do its work: everything that was created for them is still removed. Files
//! act as supervisors, and directories as control groups where the kernel's are not needed.

use std::collections::BTreeMap;
use std::fs;
use std::future::poll_fn;
use std::path::Path;

use tanist_model::ExecLimits;

use super::*;

/// A control group without limits beside those of this process, if the host allows it. The caller removes it.
fn group_of_this_host() -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let name = format!("tanist-test-{:016x}", rand::random::<u64>());
    let group = Path::new("/sys/fs/cgroup").join(own).join(name);
    std::fs::create_dir(&group).ok()?;
    Some(group)
}

/// What was created for one program.
struct Made {
    root: tempfile::TempDir,
    directory: PathBuf,
    group: PathBuf,
}

impl Made {
    fn new() -> Made {
        let root = tempfile::tempdir().expect("a directory");
        let group = root.path().join("group");
        // With files in it, as the kernel's control groups have.
        fs::create_dir_all(group.join("below")).expect("made");
        fs::write(group.join("cgroup.procs"), "").expect("written");
        Made::with_group(root, group)
    }

    fn with_group(root: tempfile::TempDir, group: PathBuf) -> Made {
        let directory = root.path().join("directory");
        fs::create_dir_all(&directory).expect("made");
        fs::write(directory.join("file"), "").expect("written");
        Made {
            root,
            directory,
            group,
        }
    }

    fn start(&self, binary: &Path) -> io::Result<Program> {
        let request = Request {
            command: vec!["true".to_owned()],
            env: BTreeMap::new(),
            directory: self.directory.clone(),
            limits: ExecLimits::default(),
            group: Some(self.group.clone()),
            umask: None,
            grace_ms: 0,
            ends_ms: None,
        };
        let mut sandbox = Sandbox::new(self.directory.clone());
        sandbox.own_group(self.group.clone());
        let around = Environment {
            binary: binary.to_owned(),
            sandbox,
            labels: Labels {
                job: "job".to_owned(),
                vertex: "vertex".to_owned(),
                subtask: 0,
                attempt: 1,
            },
            end_guard: crate::testing::context(0, 1).end_guard,
            logs_output: true,
            lease: None,
        };
        Program::start(&request, around)
    }

    fn check_gone(&self) {
        assert!(!self.group.exists(), "the control group is left");
        assert!(!self.directory.exists(), "the directory is left");
    }
}

/// Returns why a program failed.
async fn cause(mut program: Program) -> String {
    let ended = poll_fn(|cx| program.poll_ended(cx).map_or(Poll::Pending, Poll::Ready));
    let ended = timeout(Duration::from_secs(60), ended).await;
    let ended = ended.expect("it takes no minute");
    ended.expect_err("it never ran").to_string()
}

#[tokio::test]
async fn of_a_program_that_can_t_be_started_neither_directory_nor_control_group_is_left() {
    let made = Made::new();
    let error = made.start(Path::new("/nowhere/tanist"));
    assert_eq!(
        error.err().map(|error| error.kind()),
        Some(io::ErrorKind::NotFound)
    );
    made.check_gone();
}

#[tokio::test]
async fn of_a_program_whose_supervisor_is_none_neither_directory_nor_control_group_is_left() {
    let made = Made::new();
    let program = made.start(Path::new("true")).expect("it can be executed");
    let cause = cause(program).await;
    assert!(cause.contains("this binary does not know how"), "{cause}");
    made.check_gone();
}

/// The process has left the session and lost its subreaper: only the control group still contains it.
#[tokio::test]
async fn what_a_lost_supervisor_leaves_in_the_control_group_is_gone_before_the_program_counts_as_ended()
 {
    let Some(group) = group_of_this_host() else {
        eprintln!("this host lets this process make no control group");
        return;
    };
    let made = Made::with_group(tempfile::tempdir().expect("a directory"), group);
    let supervisor = made.root.path().join("supervisor");
    let script = format!(
        "#!/bin/sh\n\
         echo '\"Hello\"' >&0\n\
         setsid sh -c 'echo $$ > {group}/cgroup.procs && exec sleep 100' &\n\
         until grep -q . {group}/cgroup.procs; do sleep 0.01; done\n",
        group = made.group.display()
    );
    // Written by another process: another test here may be forking and inherit the file open for writing, and
    // then it could not be executed.
    let written = Command::new("sh")
        .args(["-c", "printf %s \"$1\" > \"$0\" && chmod 700 \"$0\""])
        .arg(&supervisor)
        .arg(&script)
        .status();
    assert!(written.expect("a shell").success());
    let program = made.start(&supervisor).expect("it can be executed");
    let cause = cause(program).await;
    assert!(
        cause.contains("supervisor ended without a report"),
        "{cause}"
    );
    // The kernel removes no control group in which a process runs.
    made.check_gone();
}

/// The supervisor was stopped by its program while the lease was extended.
#[tokio::test(start_paused = true)]
async fn a_supervisor_that_reads_nothing_is_overdue_although_its_socket_is_full() {
    let (control, mut supervisor) = UnixStream::pair().expect("a pair");
    let hello = supervisor.write_all(b"\"Hello\"\n").await;
    hello.expect("there is room");
    let (ends, lease) = watch::channel(0);
    let cancel = CancellationToken::new();
    let link = SupervisorLink {
        supervisor: None,
        cancel: &cancel,
        grace: Duration::ZERO,
        lease: Some(lease),
    };
    let extending = async {
        for ends_ms in 1..=10_000 {
            ends.send_replace(ends_ms);
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    };
    let following = timeout(Duration::from_secs(60), link.follow(control));
    let (ended, ()) = tokio::join!(following, extending);
    assert!(matches!(ended, Ok(Err(Lost::Overdue))));
}

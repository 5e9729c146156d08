//! Leading processes that are killed or stopped; they are children of the tests.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;

const CHILD_DIR: &str = "TANIST_TEST_EMBEDDED_DIR";
const CHILD_ROLE: &str = "TANIST_TEST_EMBEDDED_ROLE";

/// A child process, killed when dropped.
struct Kid(Child);

impl Drop for Kid {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_child(dir: &Path, role: &str) -> Kid {
    let binary = std::env::current_exe().expect("the test binary has a path");
    let name = "embedded::tests::deaths::a_child_that_other_tests_start";
    let mut child = Command::new(binary)
        .args([name, "--exact", "--ignored", "--nocapture"])
        .env(CHILD_DIR, dir)
        .env(CHILD_ROLE, role)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let kid = Kid(child);
    let ready = stdout
        .lines()
        .map_while(|line| line.ok())
        .any(|line| line.ends_with("child ready"));
    assert!(ready, "the child ended before it was ready");
    kid
}

#[tokio::test]
#[ignore = "it is no test: other tests start it as a child process"]
async fn a_child_that_other_tests_start() {
    let dir = std::env::var(CHILD_DIR).expect("started by another test");
    let role = std::env::var(CHILD_ROLE).expect("started by another test");
    let leader = election(Path::new(&dir), "child").await;
    if role != "stands by and locks" {
        take(&leader, "child").await;
    }
    let connection = rusqlite::Connection::open(Path::new(&dir).join("tanist.db")).expect("opened");
    if role.ends_with("locks") {
        connection
            .execute_batch("begin immediate")
            .expect("the write lock");
    }
    println!("child ready");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn the_death_of_a_leading_process_is_seen_and_it_is_deposed() {
    let dir = directory();
    let mut child = start_child(dir.path(), "leads");
    let standby = election(dir.path(), "standby").await;
    let store = store(dir.path()).await;
    observe(&standby, "the leading child", |view| view.leader.is_some()).await;
    child.0.kill().expect("killed");
    let killed = Instant::now();
    let view = observe(&standby, "its death", |view| view.leader.is_none()).await;
    println!("seen dead after {:?}", killed.elapsed());
    let (dead, _) = view.epoch.expect("it led");
    let fence = take(&standby, "standby").await;
    assert_eq!(fence.epoch, dead.epoch.next());
    let request = put(&fence, Change::default(), "x", Bytes::new());
    assert_eq!(verdict(&store, &request).await, None);
}

#[tokio::test]
async fn a_leader_stopped_inside_a_commit_is_killed_by_its_deposer() {
    let dir = directory();
    let mut child = start_child(dir.path(), "locks");
    let standby = election(dir.path(), "standby").await;
    let pid = rustix::process::Pid::from_child(&child.0);
    // It is not stopped and may continue, so it is not killed.
    let error = try_take(&standby, "standby")
        .await
        .expect_err("the write lock is busy");
    assert_eq!(error.outcome(), Outcome::Transient, "{error}");
    assert!(child.0.try_wait().expect("its status").is_none());
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    // Patient, so that it must kill the holder before its write times out.
    let options = EmbeddedOptions {
        busy_timeout: Duration::from_hours(1),
        ..EmbeddedOptions::new(dir.path())
    };
    let patient = open_election(options, process("patient"), true, Clock::Boottime)
        .await
        .expect("opened");
    let fence = timeout(Duration::from_secs(20), take(&patient, "patient"))
        .await
        .expect("long before the write times out");
    assert!(
        child.0.wait().expect("its status").code().is_none(),
        "ended by a signal"
    );
    let view = patient.read().await.expect("read");
    assert_eq!(view.leader.map(|leader| leader.epoch), Some(fence.epoch));
}

#[tokio::test]
async fn a_standby_stopped_inside_a_write_is_killed_by_the_leader_whose_commit_it_holds_up() {
    let dir = directory();
    let leader = election(dir.path(), "leader").await;
    let store = store(dir.path()).await;
    let fence = take(&leader, "leader").await;
    let mut child = start_child(dir.path(), "stands by and locks");
    let pid = rustix::process::Pid::from_child(&child.0);
    let request = put(&fence, Change::default(), "x", Bytes::new());
    // It is not stopped and may continue, so it is not killed.
    let error = store.commit(&request).await.expect_err("it is busy");
    assert_eq!(error.outcome(), Outcome::Transient, "{error}");
    assert!(child.0.try_wait().expect("its status").is_none());
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    assert_eq!(verdict(&store, &request).await, None);
    assert!(
        child.0.wait().expect("its status").code().is_none(),
        "ended by a signal"
    );
}

#[tokio::test]
async fn a_process_that_restarts_gets_its_file_and_its_earlier_start_counts_as_dead() {
    let dir = directory();
    let mut child = start_child(dir.path(), "leads");
    let observer = open_election(
        EmbeddedOptions::new(dir.path()),
        process("observer"),
        false,
        Clock::Boottime,
    );
    let observer = observer.await.expect("opened");
    observe(&observer, "the leading child", |view| view.leader.is_some()).await;
    let options = EmbeddedOptions::new(dir.path());
    let error = open_election(options, process("child"), true, Clock::Boottime).await;
    let error = error.expect_err("the child lives").to_string();
    assert!(error.contains(&format!("pid {}", child.0.id())), "{error}");
    child.0.kill().expect("killed");
    child.0.wait().expect("it has ended, and holds no lock");
    let restarted = election(dir.path(), "child").await;
    let view = observe(&observer, "its death", |view| view.leader.is_none()).await;
    assert!(view.epoch.is_some());
    take(&restarted, "child").await;
    let view = observe(&observer, "the restarted one", |view| view.leader.is_some()).await;
    assert_eq!(
        view.leader.map(|leader| leader.process),
        Some(process("child"))
    );
    assert!(matches!(
        try_take_as_observer(&observer).await,
        Err(Error::SessionLost)
    ));
}

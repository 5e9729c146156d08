//! Decisions about whether groups can be used, on simulated trees; and the real behaviour on this host.

use std::process::{Command, Stdio};

use super::*;

/// A tree of files that looks like control groups; this process is in `service`.
struct Tree {
    directory: tempfile::TempDir,
}

impl Tree {
    fn with_controllers(controllers: &str) -> Tree {
        let directory = tempfile::tempdir().expect("a directory");
        let service = directory.path().join("service");
        fs::create_dir(&service).expect("made");
        for (file, text) in [
            ("cgroup.controllers", controllers),
            ("cgroup.subtree_control", ""),
            ("cgroup.type", "domain\n"),
            ("cgroup.procs", ""),
        ] {
            fs::write(service.join(file), text).expect("written");
        }
        fs::write(directory.path().join("cgroup.procs"), "").expect("written");
        Tree { directory }
    }

    fn facts(&self, membership: &str) -> Facts {
        let mount = self.directory.path().display();
        Facts {
            mounts: format!(
                "22 28 0:20 / /proc rw - proc proc rw\n33 24 0:28 / {mount} rw,relatime - cgroup2 cgroup2 rw\n"
            ),
            membership: format!("1:cpu:/x\n0::{membership}\n"),
        }
    }

    fn read(&self, file: &str) -> String {
        let path = self.directory.path().join("service").join(file);
        fs::read_to_string(path).unwrap_or_default()
    }
}

#[test]
fn a_process_moves_below_its_own_group_and_makes_others_beside_it() {
    let tree = Tree::with_controllers("cpuset cpu io memory pids\n");
    let claimed = ControlGroups::claim_by(&tree.facts("/service"), None, getpid());
    let groups = claimed.expect("delegated");
    let pid = getpid().as_raw_pid().to_string();
    assert_eq!(tree.read("tanist-processes/cgroup.procs"), pid);
    assert_eq!(tree.read("cgroup.subtree_control"), "+memory +cpu +pids");
    // The result is the same from the child group.
    let again = tree.facts("/service/tanist-processes");
    assert_eq!(
        ControlGroups::claim_by(&again, None, getpid()).as_ref(),
        Ok(&groups)
    );
    let limits = GroupLimits {
        memory: Some(1 << 20),
        cpu_millis: Some(1500),
        processes: Some(7),
    };
    let group = groups.make("program-1", &limits).expect("made");
    let name = format!("tanist-{pid}-program-1");
    assert!(group.ends_with(&name), "{group:?}");
    let limit = |file: &str| tree.read(&format!("{name}/{file}"));
    assert_eq!(limit("memory.max"), "1048576");
    assert_eq!(limit("cpu.max"), "150000 100000");
    assert_eq!(limit("pids.max"), "7");
    fs::write(group.join("memory.events"), "max 3\noom_kill 0\n").expect("written");
    assert!(!was_out_of_memory(&group));
    fs::write(group.join("memory.events"), "max 3\noom_kill 1\n").expect("written");
    assert!(was_out_of_memory(&group));
}

#[test]
fn groups_of_processes_that_died_are_removed_and_those_of_others_stay() {
    let tree = Tree::with_controllers("cpu memory pids");
    let at = tree.directory.path().join("service");
    let own = format!("tanist-{}-program-1", std::process::id());
    // No process has this id.
    let (gone, other) = ("tanist-4294967295-program-1", "somebody-elses");
    for name in [own.as_str(), gone, other, OWN_LEAF] {
        fs::create_dir(at.join(name)).expect("made");
    }
    let claimed = ControlGroups::claim_by(&tree.facts("/"), Some(&at), getpid());
    assert!(claimed.is_ok(), "{claimed:?}");
    let is_there = |name: &str| at.join(name).exists();
    assert!(is_there(&own) && is_there(other) && is_there(OWN_LEAF));
    assert!(!is_there(gone));
}

#[test]
fn a_group_is_removed_with_those_below_it() {
    let tree = Tree::with_controllers("cpu memory pids");
    let at = tree.directory.path().join("service");
    let groups = ControlGroups::claim_by(&tree.facts("/"), Some(&at), getpid()).expect("claimed");
    let group = groups.make("worker-1", &GroupLimits::default());
    let group = group.expect("made");
    fs::create_dir_all(group.join("tanist-1-program-1/its-own")).expect("made");
    fs::create_dir(group.join(OWN_LEAF)).expect("made");
    remove(&group).expect("removed");
    assert!(!group.exists());
    remove(&group).expect("there is nothing to be done");
    assert!(at.exists());
}

#[test]
fn what_a_dead_process_left_is_removed_with_all_below_it_unless_something_runs_there() {
    let tree = Tree::with_controllers("cpu memory pids");
    let at = tree.directory.path().join("service");
    let left = |name: &str, populated: &str| {
        let group = at.join(format!("tanist-4294967295-{name}"));
        fs::create_dir_all(group.join(OWN_LEAF)).expect("made");
        fs::create_dir_all(group.join("tanist-4294967294-program-1")).expect("made");
        let events = format!("populated {populated}\nfrozen 0\n");
        fs::write(group.join("cgroup.events"), events).expect("written");
        group
    };
    let (dead, alive) = (left("worker-1", "0"), left("worker-2", "1"));
    let claimed = ControlGroups::claim_by(&tree.facts("/"), Some(&at), getpid());
    assert!(claimed.is_ok(), "{claimed:?}");
    assert!(!dead.exists());
    let below = fs::read_dir(&alive).expect("it is there").count();
    assert_eq!(below, 3, "nothing of it is touched");
}

#[test]
fn a_group_that_was_named_is_used_as_it_is() {
    let tree = Tree::with_controllers("cpu memory pids");
    let at = tree.directory.path().join("service");
    let claimed = ControlGroups::claim_by(&tree.facts("/elsewhere"), Some(&at), getpid());
    assert!(claimed.is_ok(), "{claimed:?}");
    assert_eq!(
        tree.read("tanist-processes/cgroup.procs"),
        "",
        "it stays where it is"
    );
}

#[test]
fn a_group_that_nothing_can_be_moved_to_from_here_is_refused() {
    let tree = Tree::with_controllers("cpu memory pids");
    let at = tree.directory.path().join("service");
    let above = tree.directory.path().join("cgroup.procs");
    // No process can write to a directory, not even root.
    fs::remove_file(&above).expect("removed");
    fs::create_dir(&above).expect("made");
    let claim = |own: &str| ControlGroups::claim_by(&tree.facts(own), Some(&at), getpid());
    for elsewhere in ["/", "/elsewhere", "/service-2"] {
        let reason = claim(elsewhere).expect_err("refused");
        assert!(reason.contains(&*above.to_string_lossy()), "{reason}");
    }
    assert_eq!(
        tree.read("cgroup.subtree_control"),
        "",
        "nothing was changed"
    );
    for within in ["/service", "/service/its-own"] {
        let claimed = claim(within);
        assert!(claimed.is_ok(), "{within}: {claimed:?}");
    }
}

#[test]
fn a_group_in_which_none_can_be_made_is_refused() {
    let tree = Tree::with_controllers("cpu memory pids");
    let at = tree.directory.path().join("service");
    // The existing file is no group.
    let taken = format!("{PREFIX}{}-{PROBE}", std::process::id());
    fs::write(at.join(taken), "").expect("written");
    let claimed = ControlGroups::claim_by(&tree.facts("/"), Some(&at), getpid());
    let reason = claimed.expect_err("refused");
    assert!(reason.contains("no control group can be made"), "{reason}");
}

#[test]
fn why_there_are_no_groups_is_said() {
    let tree = Tree::with_controllers("cpuset cpu\n");
    let refused = |facts: &Facts, at: Option<&Path>| {
        ControlGroups::claim_by(facts, at, getpid()).expect_err("refused")
    };
    let reason = refused(&tree.facts("/service"), None);
    assert!(
        reason.contains("lacks the controllers memory, pids"),
        "{reason}"
    );
    assert_eq!(
        tree.read("cgroup.subtree_control"),
        "",
        "nothing was changed"
    );
    let reason = refused(&tree.facts("/service"), Some(Path::new("/nowhere")));
    assert!(reason.contains("/nowhere is no control group"), "{reason}");
    let none = Facts {
        mounts: String::new(),
        membership: "0::/".to_owned(),
    };
    let reason = refused(&none, None);
    assert!(
        reason.contains("no control groups of version 2"),
        "{reason}"
    );
}

/// On a host that delegates groups the limits apply; on any other host the error says why.
#[test]
fn on_this_host_groups_hold_what_they_are_to_or_the_reason_is_told() {
    let groups = match ControlGroups::claim(None) {
        Ok(groups) => groups,
        Err(reason) => {
            assert!(reason.contains("control group"), "{reason}");
            return;
        }
    };
    let limits = GroupLimits {
        memory: Some(64 << 20),
        cpu_millis: None,
        processes: Some(3),
    };
    let name = format!("test-{:016x}", rand::random::<u64>());
    let group = groups.make(&name, &limits).expect("made");
    let mut child = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::null())
        .spawn()
        .expect("started");
    enter(&group, Pid::from_child(&child)).expect("entered");
    let max = fs::read_to_string(group.join("memory.max")).expect("readable");
    assert_eq!(max.trim(), (64 << 20).to_string());
    let inside = fs::read_to_string(group.join("cgroup.procs")).expect("readable");
    assert!(inside.contains(&child.id().to_string()), "{inside}");
    child.kill().expect("killed");
    child.wait().expect("reaped");
    remove(&group).expect("removed");
    assert!(!group.exists());
}

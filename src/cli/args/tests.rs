//! What a command line means, and what is refused.

use clap::CommandFactory as _;

use std::num::NonZeroU64;

use super::*;

fn parse(arguments: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("tanist").chain(arguments.iter().copied()))
}

#[test]
fn settings_count_before_and_after_a_command() {
    let overrides = |line: &str| {
        let arguments = line.split(' ').map(OsString::from);
        let cli = Cli::try_parse_from(overrides_first(arguments));
        cli.map(|cli| cli.global.overrides)
    };
    let all = ["a=1", "b=2", "c=3"];
    assert_eq!(
        overrides("tanist -D a=1 config -Db=2 -D c=3").ok(),
        Some(all.map(str::to_owned).to_vec())
    );
    assert_eq!(overrides("tanist config").ok(), Some(Vec::new()));
    let error = overrides("tanist config -D").expect_err("it has no value");
    assert!(error.to_string().contains("KEY=VALUE"), "{error}");
    let of_another = ["program", "-D", "a=1", "--", "-D", "b=2"].map(OsString::from);
    let sorted = overrides_first(of_another.clone());
    assert_eq!(sorted, of_another);
}

#[test]
fn the_definition_of_the_arguments_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn everything_about_a_run_is_read() -> Result<(), clap::Error> {
    let id = "0123456789abcdef0123456789abcdef";
    let cli = parse(&[
        "run",
        "job.yaml",
        "--detached",
        "--job-id",
        id,
        "--param",
        "input=a=b",
        "--param",
        "empty=",
        "--parallelism",
        "3",
        "-Drest.port=1",
        "-D",
        "client.timeout=5 s",
        "--address",
        "a:1,http://b:2/",
        "-o",
        "json",
    ])?;
    assert_eq!(cli.global.overrides, ["rest.port=1", "client.timeout=5 s"]);
    assert_eq!(cli.global.address, ["a:1", "b:2"]);
    assert_eq!(cli.global.output, OutputFormat::Json);
    let Command::Run(run) = cli.command else {
        panic!("it is a run: {:?}", cli.command);
    };
    assert!(run.detached);
    assert_eq!(run.job_id.map(|id| id.to_string()).as_deref(), Some(id));
    assert_eq!(run.job.parallelism, Some(3));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        run.job.parameters,
        [pair("input", "a=b"), pair("empty", "")]
    );
    Ok(())
}

#[test]
fn global_arguments_may_stand_before_the_command() -> Result<(), clap::Error> {
    let cli = parse(&["-D", "a=b", "--config", "x.yaml", "list"])?;
    assert_eq!(cli.global.overrides, ["a=b"]);
    assert_eq!(cli.global.config, Some(PathBuf::from("x.yaml")));
    assert!(matches!(cli.command, Command::List(_)));
    Ok(())
}

#[test]
fn high_availability_is_asked_about_with_a_command_of_its_own() -> Result<(), clap::Error> {
    let read = |arguments: &[&str]| match parse(arguments)?.command {
        Command::Ha(command) => Ok::<_, clap::Error>(command),
        other => panic!("{other:?}"),
    };
    assert_eq!(read(&["ha", "status"])?, HaCommand::Status);
    assert_eq!(read(&["ha", "history", "-o", "json"])?, HaCommand::History);
    let accept = |yes, force| HaCommand::Accept { yes, force };
    assert_eq!(read(&["ha", "accept"])?, accept(false, false));
    let forced = read(&["ha", "accept", "--yes", "--force"])?;
    assert_eq!(forced, accept(true, true));
    read(&["ha", "accept", "--force"]).expect_err("nothing is forced that is not done");
    let to = |to: Option<&str>| HaCommand::Transfer {
        to: to.map(str::to_owned),
    };
    assert_eq!(read(&["ha", "transfer"])?, to(None));
    let named = read(&["ha", "transfer", "--to", "jm-2"])?;
    assert_eq!(named, to(Some("jm-2")));
    Ok(())
}

#[test]
fn quarantined_jobs_are_listed_retried_and_deleted() -> Result<(), clap::Error> {
    let read = |arguments: &[&str]| match parse(arguments)?.command {
        Command::Job(JobCommand::Quarantine(command)) => Ok::<_, clap::Error>(command),
        other => panic!("{other:?}"),
    };
    let id = "0123456789abcdef0123456789abcdef";
    let job = id.parse().expect("an id");
    let listed = read(&["job", "quarantine", "list"])?;
    assert_eq!(listed, QuarantineCommand::List);
    let retried = read(&["job", "quarantine", "retry", id])?;
    let retry = |from_checkpoint, accept_duplicates| QuarantineCommand::Retry {
        job,
        from_checkpoint,
        accept_duplicates,
    };
    assert_eq!(retried, retry(None, false));
    let number = NonZeroU64::new(7);
    let back = ["job", "quarantine", "retry", id, "--from-checkpoint", "7"];
    assert_eq!(read(&back)?, retry(number, false));
    let accepted = [&back[..], &["--accept-duplicates"]].concat();
    assert_eq!(read(&accepted)?, retry(number, true));
    let alone = ["job", "quarantine", "retry", id, "--accept-duplicates"];
    assert!(read(&alone).is_err());
    let deleted = read(&["job", "quarantine", "delete", id])?;
    assert_eq!(deleted, QuarantineCommand::Delete { job });
    Ok(())
}

#[test]
fn what_runs_is_asked_for_by_job_and_vertex() -> Result<(), clap::Error> {
    let id = "0123456789abcdef0123456789abcdef";
    let job: JobId = id.parse().expect("an id");
    let read = |arguments: &[&str]| match parse(arguments)?.command {
        Command::Job(command) => Ok::<_, clap::Error>(command),
        other => panic!("{other:?}"),
    };
    let all = read(&["job", "subtasks", id])?;
    assert_eq!(all, JobCommand::Subtasks { job, vertex: None });
    let of_one = read(&["job", "subtasks", id, "counts -> out"])?;
    let vertex = Some("counts -> out".to_owned());
    assert_eq!(of_one, JobCommand::Subtasks { job, vertex });
    let failures = read(&["job", "exceptions", id, "-o", "json"])?;
    assert_eq!(failures, JobCommand::Exceptions { job });
    let Command::Taskmanager { command } = parse(&["taskmanager", "list"])?.command else {
        panic!("it is about TaskManagers");
    };
    assert_eq!(command, Some(TaskManagerCommand::List));
    Ok(())
}

#[test]
fn a_job_is_stopped_with_one_word() -> Result<(), clap::Error> {
    let id = "0123456789abcdef0123456789abcdef";
    let wanted: JobId = id.parse().expect("an id");
    let short = parse(&["stop", id])?.command;
    let drained = |args: &StopArgs| args.job == wanted && args.savepoint().is_none();
    assert!(matches!(short, Command::Stop(args) if drained(&args)));
    let long = parse(&["job", "stop", id])?.command;
    assert!(matches!(long, Command::Job(JobCommand::Stop(args)) if drained(&args)));
    let said = parse(&["stop", "--drain", id])?.command;
    assert!(matches!(said, Command::Stop(args) if drained(&args)));
    assert!(parse(&["stop", "--drain", "--savepoint", id]).is_err());
    Ok(())
}

#[test]
fn a_job_is_stopped_with_a_savepoint_in_a_directory_or_in_the_configured_one()
-> Result<(), clap::Error> {
    let id = "0123456789abcdef0123456789abcdef";
    let read = |arguments: &[&str]| match parse(arguments)?.command {
        Command::Stop(args) => Ok::<_, clap::Error>(args),
        other => panic!("{other:?}"),
    };
    let configured = read(&["stop", "--savepoint", id])?;
    assert_eq!(configured.savepoint(), Some(None));
    let named = read(&["stop", id, "--savepoint=/savepoints", "--detached"])?;
    let directory = named.savepoint().flatten().map(|it| it.to_string());
    assert_eq!(directory.as_deref(), Some("/savepoints"));
    assert!(named.detached);
    for wrong in [
        &["stop", id, "--savepoint=relative"][..],
        &["stop", id, "--savepoint="],
        &["stop", id, "--detached"],
    ] {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
    Ok(())
}

#[test]
fn a_savepoint_is_taken_inspected_and_disposed_of() -> Result<(), clap::Error> {
    let id = "0123456789abcdef0123456789abcdef";
    let read = |arguments: &[&str]| match parse(arguments)?.command {
        Command::Savepoint(args) => Ok::<_, clap::Error>(args),
        other => panic!("{other:?}"),
    };
    let taken = read(&["savepoint", id, "s3://bucket/savepoints", "-d"])?;
    assert_eq!(
        taken.job.map(|job| job.to_string()).as_deref(),
        Some(id),
        "{taken:?}"
    );
    let directory = taken.directory.map(|it| it.to_string());
    assert_eq!(directory.as_deref(), Some("s3://bucket/savepoints"));
    assert!(taken.detached);
    let inspected = read(&["savepoint", "inspect", "a", "--verify", "-o", "json"])?;
    let expected = SavepointCommand::Inspect {
        path: "a".to_owned(),
        verify: true,
    };
    assert_eq!((inspected.command, inspected.job), (Some(expected), None));
    let disposed = read(&["savepoint", "dispose", "/a", "--without-cluster"])?;
    let Some(SavepointCommand::Dispose {
        path,
        without_cluster,
    }) = disposed.command
    else {
        panic!("{disposed:?}")
    };
    assert_eq!((path.to_string().as_str(), without_cluster), ("/a", true));
    for wrong in [
        &["savepoint"][..],
        &["savepoint", id, "relative"],
        &["savepoint", id, ""],
        &["savepoint", "inspect"],
        &["savepoint", "dispose", "relative"],
    ] {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
    Ok(())
}

#[test]
fn a_job_begins_from_a_savepoint_or_from_another_job() -> Result<(), clap::Error> {
    let id = "0123456789abcdef0123456789abcdef";
    let of_job = format!("job:{id}");
    for (from, is_allowed) in [("/savepoints/a", false), (&of_job, true)] {
        let mut arguments = vec!["run", "f", "--from-savepoint", from];
        if is_allowed {
            arguments.push("--allow-non-restored-state");
        }
        let Command::Run(args) = parse(&arguments)?.command else {
            panic!("it is `run`")
        };
        let read = args.restore.from_savepoint.map(|it| it.to_string());
        assert_eq!(read.as_deref(), Some(from));
        assert_eq!(args.restore.allow_non_restored_state, is_allowed);
    }
    assert!(parse(&["local", "f", "--from-savepoint", "/a"]).is_ok());
    for wrong in ["relative", "job:1", ""] {
        assert!(
            parse(&["run", "f", "--from-savepoint", wrong]).is_err(),
            "{wrong}"
        );
    }
    Ok(())
}

#[test]
fn what_makes_no_sense_is_refused() {
    for wrong in [
        &["run"][..],
        &["run", "f", "--param", "novalue"],
        &["run", "f", "--parallelism", "0"],
        &["run", "f", "--job-id", "xyz"],
        &["info", "xyz"],
        &["list", "--state", "flying"],
        &["list", "--address", "host"],
        &["list", "--address", "host:0"],
        &["ha"],
        &["job", "quarantine", "retry"],
        &["ha", "transfer", "jm-2"],
        &["fly"],
        &[],
    ] {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
}

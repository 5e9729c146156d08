//! The command line arguments, as clap reads them.

use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tanist_config::{ClaimMode, ExecutionTarget, RestoreFrom, StorageLocation, parse_duration};
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::v1::JobStatus;
use tanist_telemetry::VERSION_AND_REVISION;

const EXIT_STATUS: &str = "\
Exit status: 0 done, and the job FINISHED if it was waited for; 1 refused; 2 wrong command line; 3 wrong job file; \
4 the job FAILED; 5 the job was CANCELED; 6 no JobManager answered; 7 the job is quarantined, and goes on; \
10, 11, 13 not started: configuration, port, directory; 20 fatal error; 21 refused permanently; \
22 shut down before cleaning up; 130, 143 interrupted by ^C, SIGTERM: what was accepted goes on.";

/// A cluster runtime for job graphs whose control plane does not go down.
#[derive(Debug, Parser)]
#[command(name = "tanist", version = VERSION_AND_REVISION, after_help = EXIT_STATUS)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) global: GlobalArgs,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Options of all commands.
#[derive(Debug, Args)]
pub(super) struct GlobalArgs {
    /// Sets an option of the configuration; overrides file and environment
    #[arg(short = 'D', global = true, value_name = "KEY=VALUE")]
    pub(super) overrides: Vec<String>,
    /// The configuration file; default: tanist.yaml in $TANIST_CONF_DIR
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// REST addresses of JobManagers; default: rest.address and rest.port, or the leader that the store names
    #[arg(long, global = true, value_name = "HOST:PORT", value_delimiter = ',', value_parser = rest_address)]
    pub(super) address: Vec<String>,
    /// Format of answers
    #[arg(short, long, global = true, value_enum, default_value_t = OutputFormat::Table)]
    pub(super) output: OutputFormat,
}

/// The format of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// For people.
    Table,
    /// The JSON of the REST server.
    Json,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Starts a JobManager: it leads the cluster or stands by
    Jobmanager,
    /// Starts a TaskManager: it runs tasks in its slots
    Taskmanager {
        /// Subcommand; without it a TaskManager is started
        #[command(subcommand)]
        command: Option<TaskManagerCommand>,
    },
    /// Runs a job in a cluster of its own that ends with it
    Local(LocalArgs),
    /// Submits a job and waits for its end
    Run(RunArgs),
    /// Shows the plan of a job file: steps, columns, vertices, exchanges and slots; needs no cluster
    Plan(JobArgs),
    /// Lists all jobs, running and ended, newest first
    List(ListArgs),
    /// Shows a job with its vertices
    Info {
        /// The job's id
        job: JobId,
    },
    /// Shows the last checkpoints and savepoints of a job, and the regions without checkpoints
    Checkpoints {
        /// The job's id
        job: JobId,
    },
    /// Cancels a job
    Cancel {
        /// The job's id
        job: JobId,
    },
    /// Stops a job: its sources end, and it finishes with what they have read
    Stop(StopArgs),
    /// Takes a savepoint of a job and prints its path, or shows or removes a savepoint
    Savepoint(SavepointArgs),
    /// Manage jobs
    #[command(subcommand)]
    Job(JobCommand),
    /// Show and transfer leadership
    #[command(subcommand)]
    Ha(HaCommand),
    /// Shows the configuration in effect and where each value comes from
    Config,
}

/// Commands about jobs.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(super) enum JobCommand {
    /// Lists all jobs, running and ended, newest first
    List(ListArgs),
    /// Shows a job with its vertices, and the reason if it does not run
    Describe {
        /// The job's id
        job: JobId,
    },
    /// Shows the history of a job: statuses, restarts and their causes, changes of the leader
    Events {
        /// The job's id
        job: JobId,
        /// Also shows the states of its tasks, in their current attempts
        #[arg(long)]
        tasks: bool,
    },
    /// Shows the subtasks of a job: their states, start times and TaskManagers
    Subtasks {
        /// The job's id
        job: JobId,
        /// Only this vertex, by id, name or a step of it, as `info` shows them; default: all vertices
        vertex: Option<String>,
    },
    /// Shows the recorded failures of a job: when, which task, where and why
    Exceptions {
        /// The job's id
        job: JobId,
    },
    /// Cancels a job
    Cancel {
        /// The job's id
        job: JobId,
    },
    /// Stops a job: its sources end, and it finishes with what they have read
    Stop(StopArgs),
    /// Manage jobs that are quarantined because they can't be led
    #[command(subcommand)]
    Quarantine(QuarantineCommand),
}

/// What is stopped, and how.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(super) struct StopArgs {
    /// The job's id
    pub(super) job: JobId,
    /// Stops with a savepoint, from which another job can continue: waits for it and prints its path; directory as of
    /// `tanist savepoint`
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    savepoint: Option<Option<StorageLocation>>,
    /// What a stop without --savepoint does, in Flink's words: what the sources have read is processed, open windows
    /// are emitted, and nothing can continue from there
    #[arg(long, conflicts_with = "savepoint")]
    drain: bool,
    /// With --savepoint: prints the id of the request once it is accepted, and does not wait
    #[arg(short, long, requires = "savepoint")]
    pub(super) detached: bool,
}

impl StopArgs {
    /// The savepoint to stop with, perhaps with its directory. None: the job is drained.
    pub(super) fn savepoint(&self) -> Option<Option<&StorageLocation>> {
        let savepoint = self.savepoint.as_ref();
        savepoint.filter(|_| !self.drain).map(Option::as_ref)
    }
}

/// A savepoint that is taken, or a command about one that exists.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct SavepointArgs {
    #[command(subcommand)]
    pub(super) command: Option<SavepointCommand>,
    /// The job's id
    #[arg(required = true)]
    pub(super) job: Option<JobId>,
    /// The directory below which the savepoint gets a directory of its own: an absolute path or a URL; default:
    /// execution.checkpointing.savepoint-dir of the JobManagers
    #[arg(value_name = "DIR")]
    pub(super) directory: Option<StorageLocation>,
    /// Prints the id of the request once it is accepted, and does not wait
    #[arg(short, long)]
    pub(super) detached: bool,
}

/// Commands about a savepoint that exists.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(super) enum SavepointCommand {
    /// Shows what a savepoint holds; asks no JobManager
    Inspect {
        /// Its directory: a path or a URL
        path: String,
        /// Reads all of it, and compares checksums
        #[arg(long)]
        verify: bool,
    },
    /// Removes a savepoint, unless a job still needs it
    Dispose {
        /// Its directory: an absolute path or a URL
        path: StorageLocation,
        /// Asks no JobManager, and so does not know whether a job needs it
        #[arg(long)]
        without_cluster: bool,
    },
}

/// What a job begins from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(super) struct RestoreArgs {
    /// Begins from a savepoint, by its path, or from the retained checkpoint of an ended job, by `job:` and the job's
    /// id; default: execution.state-recovery.path, or else from the start
    #[arg(long, value_name = "PATH", value_parser = RestoreFrom::from_str)]
    pub(super) from_savepoint: Option<RestoreFrom>,
    /// Leaves out state that no step of the job has; without this the job is refused
    #[arg(long)]
    pub(super) allow_non_restored_state: bool,
    /// NO_CLAIM: what the job begins from stays as it is; CLAIM: a retained checkpoint is moved to the job; default:
    /// NO_CLAIM, or without --from-savepoint execution.state-recovery.claim-mode
    #[arg(long, value_name = "MODE", value_parser = ClaimMode::from_str)]
    pub(super) claim_mode: Option<ClaimMode>,
}

/// Commands about quarantined jobs.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(super) enum QuarantineCommand {
    /// Lists quarantined jobs, with reasons and evidence
    List,
    /// Reads a job again and, if that succeeds, leads it again
    Retry {
        /// The job's id
        job: JobId,
    },
    /// Cancels a job: its tasks end, and its data is removed
    Delete {
        /// The job's id
        job: JobId,
    },
}

/// Commands about high availability.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(super) enum HaCommand {
    /// Shows the leader, the state of the standbys, the store, and warnings
    Status,
    /// Lists the terms: leader, duration, and the phases of the takeover
    History,
    /// Makes the leader hand over to a standby, without waiting for a timeout
    Transfer {
        /// The JobManager that becomes leader; default: the most up-to-date standby
        #[arg(long, value_name = "PROCESS")]
        to: Option<String>,
    },
    /// Accepts a store that was restored or copied, or whose epoch was overwritten, as the cluster's store;
    /// asks no JobManager
    Accept {
        /// Accepts the store; without this only the changes are shown
        #[arg(long)]
        yes: bool,
        /// Accepts the store even if a JobManager leads in it; its term ends
        #[arg(long, requires = "yes")]
        force: bool,
    },
}

/// Commands about running TaskManagers.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(super) enum TaskManagerCommand {
    /// Lists TaskManagers: ids, addresses, free slots, and the progress of drains
    List,
    /// Drains TaskManagers: jobs get no more slots there, also after restarts; each TaskManager ends when
    /// nothing runs there any more
    Drain {
        #[command(flatten)]
        what: DrainedArgs,
        /// Moves running tasks as soon as there are slots for them elsewhere; without this they run to their end
        #[arg(long)]
        evict: bool,
        /// Moves the tasks that still run after this time, as in `30 min`
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        deadline: Option<Duration>,
        /// At the deadline also moves tasks for which there are no slots elsewhere: they stop and wait for slots
        #[arg(long, requires = "deadline")]
        force: bool,
        /// The reason, shown in the list
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Ends a drain: jobs get slots there again
    Undrain {
        #[command(flatten)]
        what: DrainedArgs,
    },
}

/// Selects TaskManagers.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[group(required = true, multiple = false)]
pub(super) struct DrainedArgs {
    /// Ids of TaskManagers
    #[arg(value_name = "TASKMANAGER")]
    pub(super) ids: Vec<ResourceId>,
    /// All TaskManagers of this host, as in their addresses, also those that start there later
    #[arg(long, value_name = "HOST")]
    pub(super) host: Option<String>,
}

/// Options for listing jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(super) struct ListArgs {
    /// Only jobs in these states: running, waiting, finished, failed ...
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = shown_state)]
    pub(super) state: Vec<String>,
    /// At most this number of jobs, newest first
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<usize>,
}

/// A job file and its parameters.
#[derive(Debug, Clone, Args)]
pub(super) struct JobArgs {
    /// The job file
    pub(super) file: PathBuf,
    /// A parameter of the job file
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = parameter)]
    pub(super) parameters: Vec<(String, String)>,
    /// The parallelism of steps that set none
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) parallelism: Option<u32>,
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) job: JobArgs,
    /// Prints the job's id once it is accepted, and does not wait for its end
    #[arg(short, long)]
    pub(super) detached: bool,
    /// The job's id: a job with this id is submitted only once, even if the command is repeated
    #[arg(long, value_name = "HEX")]
    pub(super) job_id: Option<JobId>,

    #[command(flatten)]
    pub(super) restore: RestoreArgs,

    /// Where the job runs: remote, local, per-job or application; default: execution.target, or else a running cluster
    #[arg(long, value_name = "TARGET", value_parser = ExecutionTarget::from_str)]
    pub(super) target: Option<ExecutionTarget>,

    /// With the target per-job: number of TaskManagers in this process; default: 1, or 0 if a driver starts
    /// them. With 0 and no driver other TaskManagers have to join
    #[arg(long, value_name = "N")]
    pub(super) taskmanagers: Option<u32>,

    /// Shows where the job goes, and why
    #[arg(short, long)]
    pub(super) verbose: bool,
}

#[derive(Debug, Args)]
pub(super) struct LocalArgs {
    #[command(flatten)]
    pub(super) job: JobArgs,
    #[command(flatten)]
    pub(super) restore: RestoreArgs,
    /// Not possible: the cluster ends with this command
    #[arg(short, long, hide = true)]
    pub(super) detached: bool,
}

pub(super) fn parameter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.to_owned()))
        }
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

/// Parses `host:port`, also in the form of a URL.
fn shown_state(text: &str) -> Result<String, String> {
    let name = text.to_ascii_uppercase();
    let is_status = JobStatus::from_str_name(&format!("JOB_STATUS_{name}")).is_some();
    if is_status || name == "WAITING" {
        return Ok(name);
    }
    Err("write a job's state: running, waiting, finished, failed, canceled ...".to_owned())
}

fn rest_address(text: &str) -> Result<String, String> {
    let address = text.trim().trim_end_matches('/');
    let address = address.strip_prefix("http://").unwrap_or(address);
    match address.rsplit_once(':') {
        Some((host, port))
            if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) =>
        {
            Ok(address.to_owned())
        }
        _ => Err("write HOST:PORT".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("tanist").chain(arguments.iter().copied()))
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
        assert_eq!(retried, QuarantineCommand::Retry { job });
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
        assert_eq!(configured.savepoint, Some(None));
        let named = read(&["stop", id, "--savepoint=/savepoints", "--detached"])?;
        let directory = named.savepoint.flatten().map(|it| it.to_string());
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
}

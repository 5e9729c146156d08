//! Selects where a job goes: `--target`, else `execution.target`, else a running cluster, by a given address or
//! cluster id, else by the configured high-availability store. [`choose`] tests these in this order. An option that
//! does not fit the target is refused: the user expected another target.

use tanist_config::{Configuration, ExecutionTarget, LoadOptions};
use tanist_telemetry::ExitCode;

use super::args::{LocalArgs, OutputFormat, RunArgs};
use super::output::{fail, hint, inform};
use super::{local, per_job, run};

/// A target and the reason for its choice.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Chosen {
    target: ExecutionTarget,
    reason: String,
}

const ADDRESS_OF_OTHERS: &str =
    "--address names running JobManagers, but this target starts its own: use --target remote";

/// `tanist local`.
pub(super) async fn local(
    load: LoadOptions,
    configuration: &Configuration,
    addresses: &[String],
    args: &LocalArgs,
    output: OutputFormat,
) -> ExitCode {
    if !addresses.is_empty() {
        fail(format_args!("{ADDRESS_OF_OTHERS} of `tanist run`"));
        return ExitCode::Usage;
    }
    Box::pin(local::local(load, configuration, args, output)).await
}

/// `tanist run`, for every target.
pub(super) async fn run(
    load: LoadOptions,
    configuration: &Configuration,
    addresses: &[String],
    args: &RunArgs,
    output: OutputFormat,
) -> ExitCode {
    let chosen = choose(configuration, addresses, args.target);
    if let Some(misplaced) = misplaced_option(chosen.target, addresses, args) {
        fail(format_args!(
            "{misplaced}. The target is {}: {}",
            chosen.target.as_str(),
            chosen.reason
        ));
        return ExitCode::Usage;
    }
    if args.verbose {
        let target = chosen.target.as_str();
        inform(format_args!(
            "the job's target is {target}: {}",
            chosen.reason
        ));
    }
    match chosen.target {
        ExecutionTarget::Remote => run::run(configuration, addresses, args, output).await,
        ExecutionTarget::Local => {
            let args = LocalArgs {
                job: args.job.clone(),
                restore: args.restore.clone(),
                detached: args.detached,
            };
            Box::pin(local::local(load, configuration, &args, output)).await
        }
        ExecutionTarget::PerJob => {
            Box::pin(per_job::per_job(load, configuration, args, output)).await
        }
        ExecutionTarget::Application => {
            fail(
                "a job file is not an application: an application is a program that links the library `tanist`, contains its \
                 jobs, and is started directly",
            );
            hint("`--target per-job` gives a job file a cluster of its own");
            ExitCode::Usage
        }
    }
}

/// The error for an option that does not fit the target.
fn misplaced_option(
    target: ExecutionTarget,
    addresses: &[String],
    args: &RunArgs,
) -> Option<&'static str> {
    let has_own_cluster = match target {
        ExecutionTarget::Local | ExecutionTarget::PerJob => true,
        ExecutionTarget::Remote | ExecutionTarget::Application => false,
    };
    if args.taskmanagers.is_some() && target != ExecutionTarget::PerJob {
        Some(
            "--taskmanagers sets the number of TaskManagers of the job's own cluster: use --target per-job",
        )
    } else if args.job_id.is_some() && has_own_cluster {
        Some("--job-id names a job of a running cluster: use --target remote")
    } else if !addresses.is_empty() && has_own_cluster {
        Some(ADDRESS_OF_OTHERS)
    } else {
        None
    }
}

/// The first one that is set counts.
fn choose(
    configuration: &Configuration,
    addresses: &[String],
    flag: Option<ExecutionTarget>,
) -> Chosen {
    let remote = |reason: String| Chosen {
        target: ExecutionTarget::Remote,
        reason,
    };
    if let Some(target) = flag {
        let reason = "--target says so".to_owned();
        return Chosen { target, reason };
    }
    if let Some(target) = configuration.client().target {
        let reason = "execution.target says so".to_owned();
        return Chosen { target, reason };
    }
    if !addresses.is_empty() {
        return remote(format!("--address names {}", addresses.join(", ")));
    }
    if let Some(rest) = &configuration.client().rest {
        return remote(format!("rest.address and rest.port name {rest}"));
    }
    let explicit = configuration.explicit_settings();
    let is_set = |key: &str| explicit.iter().any(|setting| setting.key == key);
    let cluster = &configuration.ha().cluster_id;
    if is_set("high-availability.cluster-id") {
        return remote(format!(
            "high-availability.cluster-id names {cluster}, whose leader the store names"
        ));
    }
    remote(format!(
        "no other target is set; the configured high-availability store names the leader of {cluster}"
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn chosen(
        settings: &[(&str, &str)],
        addresses: &[&str],
        flag: Option<ExecutionTarget>,
    ) -> Chosen {
        let mut load = LoadOptions::default();
        for (key, value) in settings {
            load = load.with(key, value);
        }
        let configuration = Configuration::load(load).expect("it is valid");
        let addresses: Vec<String> = addresses.iter().map(|&it| it.to_owned()).collect();
        choose(&configuration, &addresses, flag)
    }

    #[test]
    fn a_flag_comes_before_the_configuration_and_that_before_an_address() {
        let per_job = ("execution.target", "per-job");
        let flagged = chosen(&[per_job], &["a:1"], Some(ExecutionTarget::Local));
        assert_eq!(flagged.target, ExecutionTarget::Local);
        assert!(flagged.reason.contains("--target"), "{}", flagged.reason);
        let configured = chosen(&[per_job], &["a:1"], None);
        assert_eq!(configured.target, ExecutionTarget::PerJob);
        assert!(configured.reason.contains("execution.target"));
    }

    #[test]
    fn without_a_target_the_job_goes_to_the_cluster_that_is_named_and_the_reason_names_it() {
        let rest = [("rest.address", "h"), ("rest.port", "81")];
        let id = [("high-availability.cluster-id", "c7")];
        for (chosen, named) in [
            (chosen(&rest, &["a:1"], None), "a:1"),
            (chosen(&rest, &[], None), "h:81"),
            (chosen(&id, &[], None), "c7"),
            (chosen(&[], &[], None), "default"),
        ] {
            assert_eq!(chosen.target, ExecutionTarget::Remote);
            assert!(chosen.reason.contains(named), "{}", chosen.reason);
        }
    }

    #[test]
    fn a_target_that_is_not_known_is_answered_with_those_that_are() {
        for text in ["yarn-session", "kubernetes-application", "mesos"] {
            let error = text.parse::<ExecutionTarget>().expect_err("unknown");
            for known in ["remote", "local", "per-job", "application"] {
                assert!(error.contains(known), "{error}");
            }
        }
    }

    #[test]
    fn a_target_without_a_driver_is_told_as_such_by_flag_and_by_configuration() {
        let error = "kubernetes-session".parse::<ExecutionTarget>();
        let error = error.expect_err("absent");
        assert!(error.contains("a driver for Kubernetes"), "{error}");
        let load = LoadOptions::default().with("execution.target", "yarn-per-job");
        let error = Configuration::load(load).expect_err("absent").to_string();
        assert!(
            error.contains("execution.target") && error.contains("a driver for YARN"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn an_address_is_refused_where_the_job_has_a_cluster_of_its_own() {
        let arguments = ["tanist", "local", "none.yaml", "--address", "a:1"];
        let cli = Cli::try_parse_from(arguments).expect("read");
        let Command::Local(args) = cli.command else {
            panic!("it is `local`")
        };
        let configuration = Configuration::defaults();
        let load = LoadOptions::default();
        let table = OutputFormat::Table;
        let code = local(load, &configuration, &cli.global.address, &args, table).await;
        assert_eq!(code, ExitCode::Usage);
    }

    #[test]
    fn an_option_that_says_nothing_where_the_job_goes_is_refused() {
        let parse = |arguments: &[&str]| {
            let all = ["tanist", "run", "job.yaml"].iter().chain(arguments);
            match Cli::try_parse_from(all).expect("read").command {
                Command::Run(args) => args,
                other => panic!("{other:?}"),
            }
        };
        let misplaced = |target, addresses: &[&str], arguments: &[&str]| {
            let addresses: Vec<String> = addresses.iter().map(|&it| it.to_owned()).collect();
            misplaced_option(target, &addresses, &parse(arguments)).unwrap_or_default()
        };
        let id = ["--job-id", "00000000000000000000000000000007"];
        let two = ["--taskmanagers", "2"];
        let [remote, local, per_job] = [
            ExecutionTarget::Remote,
            ExecutionTarget::Local,
            ExecutionTarget::PerJob,
        ];
        assert!(misplaced(remote, &[], &two).contains("--taskmanagers"));
        assert!(misplaced(local, &[], &two).contains("--taskmanagers"));
        assert!(misplaced(local, &[], &id).contains("--job-id"));
        assert!(misplaced(per_job, &["a:1"], &[]).contains("--address"));
        assert_eq!(misplaced(remote, &["a:1"], &id), "");
        assert_eq!(misplaced(per_job, &[], &two), "");
    }
}

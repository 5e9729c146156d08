//! Where a job goes: `--target`, else `execution.target`, else an address or cluster that is named, else what is configured as
//! high-availability.

use super::args::{LocalArgs, RunArgs};
use super::output::say;
use super::{local, per_job, run};
use crate::config::{Configuration, ExecutionTarget, LoadOptions};
use crate::telemetry::ExitCode;

/// A target, and why it is the one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Chosen {
    target: ExecutionTarget,
    reason: String,
}

/// `tanist run`, wherever that is.
pub(super) async fn run(
    load: LoadOptions,
    configuration: &Configuration,
    addresses: &[String],
    args: &RunArgs,
) -> ExitCode {
    let chosen = choose(configuration, addresses, args.target);
    if args.verbose {
        let target = chosen.target.as_str();
        say(format_args!(
            "the job's target is {target}: {}",
            chosen.reason
        ));
    }
    match chosen.target {
        ExecutionTarget::Remote => run::run(configuration, addresses, args).await,
        ExecutionTarget::Local => {
            let args = LocalArgs {
                job: args.job.clone(),
                detached: args.detached,
            };
            Box::pin(local::local(load, configuration, &args)).await
        }
        ExecutionTarget::PerJob => Box::pin(per_job::per_job(load, configuration, args)).await,
        ExecutionTarget::Application => {
            say(
                "a job file is no application: that is a program which links the library `tanist`, brings its jobs, and \
                 is started by itself. `--target per-job` gives a job file a cluster of its own",
            );
            ExitCode::Usage
        }
    }
}

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
        "nothing names another one; the store that is configured as high-availability names the leader of {cluster}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let error = "yarn-session"
            .parse::<ExecutionTarget>()
            .expect_err("unknown");
        for known in ["remote", "local", "per-job", "application"] {
            assert!(error.contains(known), "{error}");
        }
    }
}

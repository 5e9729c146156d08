//! `tanist job quarantine list | retry | delete`: lists quarantined jobs, leads one again, or cancels it.

use tanist_client::{Evidence, QuarantinedJob};
use tanist_config::Configuration;
use tanist_rest_model::paths;
use tanist_telemetry::ExitCode;

use super::args::{GlobalArgs, OutputFormat, QuarantineCommand};
use super::connect::{connect, connect_to_change};
use super::jobs::finish;
use super::output::{Table, answer, answer_json, inform, time_if_known};

pub(super) async fn quarantine(
    configuration: &Configuration,
    global: &GlobalArgs,
    command: &QuarantineCommand,
) -> ExitCode {
    let asking = async {
        let connection = match command {
            QuarantineCommand::List => connect(configuration, &global.address).await?,
            QuarantineCommand::Retry { .. } | QuarantineCommand::Delete { .. } => {
                connect_to_change(configuration, &global.address).await?
            }
        };
        let jobs = &connection.jobs;
        match command {
            QuarantineCommand::List if global.output == OutputFormat::Json => {
                answer_json(&jobs.raw(paths::QUARANTINED_JOBS).await?);
            }
            QuarantineCommand::List => answer(listing(&jobs.quarantined().await?)),
            QuarantineCommand::Retry {
                job,
                from_checkpoint: Some(number),
                accept_duplicates,
            } => {
                let number = number.get();
                jobs.retry_quarantined_from(*job, number, *accept_duplicates)
                    .await?;
                inform(format_args!(
                    "job {job} is no longer quarantined, and begins again from checkpoint {number}"
                ));
            }
            QuarantineCommand::Retry {
                job,
                from_checkpoint: None,
                ..
            } => {
                jobs.retry_quarantined(*job).await?;
                inform(format_args!("job {job} is no longer quarantined"));
            }
            QuarantineCommand::Delete { job } => {
                jobs.delete_quarantined(*job).await?;
                inform(format_args!(
                    "job {job} is cancelled; its tasks end as soon as their TaskManagers learn of it"
                ));
            }
        }
        Ok(())
    };
    finish(asking.await)
}

fn listing(jobs: &[QuarantinedJob]) -> String {
    let mut table = Table::new(["JOB", "NAME", "SINCE", "WHY", ""]);
    for job in jobs {
        let quarantine = &job.quarantine;
        table.row([
            job.jid.to_string(),
            job.name.clone(),
            time_if_known(quarantine.since),
            quarantine.kind.clone(),
            quarantine.reason.clone(),
        ]);
        for one in &quarantine.evidence {
            let nothing = String::new;
            table.row([
                nothing(),
                nothing(),
                time_if_known(one.at),
                format!("epoch {}", one.epoch),
                description(one),
            ]);
        }
    }
    table.to_string()
}

fn description(one: &Evidence) -> String {
    if one.process.is_empty() {
        one.what.clone()
    } else {
        format!("{}: {}", one.process, one.what)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_is_listed_with_what_its_quarantine_rests_on() -> Result<(), serde_json::Error> {
        let jobs: Vec<QuarantinedJob> = serde_json::from_value(json!([
            {"jid": "0".repeat(31) + "1", "name": "count", "kind": "ended-process",
             "reason": "it ended the processes that led it", "since": 1_700_000_000_000_i64,
             "evidence": [{"epoch": 7, "process": "jm-1", "at": 1_699_999_999_000_i64,
                           "what": "ended while it started this job alone"}]}
        ]))?;
        let text = listing(&jobs);
        let expected = "\
JOB                               NAME   SINCE                    WHY
00000000000000000000000000000001  count  2023-11-14 22:13:20 UTC  ended-process  it ended the processes that led it
                                         2023-11-14 22:13:19 UTC  epoch 7        jm-1: ended while it started this job alone
";
        assert_eq!(text, expected);
        Ok(())
    }
}

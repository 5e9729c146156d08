//! `tanist ha status`, `tanist ha history`, `tanist ha transfer`; `tanist ha accept` is in [`super::accept`].

use std::fmt::Write as _;

use tanist_client::{
    CacheInfo, ClientError, HaStatusInfo, LeaderInfo, MemberInfo, StoreInfo, TermHistory,
};
use tanist_config::Configuration;
use tanist_ha::clock::wall_clock_ms;
use tanist_rest_model::paths;
use tanist_telemetry::ExitCode;

use super::accept;
use super::args::{GlobalArgs, HaCommand, OutputFormat};
use super::connect::{Connection, connect, connect_to_change, reporting};
use super::output::{Table, answer, answer_json, bytes, duration, field, inform, optional, time};
use super::report_error;

pub(super) async fn ha(
    configuration: &Configuration,
    global: &GlobalArgs,
    command: &HaCommand,
) -> ExitCode {
    if let HaCommand::Accept { yes, force } = command {
        return accept::accept(configuration.ha(), *yes, *force).await;
    }
    let asking = async {
        let connection = match command {
            HaCommand::Transfer { .. } => connect_to_change(configuration, &global.address).await?,
            _ => connect(configuration, &global.address).await?,
        };
        reporting(connection.jobs.waits(), async {
            match command {
                HaCommand::Status => status(&connection, global.output).await,
                HaCommand::History => history(&connection, global.output).await,
                HaCommand::Transfer { to } => {
                    transfer(&connection, global.output, to.as_deref()).await
                }
                // It was done above.
                HaCommand::Accept { .. } => Ok(()),
            }
        })
        .await
    };
    match asking.await {
        Ok(()) => ExitCode::Ended,
        Err(error) => report_error(&error),
    }
}

async fn status(connection: &Connection, output: OutputFormat) -> Result<(), ClientError> {
    match output {
        OutputFormat::Json => answer_json(&connection.jobs.raw(paths::HA_STATUS).await?),
        OutputFormat::Table => {
            let status = connection.jobs.ha_status().await?;
            answer(status_text(&status, wall_clock_ms()));
        }
    }
    Ok(())
}

async fn history(connection: &Connection, output: OutputFormat) -> Result<(), ClientError> {
    match output {
        OutputFormat::Json => answer_json(&connection.jobs.raw(paths::HA_HISTORY).await?),
        OutputFormat::Table => answer(history_table(&connection.jobs.ha_history().await?)),
    }
    Ok(())
}

async fn transfer(
    connection: &Connection,
    output: OutputFormat,
    to: Option<&str>,
) -> Result<(), ClientError> {
    let before = connection.jobs.ha_status().await?.term.epoch;
    let leader = connection.jobs.transfer_leadership(before, to).await?;
    match output {
        OutputFormat::Json => answer_json(&serde_json::json!({
            "epoch": leader.epoch, "process": leader.process, "since": leader.since,
        })),
        OutputFormat::Table => inform(transfer_text(before, &leader)),
    }
    Ok(())
}

fn transfer_text(before: u64, leader: &LeaderInfo) -> String {
    let LeaderInfo { epoch, process, .. } = leader;
    if *epoch == before {
        format!("{process} leads already, in epoch {epoch}")
    } else {
        format!("{process} leads, in epoch {epoch}")
    }
}

fn status_text(status: &HaStatusInfo, now_ms: u64) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        field(&mut text, name, value);
    };
    match &status.leader {
        Some(leader) => {
            let address = leader.rest_address.as_deref().unwrap_or("no REST address");
            line("Leader", &format!("{} ({address})", leader.process));
        }
        None => line("Leader", "none"),
    }
    line("Epoch", &status.term.epoch.to_string());
    line("Term", &term_text(status, now_ms));
    if let Ok(since) = u64::try_from(status.term.since) {
        let led_for = i64::try_from(now_ms.saturating_sub(since)).unwrap_or(i64::MAX);
        line("Since", &format!("{} ({})", time(since), duration(led_for)));
    }
    line("Store", &store_text(status));
    line("Asked", &status.process);
    for warning in &status.warnings {
        line("Warning", warning);
    }
    if let Some(error) = &status.members_error {
        line("Members", &format!("not known: {error}"));
    } else {
        write!(text, "\n{}", member_table(&status.members)).expect("writing to a string succeeds");
    }
    text
}

/// The state of the term, with its process and duration if the leader's line does not show them.
fn term_text(status: &HaStatusInfo, now_ms: u64) -> String {
    let term = &status.term;
    let mut text = term.state.to_string();
    if term.state == "leading" {
        return text;
    }
    if let Some(process) = &term.process {
        write!(text, ", by {process}").expect("writing to a string succeeds");
    }
    if let Ok(since) = u64::try_from(term.state_since) {
        let lasted = i64::try_from(now_ms.saturating_sub(since)).unwrap_or(i64::MAX);
        write!(text, ", for {}", duration(lasted)).expect("writing to a string succeeds");
    }
    text
}

fn store_text(status: &HaStatusInfo) -> String {
    let store = &status.store;
    match (&status.store_health, &status.store_error) {
        (Some(health), _) => format!("{store}, {}", health_text(health)),
        (None, Some(error)) => format!("{store}, no answer: {error}"),
        (None, None) => store.clone(),
    }
}

fn health_text(health: &StoreInfo) -> String {
    let mut parts = vec![format!("{:.1} ms", health.latency)];
    match (health.size_bytes, health.quota_bytes) {
        (Some(size), Some(quota)) => {
            let assumed = if health.quota_assumed {
                " (assumed)"
            } else {
                ""
            };
            parts.push(format!("{} of {}{assumed}", bytes(size), bytes(quota)));
        }
        (Some(size), None) => parts.push(bytes(size)),
        (None, _) => {}
    }
    if !health.servers.is_empty() {
        let serves = |role: &str| matches!(role, "leader" | "follower" | "standalone");
        let serving = health.servers.iter().filter(|it| serves(&it.role)).count();
        parts.push(format!("{serving} of {} servers", health.servers.len()));
    }
    parts.extend(health.alarms.iter().map(|alarm| format!("alarm {alarm}")));
    parts.join(", ")
}

fn member_table(members: &[MemberInfo]) -> String {
    let headers = [
        "JOBMANAGER",
        "ROLE",
        "REST",
        "VERSION",
        "CHANGE",
        "BEHIND",
        "CACHED",
        "CLOCK",
        "PERMISSIONS",
    ];
    let mut table = Table::new(headers);
    for member in members {
        let cache = member.cache.as_ref();
        let role = match &member.role {
            Some(role) => role.to_string(),
            None if member.leads => "leading, no answer".to_owned(),
            None => "no answer".to_owned(),
        };
        table.row([
            member.process.clone(),
            role,
            optional(member.rest_address.as_ref()),
            member.version.clone(),
            optional(cache.and_then(|cache| cache.change)),
            optional(cache.and_then(|cache| cache.behind)),
            optional(cache.map(cached_text)),
            optional(member.clock_offset.map(|offset| format!("{offset:+} ms"))),
            optional(member.missing_permissions.as_deref().map(permissions_text)),
        ]);
    }
    table.to_string()
}

/// The size of a cache, and how many of its entries differed from the store.
fn cached_text(cache: &CacheInfo) -> String {
    match cache.differed {
        0 => bytes(cache.bytes),
        differed => format!("{}, {differed} differed", bytes(cache.bytes)),
    }
}

/// Whether a process has all permissions in the store that a leader needs. Missing ones are listed among the warnings.
fn permissions_text(missing: &[String]) -> String {
    match missing.len() {
        0 => "all".to_owned(),
        count => format!("{count} missing"),
    }
}

/// The phases of a takeover that have a column: name in the answer, header.
const PHASES: [(&str, &str); 7] = [
    ("noticed", "NOTICED"),
    ("deposed", "DEPOSED"),
    ("cache-proven", "PROVEN"),
    ("recovered", "RECOVERED"),
    ("confirmed", "CONFIRMED"),
    ("first-adopted", "FIRST TASK"),
    ("last-adopted", "LAST TASK"),
];

fn history_table(terms: &[TermHistory]) -> String {
    let mut headers = vec!["EPOCH", "LEADER", "SINCE", "LASTED", "ENDED", "DETECTED"];
    headers.extend(PHASES.map(|(_, header)| header));
    headers.extend(["JOBS", "ADOPTED", "RESTARTED", ""]);
    let headers: [&str; 17] = headers.try_into().expect("there are as many");
    let mut table = Table::new(headers);
    for (place, term) in terms.iter().enumerate() {
        let ended = match &term.ended_how {
            Some(how) => how.to_string(),
            None if place == 0 => "leads".to_owned(),
            None => "-".to_owned(),
        };
        let phase = |name: &str| optional(term.phases.get(name).map(|ms| format!("{ms:.1} ms")));
        let mut row = vec![
            term.epoch.to_string(),
            term.process.clone(),
            time(term.since),
            duration(term.duration),
            ended,
            optional(term.detected_by.as_ref()),
        ];
        row.extend(PHASES.map(|(name, _)| phase(name)));
        row.extend([
            term.jobs.to_string(),
            optional(term.tasks_adopted),
            optional(term.tasks_restarted),
            if term.false_alarm == Some(true) {
                "false alarm".to_owned()
            } else {
                String::new()
            },
        ]);
        let row: [String; 17] = row.try_into().expect("there are as many");
        table.row(row);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_status_is_shown_with_leader_store_warnings_and_members() -> Result<(), serde_json::Error>
    {
        let status: HaStatusInfo = serde_json::from_value(json!({
            "store": "etcd", "process": "jm-2", "role": "standby", "epoch": 7,
            "cluster-incarnation": null,
            "leader": {"epoch": 7, "process": "jm-1", "rest-address": "a:8081", "rpc-address": null,
                       "since": 1_700_000_000_000_u64},
            "term": {"state": "leading", "epoch": 7, "since": 1_700_000_000_000_i64, "state-since": -1},
            "members": [
                {"process": "jm-1", "incarnation": "x", "rest-address": "a:8081", "rpc-address": null,
                 "version": "0.1.0", "leads": true, "role": "leading", "clock-offset": -12,
                 "missing-permissions": []},
                {"process": "jm-2", "incarnation": "x", "rest-address": "b:8081", "rpc-address": null,
                 "version": "0.1.0", "leads": false, "role": "standby", "clock-offset": 0,
                 "missing-permissions": ["to write a", "to write b"],
                 "cache": {"change": 40, "newest": 42, "behind": 2, "records": 10,
                           "named-only": 0, "bytes": 2048, "differed": 3}},
                {"process": "jm-3", "incarnation": "x", "rest-address": null, "rpc-address": null,
                 "version": "0.2.0", "leads": false, "role": null, "error": "refused"}
            ],
            "store-health": {"latency": 1.25, "size-bytes": 20_971_520, "quota-bytes": 2_147_483_648_u64,
                             "alarms": ["NOSPACE"],
                             "servers": [{"name": "e1", "role": "leader"},
                                         {"name": "e2", "role": "unreachable"}]},
            "warnings": ["look here"]
        }))?;
        let expected = "\
Leader       jm-1 (a:8081)
Epoch        7
Term         leading
Since        2023-11-14 22:13:20 UTC (1 min 5 s)
Store        etcd, 1.2 ms, 20.0 MiB of 2.0 GiB, 1 of 2 servers, alarm NOSPACE
Asked        jm-2
Warning      look here

JOBMANAGER  ROLE       REST    VERSION  CHANGE  BEHIND  CACHED               CLOCK   PERMISSIONS
jm-1        leading    a:8081  0.1.0    -       -       -                    -12 ms  all
jm-2        standby    b:8081  0.1.0    40      2       2.0 KiB, 3 differed  +0 ms   2 missing
jm-3        no answer  -       0.2.0    -       -       -                    -       -
";
        assert_eq!(status_text(&status, 1_700_000_065_000), expected);
        Ok(())
    }

    #[test]
    fn a_term_that_does_not_lead_is_shown_with_its_process_and_since_when()
    -> Result<(), serde_json::Error> {
        let status: HaStatusInfo = serde_json::from_value(json!({
            "store": "etcd", "process": "jm-2", "role": "standby", "epoch": 7,
            "cluster-incarnation": null, "leader": null,
            "term": {"state": "suspended", "epoch": 7, "process": "jm-1", "since": -1,
                     "state-since": 1_700_000_000_000_i64},
            "members": [], "warnings": []
        }))?;
        let text = status_text(&status, 1_700_000_065_000);
        assert!(text.contains("Leader       none\n"), "{text}");
        let term = "Term         suspended, by jm-1, for 1 min 5 s\n";
        assert!(text.contains(term), "{text}");
        Ok(())
    }

    #[test]
    fn terms_are_shown_with_how_each_began_and_ended() -> Result<(), serde_json::Error> {
        let terms: Vec<TermHistory> = serde_json::from_value(json!([
            {"epoch": 8, "process": "jm-2", "since": 1_700_000_065_000_u64, "ended": -1,
             "duration": 4200, "ended-how": null, "detected-by": "process-gone", "jobs": 3,
             "phases": {"deposed": 2.04, "confirmed": 9.5}, "tasks-adopted": 12,
             "tasks-restarted": 0, "false-alarm": true},
            {"epoch": 7, "process": "jm-1", "since": 1_700_000_000_000_u64, "ended": -1,
             "duration": 65_000, "jobs": 0, "phases": {}}
        ]))?;
        let expected = "\
EPOCH  LEADER  SINCE                    LASTED     ENDED  DETECTED      NOTICED  DEPOSED  PROVEN  RECOVERED  CONFIRMED  FIRST TASK  LAST TASK  JOBS  ADOPTED  RESTARTED
8      jm-2    2023-11-14 22:14:25 UTC  4.2 s      leads  process-gone  -        2.0 ms   -       -          9.5 ms     -           -          3     12       0          false alarm
7      jm-1    2023-11-14 22:13:20 UTC  1 min 5 s  -      -             -        -        -       -          -          -           -          0     -        -
";
        assert_eq!(history_table(&terms), expected);
        Ok(())
    }

    #[test]
    fn a_transfer_says_who_leads_and_whether_that_changed() {
        let leader = LeaderInfo {
            epoch: 8,
            process: "jm-2".to_owned(),
            rest_address: None,
            rpc_address: None,
            since: 1,
        };
        assert_eq!(transfer_text(7, &leader), "jm-2 leads, in epoch 8");
        assert_eq!(transfer_text(8, &leader), "jm-2 leads already, in epoch 8");
    }
}

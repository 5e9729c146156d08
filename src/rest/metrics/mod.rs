//! `/metrics`: the Prometheus metrics of each JobManager, collected at each request.
//!
//! Each process reports its own status; data that only the leader has (jobs, TaskManagers, slots) is reported
//! only by the leader, so that sums over all processes count nothing twice. Values that are not known at
//! present are left out.

mod checkpoints;
mod text;

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderName, header};
use tanist_ha::clock::wall_clock_ms;
use tanist_ha::store::health::{ServerRole, StoreServer};
use tanist_ha::store::pipeline::PipelineStats;
use tanist_leadership::history::HistoryRecord;
use tanist_leadership::{HaStatus, Role};
use tanist_proto::v1 as pb;

use super::ask::Context;
use super::json::ha::role_name;
use super::json::history::{detection, is_false_alarm, phases};
use super::json::{REVISION, VERSION};
use text::{CONTENT_TYPE, Exposition, Kind, Labels};

/// Timeout for store and components: less than a scraper's timeout.
const TIMEOUT: Duration = Duration::from_secs(2);

const ROLES: [Role; 6] = [
    Role::Connecting,
    Role::Standby,
    Role::Recovering,
    Role::Leading,
    Role::Suspended,
    Role::Refused,
];

pub(super) async fn metrics(
    State(context): State<Context>,
) -> ([(HeaderName, &'static str); 1], String) {
    let status = context.view.ha_status(TIMEOUT);
    let history = context.view.history(TIMEOUT);
    let leads = context.view.role() == Role::Leading;
    let cluster = async {
        if leads {
            describe_own(&context).await
        } else {
            None
        }
    };
    let jobs = async {
        if leads {
            own_jobs(&context).await
        } else {
            None
        }
    };
    let (status, history, cluster, jobs) = tokio::join!(status, history, cluster, jobs);
    // The Dispatcher is that of the cluster's leader, which may be another process by now.
    let leads = leads && context.view.role() == Role::Leading;
    let mut out = Exposition::default();
    process(&mut out, &status);
    store(&mut out, &status);
    if let Some(stats) = context.view.pipeline_stats() {
        pipeline(&mut out, &stats);
    }
    if let (true, Ok(history)) = (leads, history) {
        terms(&mut out, &history);
    }
    if let (true, Some(cluster)) = (leads, cluster) {
        leader(&mut out, &cluster);
    }
    if let (true, Some(jobs)) = (leads, jobs) {
        checkpoints::checkpoints(&mut out, &jobs, wall_clock_ms());
        state_sizes(&mut out, &jobs);
    }
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], out.into_text())
}

/// The overview of this process's own Dispatcher, if it answers in time.
async fn describe_own(context: &Context) -> Option<pb::ClusterOverview> {
    let describing = async {
        let dispatcher = context.view.dispatcher(TIMEOUT).await.ok()?;
        let request = pb::DescribeClusterRequest::default();
        dispatcher.describe_cluster(request).await.ok()
    };
    tokio::time::timeout(TIMEOUT, describing).await.ok()?
}

/// The jobs in short, as this process's own Dispatcher lists them, if it answers in time.
async fn own_jobs(context: &Context) -> Option<Vec<pb::JobDetails>> {
    let listing = async {
        let dispatcher = context.view.dispatcher(TIMEOUT).await.ok()?;
        let request = pb::ListJobsRequest::default();
        Some(dispatcher.list_jobs(request).await.ok()?.jobs)
    };
    tokio::time::timeout(TIMEOUT, listing).await.ok()?
}

/// Writes the memory of the state of jobs, by vertex.
fn state_sizes(out: &mut Exposition, jobs: &[pb::JobDetails]) {
    let sizes = jobs.iter().flat_map(|job| {
        job.state_sizes.iter().map(|size| {
            let labels: [(&str, &str); 3] = [
                ("job_id", &job.job_id),
                ("job_name", &job.name),
                ("vertex", &size.vertex),
            ];
            (labels, number(size.bytes))
        })
    });
    let sizes: Vec<_> = sizes.collect();
    let samples = sizes.iter().map(|(labels, bytes)| (&labels[..], *bytes));
    let help = "Memory of the keyed state of the tasks of a vertex";
    out.family("tanist_state_bytes", Kind::Gauge, help, samples);
}

/// Converts a number to the type of samples.
#[expect(
    clippy::cast_precision_loss,
    reason = "values beyond 2^53 need not be exact"
)]
fn number(value: u64) -> f64 {
    value as f64
}

fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

fn process(out: &mut Exposition, status: &HaStatus) {
    let process = status.process.to_string();
    let labels: Labels<'_> = &[
        ("version", VERSION),
        ("revision", REVISION),
        ("process", &process),
        ("store", status.store),
    ];
    let help = "This process; always 1";
    out.family("tanist_build_info", Kind::Gauge, help, [(labels, 1.0)]);
    let help = "Log lines that were dropped because standard error was not read";
    let dropped = number(tanist_telemetry::dropped_log_lines());
    out.single(
        "tanist_log_dropped_lines_total",
        Kind::Counter,
        help,
        dropped,
    );
    let leader = status.leader.leader.as_ref();
    let is_leader = status.role == Role::Leading
        && leader.is_some_and(|leader| leader.process == status.process);
    let help = "Whether this process leads and is confirmed";
    out.single("tanist_leader", Kind::Gauge, help, flag(is_leader));
    let labels = ROLES.map(|role| [("role", role_name(role))]);
    let roles = ROLES.iter().zip(&labels);
    let roles = roles.map(|(role, labels)| (&labels[..], flag(*role == status.role)));
    let help = "The role of this process: 1 for its role, 0 for the others";
    out.family("tanist_role", Kind::Gauge, help, roles);
    let help = "The youngest epoch that this process knows";
    let epoch = number(status.leader.epoch.get());
    out.single("tanist_epoch", Kind::Gauge, help, epoch);
    let help = "Whether a confirmed leader is known";
    let known = flag(leader.is_some());
    out.single("tanist_leader_known", Kind::Gauge, help, known);
    let help = "When the leader was confirmed, in seconds since 1970";
    let since = leader.map(|leader| number(leader.since_ms) / 1000.0);
    out.gauge("tanist_leader_since_timestamp_seconds", help, since);
    let members = status.members.as_ref().ok();
    let help = "JobManagers that the store lists";
    let members = members.map(|members| number(members.len() as u64));
    out.gauge("tanist_members", help, members);
}

/// The warm cache, and the store as this process sees it.
fn store(out: &mut Exposition, status: &HaStatus) {
    if status.role == Role::Standby {
        let cache = &status.cache;
        let help = "Bytes of the records in this standby's cache";
        out.single(
            "tanist_cache_bytes",
            Kind::Gauge,
            help,
            number(cache.bytes as u64),
        );
        let help = "Records in this standby's cache";
        let records = number(cache.records as u64);
        out.single("tanist_cache_records", Kind::Gauge, help, records);
        let help = "Changes that this standby's cache is behind the store";
        out.gauge("tanist_cache_lag_changes", help, cache.lag().map(number));
    }
    let help = "Whether the store answers this process";
    out.single(
        "tanist_store_up",
        Kind::Gauge,
        help,
        flag(status.health.is_ok()),
    );
    let Ok(health) = &status.health else {
        return;
    };
    let help = "How long a linearizable read of the store took";
    let latency = health.latency.as_secs_f64();
    out.single("tanist_store_latency_seconds", Kind::Gauge, help, latency);
    let sizes = [
        (
            "tanist_store_size_bytes",
            "Data of the store (of the largest server)",
            health.size_bytes,
        ),
        (
            "tanist_store_quota_bytes",
            "Data above which the store takes no writes",
            health.quota_bytes,
        ),
        (
            "tanist_store_free_bytes",
            "Free space where the store keeps its data, if that is this host",
            health.free_bytes,
        ),
    ];
    for (name, help, value) in sizes {
        out.gauge(name, help, value.map(number));
    }
    let help =
        "Whether the store keeps very many old revisions of its data, as it is not compacted";
    let is_so = flag(health.revisions_kept.is_some());
    out.single("tanist_store_uncompacted", Kind::Gauge, help, is_so);
    let help = "Alarms that the store has raised";
    let alarms: Vec<_> = health
        .alarms
        .iter()
        .map(|it| [("alarm", it.as_str())])
        .collect();
    let alarms = alarms.iter().map(|labels| (&labels[..], 1.0));
    out.family("tanist_store_alarm", Kind::Gauge, help, alarms);
    let help = "Whether each server of the store answers";
    let servers = &health.servers;
    let labels: Vec<_> = servers
        .iter()
        .map(|it| [("server", it.name.as_str())])
        .collect();
    let answers = |server: &StoreServer| !matches!(server.role, ServerRole::Unreachable(_));
    let servers = servers.iter().zip(&labels);
    let servers = servers.map(|(server, labels)| (&labels[..], flag(answers(server))));
    out.family("tanist_store_server_up", Kind::Gauge, help, servers);
}

/// The writes of the current term.
fn pipeline(out: &mut Exposition, stats: &PipelineStats) {
    let counters = [
        (
            "tanist_commits_total",
            "Commits of this term that were applied",
            number(stats.commits),
        ),
        (
            "tanist_commit_transactions_total",
            "Transactions of these commits",
            number(stats.transactions),
        ),
        (
            "tanist_commit_seconds_total",
            "Total time of these transactions",
            stats.busy.as_secs_f64(),
        ),
    ];
    for (name, help, value) in counters {
        out.single(name, Kind::Counter, help, value);
    }
}

/// The current term, and the earlier terms that are kept.
fn terms(out: &mut Exposition, history: &[HistoryRecord]) {
    let help = "Terms whose records are kept";
    let remembered = number(history.len() as u64);
    out.single("tanist_remembered_terms", Kind::Gauge, help, remembered);
    let false_alarms = history.iter().filter(|term| is_false_alarm(term));
    let help = "Kept terms that deposed a leader which answered afterwards";
    let false_alarms = number(false_alarms.count() as u64);
    out.single(
        "tanist_remembered_false_alarms",
        Kind::Gauge,
        help,
        false_alarms,
    );
    let Some(term) = history.last() else {
        return;
    };
    let help = "Duration of the steps of the last takeover, by name";
    let phases = phases(term);
    let labels: Vec<_> = phases.keys().map(|phase| [("phase", &**phase)]).collect();
    let samples = labels.iter().zip(phases.values());
    let samples = samples.map(|(labels, ms)| (&labels[..], *ms));
    out.family(
        "tanist_takeover_phase_milliseconds",
        Kind::Gauge,
        help,
        samples,
    );
    if let Some(detection) = detection(term) {
        let labels: Labels<'_> = &[("detection", detection)];
        let help = "How the end of the previous term was detected; always 1";
        out.family("tanist_takeover_info", Kind::Gauge, help, [(labels, 1.0)]);
    }
    let tasks: [(Labels<'_>, Option<usize>); 2] = [
        (&[("outcome", "adopted")], term.tasks_adopted),
        (&[("outcome", "restarted")], term.tasks_restarted),
    ];
    let tasks = tasks.into_iter();
    let tasks = tasks.filter_map(|(labels, count)| Some((labels, number(count? as u64))));
    let help = "Tasks that the last takeover adopted, and tasks that it restarted";
    out.family("tanist_takeover_tasks", Kind::Gauge, help, tasks);
}

fn leader(out: &mut Exposition, cluster: &pb::ClusterOverview) {
    let jobs: [(Labels<'_>, u32); 4] = [
        (&[("status", "RUNNING")], cluster.jobs_running),
        (&[("status", "FINISHED")], cluster.jobs_finished),
        (&[("status", "CANCELED")], cluster.jobs_cancelled),
        (&[("status", "FAILED")], cluster.jobs_failed),
    ];
    let jobs = jobs.map(|(labels, count)| (labels, f64::from(count)));
    let help = "Jobs by status; RUNNING are all that have not ended, ended ones count until they are removed";
    out.family("tanist_jobs", Kind::Gauge, help, jobs);
    let gauges = [
        (
            "tanist_task_managers",
            "Registered TaskManagers",
            cluster.task_managers,
        ),
        (
            "tanist_slots",
            "Slots of all TaskManagers",
            cluster.slots_total,
        ),
        (
            "tanist_slots_free",
            "Slots that are assigned to no job",
            cluster.slots_available,
        ),
    ];
    for (name, help, value) in gauges {
        out.single(name, Kind::Gauge, help, f64::from(value));
    }
    if let Some(workers) = &cluster.workers {
        let help = "TaskManagers that were requested and have not registered";
        let pending = number(workers.pending.len() as u64);
        out.single("tanist_task_managers_pending", Kind::Gauge, help, pending);
        let help = "TaskManagers whose start failed in this term";
        let failures = number(workers.start_failures);
        out.single(
            "tanist_task_manager_start_failures_total",
            Kind::Counter,
            help,
            failures,
        );
    }
    if let Some(as_of) = cluster.as_of {
        let help = "The number of the last transaction that the leader committed";
        out.single("tanist_change", Kind::Gauge, help, number(as_of.change));
    }
}

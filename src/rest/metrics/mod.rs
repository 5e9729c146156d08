//! `/metrics`: what Prometheus scrapes from each JobManager, gathered when it is asked for.
//!
//! Each process tells how it stands; what only the leader knows (jobs, TaskManagers, slots) is told by the leader alone, so
//! that sums over all processes count nothing twice. What is not known at present is left out.

mod text;

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderName, header};
use tanist_proto::v1 as pb;

use super::ask::Context;
use super::json::ha::role_name;
use super::json::{REVISION, VERSION};
use crate::process::{HaStatus, Role};
use text::{CONTENT_TYPE, Exposition, Kind, Labels};

/// How long store and components may take: less than a scraper waits.
const PATIENCE: Duration = Duration::from_secs(2);

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
    let status = context.view.ha_status(PATIENCE).await;
    let cluster = match status.role {
        Role::Leading => describe_own(&context).await,
        Role::Connecting | Role::Standby | Role::Recovering | Role::Suspended | Role::Refused => {
            None
        }
    };
    let mut out = Exposition::default();
    process(&mut out, &status);
    if let Some(cluster) = cluster {
        leader(&mut out, &cluster);
    }
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], out.into_text())
}

/// What this process's own Dispatcher knows, if it gives an answer in time.
async fn describe_own(context: &Context) -> Option<pb::ClusterOverview> {
    let describing = async {
        let dispatcher = context.view.dispatcher(PATIENCE).await.ok()?;
        let request = pb::DescribeClusterRequest::default();
        dispatcher.describe_cluster(request).await.ok()
    };
    tokio::time::timeout(PATIENCE, describing).await.ok()?
}

/// A number as samples are.
#[expect(
    clippy::cast_precision_loss,
    reason = "what is beyond 2^53 need not be exact"
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
    let leader = status.leader.leader.as_ref();
    let is_leader = status.role == Role::Leading
        && leader.is_some_and(|leader| leader.process == status.process);
    let help = "Whether this process leads and is confirmed";
    out.single("tanist_leader", Kind::Gauge, help, flag(is_leader));
    let labels = ROLES.map(|role| [("role", role_name(role))]);
    let roles = ROLES.iter().zip(&labels);
    let roles = roles.map(|(role, labels)| (&labels[..], flag(*role == status.role)));
    let help = "How this process stands: 1 for its role, 0 for the others";
    out.family("tanist_role", Kind::Gauge, help, roles);
    let help = "The youngest epoch that this process has heard of";
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

fn leader(out: &mut Exposition, cluster: &pb::ClusterOverview) {
    let jobs: [(Labels<'_>, u32); 4] = [
        (&[("status", "RUNNING")], cluster.jobs_running),
        (&[("status", "FINISHED")], cluster.jobs_finished),
        (&[("status", "CANCELED")], cluster.jobs_cancelled),
        (&[("status", "FAILED")], cluster.jobs_failed),
    ];
    let jobs = jobs.map(|(labels, count)| (labels, f64::from(count)));
    let help = "Jobs by status; RUNNING are all that have not ended, ended ones count until they are forgotten";
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
            "Slots that no job has",
            cluster.slots_available,
        ),
    ];
    for (name, help, value) in gauges {
        out.single(name, Kind::Gauge, help, f64::from(value));
    }
    if let Some(as_of) = cluster.as_of {
        let help = "The number of the last transaction that the leader committed";
        out.single("tanist_change", Kind::Gauge, help, number(as_of.change));
    }
}

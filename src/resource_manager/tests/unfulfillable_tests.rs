//! Verdicts on jobs that request more than any TaskExecutor has.

use std::time::Duration;

use tanist_compact::WatchCell;
use tanist_gateway::{
    JobMasterRegistration, ResourceManagerGateway as _, ResourceRequirement, ResourceRequirements,
    ResourceRequirementsGateway as _, Unfulfillable,
};
use tanist_proto::id::JobId;
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources};
use tanist_proto::v1 as pb;
use tokio::time::Instant;

use super::scripted::{ScriptedTaskExecutor, id, needs, registration, start};
use crate::*;

const JOB: JobId = JobId::from_bits(0xA);

fn cores(number: u32) -> Resources {
    Resources {
        cpu: CpuCores::whole(number),
        ..Resources::ZERO
    }
}

/// Registers a TaskExecutor with `total` cores in two slots.
async fn register(handle: &ResourceManagerHandle, name: &str, total: u32, report: pb::SlotReport) {
    let request = registration(5, 1, report);
    let location = pb::TaskManagerLocation {
        resource_id: name.to_owned(),
        ..request.location.clone().unwrap_or_default()
    };
    let request = pb::RegisterTaskExecutorRequest {
        location: Some(location),
        total_profile: Some((&cores(total)).into()),
        ..request
    };
    let answer = handle.register_task_executor(request).await;
    answer.expect("it is admitted");
}

/// A JobMaster's registration, with the cell that notifies it.
fn job_master() -> JobMasterRegistration {
    JobMasterRegistration {
        job: JOB,
        job_master: id(1),
        verdict: WatchCell::default(),
    }
}

/// Declares, possibly again, that it needs a slot with this number of cores.
async fn declare(handle: &ResourceManagerHandle, job_master: &JobMasterRegistration, number: u32) {
    let registered = handle.register_job_master(job_master.clone()).await;
    registered.expect("it is the only one");
    let one = ResourceRequirement {
        profile: ResourceProfile::Of(cores(number)),
        minimum: 1,
        maximum: 1,
    };
    let requirements = ResourceRequirements {
        resources: vec![one],
        ..needs(JOB, 0)
    };
    let declared = handle.declare_required_resources(requirements).await;
    declared.expect("it is registered");
}

/// A JobMaster repeats its declaration, which counts as its heartbeat. Returns the verdict that it gets within
/// `bound`.
async fn told_within(
    handle: &ResourceManagerHandle,
    job_master: &JobMasterRegistration,
    bound: Duration,
) -> Option<Box<Unfulfillable>> {
    let start = Instant::now();
    while start.elapsed() < bound {
        declare(handle, job_master, 8).await;
        let told = &job_master.verdict;
        let unfulfillable = told.find(|told| told.unfulfillable.clone());
        if let Ok(verdict) = tokio::time::timeout(Duration::from_secs(10), unfulfillable).await {
            return Some(verdict);
        }
    }
    None
}

#[tokio::test(start_paused = true)]
async fn a_job_that_asks_for_more_than_anybody_has_is_told_when_all_have_had_time_to_come() {
    let cluster = start();
    let handle = cluster.manager.handle();
    let (small, _asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 2);
    let start = Instant::now();
    register(&handle, "small", 4, small.report()).await;
    let job_master = job_master();
    let verdict = told_within(&handle, &job_master, Duration::MAX).await;
    let verdict = verdict.expect("in the end");
    let start_up_time = Options::default().start_up_time;
    assert!(start.elapsed() >= start_up_time, "{:?}", start.elapsed());
    assert!(start.elapsed() < start_up_time + Duration::from_secs(11));
    assert_eq!(
        (verdict.profile, verdict.largest),
        (cores(8).into(), cores(4))
    );
    // A larger one registers: the job can be served.
    let (large, _asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 2);
    register(&handle, "large", 8, large.report()).await;
    let told = &job_master.verdict;
    let fulfillable = told.find(|told| told.unfulfillable.is_none().then_some(()));
    let told = tokio::time::timeout(Duration::from_secs(10), fulfillable).await;
    told.expect("at once");
    cluster.manager.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_drained_may_come_back_as_one_that_left_may() {
    let cluster = start();
    let handle = cluster.manager.handle();
    let (small, _asked) = ScriptedTaskExecutor::start(&cluster.connector, "tm:1", 2);
    register(&handle, "small", 4, small.report()).await;
    register(&handle, "large", 8, small.report()).await;
    let large = pb::DrainTaskManagerRequest {
        resource_id: "large".to_owned(),
        ..pb::DrainTaskManagerRequest::default()
    };
    let drained = handle.drain_task_manager(large).await;
    drained.expect("it is registered");
    let (job_master, start_up_time) = (job_master(), Options::default().start_up_time);
    let told = told_within(&handle, &job_master, 2 * start_up_time).await;
    assert_eq!(told, None, "it is there");
    let goodbye = pb::DisconnectTaskExecutorRequest {
        sender: registration(5, 1, pb::SlotReport::default()).sender,
        resource_id: "large".to_owned(),
        incarnation: "1".to_owned(),
        cause: "drained".to_owned(),
    };
    let left = handle.disconnect_task_executor(goodbye).await;
    left.expect("it is registered");
    let start = Instant::now();
    let told = told_within(&handle, &job_master, 2 * start_up_time).await;
    assert_eq!(told.map(|told| told.largest), Some(cores(4)));
    assert!(start.elapsed() >= start_up_time, "{:?}", start.elapsed());
    cluster.manager.stop().await;
}

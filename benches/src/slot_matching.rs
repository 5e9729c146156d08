//! Time for slot matching in the ResourceManager: only its slot manager, with the slots of very many TaskManagers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use tanist_gateway::{JobMasterId, ResourceRequirement, ResourceRequirements, SubmissionNumber};
use tanist_ha::clock::Uptime;
use tanist_ha::election::Epoch;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::{ResourceProfile, Resources, WorkerResourceSpec};
use tanist_resource_manager::{
    RequestOutcome, SlotManager, SlotRequest, SlotsReport, SlotsVersion,
};
use tokio::time::Instant;

use crate::BenchOptions;
use crate::host::milliseconds;
use crate::report::Figure;
use crate::samples::Unit;

pub(super) const METHOD: &str = "The ResourceManager's slot manager alone, in this process: 1,000 TaskManagers \
of 10 slots. *One job*: it needs all 10,000 slots. *Many jobs*: 1,000 jobs of 10 slots each, matched at once. *A \
full cluster*: these jobs have all slots and 1,000 more jobs wait; one job returns its slots, and one of the \
waiting jobs gets them.";

const TASK_MANAGERS: (u32, u32) = (1_000, 20);
const SLOTS: u32 = 10;
const DELAY: Duration = Duration::from_secs(10);
const REPETITIONS: (usize, usize) = (10, 1);

pub(super) async fn measure(options: &BenchOptions) -> anyhow::Result<Vec<Figure>> {
    let task_managers = options.pick(TASK_MANAGERS.0, TASK_MANAGERS.1);
    let named = |what: String| Figure::new(what, Unit::Milliseconds);
    let mut one = named(format!("one job of {} slots", task_managers * SLOTS));
    let mut many = named(format!("{task_managers} jobs of {SLOTS} slots"));
    let mut full = named("a full cluster: another job gets the slots of one".to_owned());
    for _ in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
        let times = tokio::task::spawn_blocking(move || once(task_managers)).await??;
        for (figure, time) in [&mut one, &mut many, &mut full].into_iter().zip(times) {
            figure.push(milliseconds(time));
        }
    }
    Ok(vec![one, many, full])
}

fn once(task_managers: u32) -> anyhow::Result<[Duration; 3]> {
    let all = (task_managers * SLOTS) as usize;
    let mut slots = cluster(task_managers)?;
    slots.declare(needs(0, task_managers * SLOTS));
    let (requests, one) = matched(&mut slots, Duration::ZERO);
    ensure!(requests.len() == all, "{} of {all}", requests.len());

    let mut slots = cluster(task_managers)?;
    (0..2 * task_managers).for_each(|job| slots.declare(needs(job, SLOTS)));
    let (requests, many) = matched(&mut slots, Duration::ZERO);
    ensure!(requests.len() == all, "{} of {all}", requests.len());

    for request in &requests {
        let (allocated, version) = (RequestOutcome::Allocated, SlotsVersion(2));
        slots.answered(
            &request.worker,
            request.slot,
            request.holder,
            &allocated,
            version,
        );
    }
    let first = job_id(0);
    slots.withdraw(first);
    for request in requests.iter().filter(|it| it.holder.job == first) {
        let freed = SlotsReport::of_default_slots(&[(request.slot, None)], SlotsVersion(3));
        let turn = slots.turn();
        slots.report(&request.worker, &freed, turn);
    }
    // The waiting jobs have waited long enough for slots to be reserved for the first of them.
    let (requests, full) = matched(&mut slots, 2 * DELAY);
    ensure!(requests.len() == SLOTS as usize, "{}", requests.len());
    Ok([one, many, full])
}

/// The slot requests after this time, and the time for computing them.
fn matched(slots: &mut SlotManager, later: Duration) -> (Vec<SlotRequest>, Duration) {
    let start = Instant::now();
    let requests = slots.match_slots(Uptime::START + later);
    (requests, start.elapsed())
}

fn cluster(task_managers: u32) -> anyhow::Result<SlotManager> {
    let mut slots = SlotManager::new(1).reserving_after(DELAY);
    let free: Vec<_> = (0..SLOTS).map(|slot| (slot, None)).collect();
    for number in 0..task_managers {
        let id: ResourceId = format!("simulated-{number:05}").parse()?;
        let spec = WorkerResourceSpec::new(Resources::ZERO, SLOTS);
        let report = SlotsReport::of_default_slots(&free, SlotsVersion(1));
        slots.put_worker(&id, spec, report);
    }
    Ok(slots)
}

fn job_id(number: u32) -> JobId {
    JobId::from_bits(u128::from(number) + 1)
}

fn needs(job: u32, count: u32) -> ResourceRequirements {
    ResourceRequirements {
        job: job_id(job),
        job_master: JobMasterId {
            epoch: Epoch::new(1),
            incarnation: 1,
        },
        job_master_address: "127.0.0.1:1".to_owned(),
        resources: vec![ResourceRequirement {
            profile: ResourceProfile::Unknown,
            minimum: count,
            maximum: count,
        }],
        held: Arc::default(),
        submission: SubmissionNumber::default(),
        is_bounded: true,
    }
}

//! Steps of the simulation: successful steps, faults, and the phase without faults.

use std::collections::BTreeSet;

use tanist_proto::id::AllocationId;
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;

use super::invariants::{is_recorded, region_of};
use super::task_manager::{Running, TaskKey, TaskManager, report};
use super::world::{RECONCILE_TIMEOUT_MS, World};
use crate::core::Event;
use crate::core::checkpoints::TaskEnd;
use crate::core::execution_graph::execution::is_terminal;
use crate::core::job_end::COMMIT_TIMEOUT_MS;

/// Whether an execution fails in its next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fails {
    No,
    Yes,
    /// With a failure that no restart can fix.
    ForGood,
}

impl World {
    /// Allocates a slot if the job needs more than it has: slots of the minimum only if all of it is
    /// available, then slots up to the maximum.
    pub(super) fn allocate(&mut self, pick: usize) {
        let is_open = |it: &&TaskManager| !self.drains.is_drained(&it.id);
        let open = self.task_managers.iter().filter(is_open);
        let slots = open.flat_map(|it| &it.slots);
        let free = slots.filter(|slot| slot.is_none()).count();
        let needed = self.lacking(&self.at_once);
        let lacking = match needed.is_empty() {
            true => self.lacking(&self.declared),
            false if needed.len() <= free => needed,
            false => return,
        };
        let Some(profile) = lacking.into_iter().next() else {
            return;
        };
        let count = self.task_managers.len();
        for offset in 0..count {
            let task_manager = &mut self.task_managers[(pick + offset) % count];
            if self.drains.is_drained(&task_manager.id) {
                continue;
            }
            if let Some(slot) = task_manager.slots.iter_mut().find(|slot| slot.is_none()) {
                let allocation = AllocationId::from_bits(self.next_allocation);
                *slot = Some(allocation);
                task_manager.profiles.insert(allocation, profile);
                self.next_allocation += 1;
                let (connection, slots) = (task_manager.connection(), task_manager.offers());
                self.events
                    .push((self.epoch, Event::SlotsOffered { connection, slots }));
                return;
            }
        }
    }

    /// The profiles of slots that are missing from `wanted`.
    fn lacking(&self, wanted: &[(ResourceProfile, u32)]) -> Vec<ResourceProfile> {
        let mut lacking: Vec<ResourceProfile> = Vec::new();
        for (profile, number) in wanted {
            lacking.extend(std::iter::repeat_n(profile.clone(), *number as usize));
        }
        for task_manager in &self.task_managers {
            for slot in task_manager.slots.iter().flatten() {
                let profile = &task_manager.profiles[slot];
                if let Some(at) = lacking.iter().position(|it| it == profile) {
                    lacking.remove(at);
                }
            }
        }
        lacking
    }

    /// An execution takes its next step.
    pub(super) fn progress(&mut self, index: usize, pick: usize, fails: Fails) {
        let epoch = self.epoch;
        let kept = self.kept();
        let live = self.live_on(index, fails);
        if live.is_empty() {
            return;
        }
        let (key, at) = &live[pick % live.len()];
        let running = &self.task_managers[index].running[key][*at];
        let generation = running.generation;
        let is_next = running.state == S::Running && fails == Fails::No;
        let mut end = TaskEnd::default();
        if is_next && self.has_stream(key, generation) {
            match self.end_stream(key, generation) {
                Some(of_stream) => end = of_stream,
                None => return,
            }
        }
        let running = self.task_managers[index].running.get_mut(key);
        let running = &mut running.expect("it runs")[*at];
        running.end = end;
        running.state = match running.state {
            S::Canceling => S::Canceled,
            _ if fails != Fails::No => S::Failed,
            S::Deploying => S::Running,
            _ => {
                let mut inputs = running.inputs.iter();
                let missing = inputs.find(|input| !kept.contains(input)).cloned();
                running.unreadable =
                    missing.map(|((vertex_id, subtask), generation, _)| pb::ExecutionId {
                        vertex_id,
                        subtask,
                        generation,
                    });
                match &running.unreadable {
                    Some(_) => S::Failed,
                    None => S::Finished,
                }
            }
        };
        running.unrecoverable = running.state == S::Failed && fails == Fails::ForGood;
        let output = (key.clone(), running.generation);
        let has_finished = running.state == S::Finished;
        let executions = vec![report(key, running)];
        if has_finished && self.is_kept(&output.0.0) {
            self.task_managers[index].outputs.insert(output);
        }
        let connection = self.task_managers[index].connection();
        self.events.push((
            epoch,
            Event::ExecutionsReported {
                connection,
                executions,
            },
        ));
    }

    /// The executions on a TaskManager that may take a step: each with its number among those of its task.
    fn live_on(&self, index: usize, fails: Fails) -> Vec<(TaskKey, usize)> {
        let without_end = match fails {
            Fails::No => self.without_end_on(index),
            Fails::Yes | Fails::ForGood => BTreeSet::new(),
        };
        let mut live: Vec<(TaskKey, usize)> = Vec::new();
        for (key, running) in &self.task_managers[index].running {
            let goes_on = |it: &Running| {
                let is_endless = it.state == S::Running && without_end.contains(&key.0);
                is_endless && !self.has_stream(key, it.generation)
            };
            let alive = running.iter().enumerate();
            let alive = alive.filter(|(_, it)| !is_terminal(it.state) && !goes_on(it));
            live.extend(alive.map(|(at, _)| (key.clone(), at)));
        }
        live
    }

    /// Executions whose input has ended come to their end.
    pub(super) fn end_what_has_ended(&mut self, index: usize) {
        let live = self.live_on(index, Fails::No);
        for (pick, (key, at)) in live.iter().enumerate().rev() {
            let running = &self.task_managers[index].running[key][*at];
            if running.state == S::Running && self.has_read_all(key, running.generation) {
                self.progress(index, pick, Fails::No);
            }
        }
    }

    /// All complete outputs with their places.
    fn kept(&self) -> Vec<(TaskKey, u64, pb::TaskManagerLocation)> {
        let of_one = |it: &TaskManager| {
            let location = it.location();
            let outputs = it.outputs.iter().cloned();
            outputs
                .map(move |(key, generation)| (key, generation, location.clone()))
                .collect::<Vec<_>>()
        };
        self.task_managers.iter().flat_map(of_one).collect()
    }

    fn is_kept(&self, vertex_id: &str) -> bool {
        let mut edges = self.graph.edges.iter();
        edges.any(|edge| edge.source == vertex_id && edge.exchange() == pb::Exchange::Blocking)
    }

    pub(super) fn note_hung_commit(&mut self) {
        let due_ms = self.committing_since_ms.map(|it| it + COMMIT_TIMEOUT_MS);
        self.sinks_hung |= due_ms.is_some_and(|due_ms| due_ms <= self.now_ms);
    }

    /// A commit in progress is not answered before its timeout.
    fn hang(&mut self) {
        if self.committing_since_ms.is_some() {
            self.now_ms += COMMIT_TIMEOUT_MS;
            self.hear(Event::TimePassed);
        }
    }

    /// A commit is refused, as another run's output is in the way.
    fn refuse_commit(&mut self) {
        if self.committing_since_ms.take().is_some() {
            self.hear(Event::SinksRefused("it is there already".to_owned()));
        }
    }

    pub(super) fn commit(&mut self, succeeds: bool) {
        self.note_hung_commit();
        if self.committing_since_ms.take().is_some() {
            self.sinks_committed |= succeeds;
            self.sinks_failed |= !succeeds;
            self.hear(if succeeds {
                Event::SinksCommitted
            } else {
                Event::SinksFailed("no space".to_owned())
            });
        }
    }

    pub(super) fn step(&mut self, kind: u8, pick: usize) {
        let index = pick % self.task_managers.len();
        match kind {
            0..20 => self.deliver_event(pick),
            20..40 if !self.requests.is_empty() => {
                let request = self.requests.remove(pick % self.requests.len());
                self.deliver(request, true, true);
            }
            40..50 => self.apply_write(),
            50..60 => self.allocate(pick),
            60..72 => self.progress(index, pick / 3, Fails::No),
            72..76 => self.register(index),
            76..80 => self.heartbeats(),
            80..84 => {
                self.now_ms += 400;
                self.hear(Event::TimePassed);
            }
            84 if pick.is_multiple_of(2) => self.progress(index, pick / 2, Fails::ForGood),
            84 => self.progress(index, pick / 3, Fails::Yes),
            85 if !self.requests.is_empty() => {
                // Repeated by the network.
                let request = self.requests[pick % self.requests.len()].clone();
                self.deliver(request, true, false);
            }
            86 if !self.requests.is_empty() => {
                // Lost by the network; the sender receives an error.
                let request = self.requests.remove(pick % self.requests.len());
                self.deliver(request, false, false);
            }
            87 if !self.requests.is_empty() => {
                let request = self.requests.remove(pick % self.requests.len());
                self.deliver(request, true, false);
            }
            88 if !self.events.is_empty() => {
                let pick = pick % self.events.len();
                let is_from_afar = matches!(
                    self.events[pick].1,
                    Event::Registered { .. }
                        | Event::SlotsOffered { .. }
                        | Event::ExecutionsReported { .. }
                        | Event::HeartbeatAnswered { .. }
                        | Event::CoordinatorAsked { .. }
                );
                if is_from_afar {
                    self.events.remove(pick);
                }
            }
            89 if !self.events.is_empty() => {
                let event = self.events[pick % self.events.len()].clone();
                self.events.push(event);
            }
            90 => self.task_managers[index].crash(),
            91 => {
                let connection = self.task_managers[index].connection();
                let cause = "no heartbeat".to_owned();
                self.lose(index);
                self.hear(Event::TaskManagerLost { connection, cause });
            }
            92 => {
                if pick.is_multiple_of(2) {
                    self.apply_write();
                }
                self.begin_term();
            }
            93 if pick.is_multiple_of(4) => self.hear(Event::CancelRequested),
            94 if pick.is_multiple_of(7) => self.hang(),
            94 if pick.is_multiple_of(11) => self.refuse_commit(),
            94 => self.commit(!pick.is_multiple_of(3)),
            95 => self.prove_gone(index),
            96 => self.deliver_late_duplicate(pick),
            97 => self.hear_of_an_older_attempt(pick),
            98..103 => self.ask(pick),
            103 => self.asking.next_look_fails = true,
            104 if pick.is_multiple_of(4) => self.stop(),
            105..113 => self.step_of_drains(kind - 105, pick),
            _ => {}
        }
    }

    /// The JobMaster receives that the former incarnation of a TaskManager is gone.
    fn prove_gone(&mut self, index: usize) {
        let task_manager = &self.task_managers[index];
        let event = Event::TaskManagerGone {
            task_manager: task_manager.id.clone(),
            incarnation: task_manager.incarnation.saturating_sub(1).to_string(),
        };
        self.hear(event);
    }

    /// Terms begin and end, and messages are late, but no TaskManager and no task fails.
    pub(super) fn step_of_leaders(&mut self, kind: u8, pick: usize) {
        match kind {
            0..25 => self.step(kind % 20, pick),
            25..30 => self.ask(pick),
            30..50 => self.step(20, pick),
            50..60 => self.apply_write(),
            60..72 => self.step(72, pick),
            72..80 => self.step(76, pick),
            80 => self.step(85, pick),
            81 => self.step(87, pick),
            90 => self.step(96, pick),
            82 => self.step(89, pick),
            83..86 => self.step(92, pick),
            91..97 => self.progress(pick % self.task_managers.len(), pick / 3, Fails::No),
            97..100 => self.allocate(pick),
            100 => self.commit(true),
            86..90 if self.now_ms < self.term_began_ms + RECONCILE_TIMEOUT_MS - 500 => {
                self.step(80, pick);
            }
            _ => {}
        }
    }

    /// Runs without faults and without ends of tasks until all regions run in the stored generations, and
    /// nothing else does; or until the job has ended or is about to.
    pub(super) fn come_to_run(&mut self) {
        for _ in 0..400 {
            let is_to_end = self.stored.wanted() != pb::WantedStatus::Running
                || !self.stored.fatal_cause.is_empty();
            if self.result.is_some() || is_to_end {
                return;
            }
            // A failure that the JobMaster has just received is not in the store yet: then all regions run
            // according to the store, but not according to the JobMaster.
            if self.runs_whole() && self.all_that_may_run_does() {
                return;
            }
            self.round(false);
        }
        panic!("the job does not run: {self:#?}");
    }

    pub(super) fn runs_whole(&self) -> bool {
        let regions = &self.stored.regions;
        let alive = self.task_managers.iter().flat_map(|it| it.running.iter());
        let mut alive = alive.flat_map(|(key, of_key)| of_key.iter().map(move |it| (key, it)));
        let is_known = |(key, running): (&TaskKey, &Running)| {
            let region = region_of(&self.built, &self.stored, (&key.0, key.1));
            is_terminal(running.state)
                || running.state == S::Running && running.generation == region.generation
        };
        let has_heard = self.core.as_ref().is_some_and(|core| {
            core.status() == pb::JobStatus::Running && core.adoption().is_some()
        });
        has_heard
            && !regions.is_empty()
            && regions
                .iter()
                .enumerate()
                .all(|(number, region)| self.is_whole(region) || self.awaits_input(number))
            && alive.all(is_known)
    }

    /// Whether an input of a region has not finished.
    fn awaits_input(&self, region: usize) -> bool {
        let built = &self.built;
        built.inputs_of(region).into_iter().any(|task| {
            let vertex = built.vertex_of(task).id.to_string();
            let key = (vertex, built.task(task).subtask);
            let of = (key.0.as_str(), key.1);
            let generation = region_of(&self.built, &self.stored, of).generation;
            !is_recorded(&self.stored, &key, generation)
        })
    }

    /// Runs these steps, then without faults until the job has ended.
    pub(super) fn live(&mut self, steps: Vec<(u8, u16)>, asked: Option<(usize, Event)>) {
        for (kind, pick) in steps {
            self.step(kind, usize::from(pick));
        }
        self.come_to_run();
        self.come_to_an_end(asked);
    }

    /// Runs a step, after rounds without faults in which tasks send requests.
    pub(super) fn suffer_after(&mut self, rounds: usize, kind: u8, pick: usize) {
        for round in 0..rounds {
            self.ask(pick / 5 + round);
            self.round(true);
        }
        self.step(kind, pick);
    }

    /// Runs without faults until the job has ended. `asked`: a cancel or stop request in one of the rounds.
    pub(super) fn come_to_an_end(&mut self, asked: Option<(usize, Event)>) {
        for round in 0..400 {
            if self.result.is_some() {
                return;
            }
            self.round(true);
            match &asked {
                Some((at, event)) if *at == round => self.hear(event.clone()),
                // A client whose stop is refused at present asks again.
                Some((at, Event::StopRequested)) if *at < round => self.stop_unless_acknowledged(),
                Some(_) | None => {}
            }
        }
        panic!("the job does not end: {:#?}", self.core);
    }

    /// All messages in flight arrive, and half a second passes.
    pub(super) fn round(&mut self, tasks_end: bool) {
        self.apply_write();
        self.commit(true);
        self.tell_leaving();
        for index in 0..self.task_managers.len() {
            let id = &self.task_managers[index].id;
            let connections = self.core.iter().flat_map(|core| core.connections());
            let mut known = connections.filter(|it| it.0.task_manager == *id);
            let known = known.next().map(|it| it.0.registration.get());
            if known != Some(self.task_managers[index].registration) {
                self.register(index);
            }
            if tasks_end {
                // With checkpoints many steps lead to an end.
                let steps = match self.checkpoints {
                    Some(_) => self.task_managers[index].running.len(),
                    None => 1,
                };
                for pick in (0..steps.max(1)).rev() {
                    self.progress(index, pick, Fails::No);
                }
            } else {
                self.go_on(index);
            }
            let task_manager = &self.task_managers[index];
            let (connection, slots) = (task_manager.connection(), task_manager.offers());
            self.events
                .push((self.epoch, Event::SlotsOffered { connection, slots }));
        }
        self.allocate(0);
        self.heartbeats();
        for request in std::mem::take(&mut self.requests) {
            self.deliver(request, true, true);
        }
        while !self.events.is_empty() {
            self.deliver_event(0);
        }
        self.round_of_checkpoints(tasks_end);
        self.now_ms += 500;
        self.hear(Event::TimePassed);
    }

    /// Starting executions run, and stopping ones have stopped.
    pub(super) fn go_on(&mut self, index: usize) {
        let task_manager = &mut self.task_managers[index];
        let mut executions = Vec::new();
        for (key, running) in &mut task_manager.running {
            for running in running.iter_mut() {
                running.state = match running.state {
                    S::Canceling => S::Canceled,
                    S::Deploying => S::Running,
                    other => other,
                };
                executions.push(report(key, running));
            }
        }
        let connection = task_manager.connection();
        let event = Event::ExecutionsReported {
            connection,
            executions,
        };
        self.events.push((self.epoch, event));
    }
}

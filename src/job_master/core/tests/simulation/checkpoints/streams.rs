//! The executions on the TaskManagers: what they read, save, tell and show, and what they are restored from.

use std::collections::BTreeSet;

use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;

use super::{ALONE_MS, Checkpoints, Stream};
use crate::core::Connection;
use crate::core::checkpoints::tests::simulation::execution::{Element, Execution, Life};
use crate::core::checkpoints::{Barrier, Event, TaskEnd, TaskProgress, TaskReport};
use crate::core::tests::simulation::coordinators::stored_listing;
use crate::core::tests::simulation::task_manager::TaskKey;
use crate::core::tests::simulation::world::World;

/// Number of steps of each execution in a round without faults.
const STEPS: usize = 12;

impl Checkpoints {
    pub(super) fn position(&self, (task, generation): (usize, u64)) -> Option<usize> {
        let mut streams = self.streams.iter();
        streams.position(|it| (it.execution.task, it.execution.generation) == (task, generation))
    }

    pub(super) fn execution(&mut self, key: (usize, u64)) -> Option<&mut Execution> {
        let at = self.position(key)?;
        Some(&mut self.streams[at].execution)
    }

    /// A source injects a barrier, unless it knows the number.
    pub(super) fn inject(&mut self, at: usize, barrier: Barrier) {
        if barrier.number > self.streams[at].execution.highest {
            self.take_up(at, barrier);
            self.send(at, Element::Barrier(barrier));
            // Also one that has paused goes on behind a barrier that does not say so.
            let pauses = barrier.pauses.then_some(barrier.number);
            self.streams[at].execution.paused_behind = pauses;
        }
    }

    fn take_up(&mut self, at: usize, barrier: Barrier) {
        let Stream {
            execution, listing, ..
        } = &mut self.streams[at];
        let object = (!self.random.one_in(3)).then(|| {
            let (number, random) = (barrier.number, self.random.next());
            format!("{number}-{}-{random:016x}", execution.generation)
        });
        self.listings
            .insert((execution.task, barrier.number), *listing);
        execution.take_up(barrier, object, self.padding);
    }

    /// A source sends to all sinks of its region and generation, also to those that have not begun.
    fn send(&mut self, at: usize, element: Element) {
        let source = &self.streams[at].execution;
        let (task, region, generation) = (source.task, source.region, source.generation);
        let tasks = self.regions[region].clone();
        let number = tasks.iter().position(|it| *it == task);
        let number = number.expect("it is of the region");
        for sink in &tasks[self.sources_of(region)..] {
            let key = (*sink, generation);
            match self.execution(key) {
                Some(sink) => sink.inputs[number].queue.push_back(element),
                None => self.early.entry(key).or_default().push((number, element)),
            }
        }
    }

    /// An execution takes its next step. Returns what it tells.
    fn run(&mut self, at: usize, connection: Connection, ends: bool) -> Option<Event> {
        let execution = &mut self.streams[at].execution;
        if execution.life != Life::Running || execution.paused_behind.is_some() {
            return None;
        }
        if execution.inputs.is_empty() {
            if ends {
                return Some(self.end_input(at, connection));
            }
            let (task, index) = (execution.task, execution.position);
            execution.position += 1;
            let region = execution.region;
            if self.regions[region].len() == self.sources_of(region) {
                self.streams[at].execution.open.push((task, index));
            }
            self.send(at, Element::Record);
            return None;
        }
        let input = self.random.pick(&execution.open_inputs())?;
        let source = self.regions[execution.region][input];
        let declined = execution.read(input, source);
        let declined = declined.map(|number| execution.declined(connection.clone(), number));
        if execution.is_aligned() {
            let barrier = execution.barrier.expect("it blocks for one");
            self.take_up(at, barrier);
        }
        let has_ended = |execution: &Execution| execution.inputs.iter().all(|it| it.is_ended);
        match has_ended(&self.streams[at].execution) {
            true => Some(self.end_input(at, connection)),
            false => declined,
        }
    }

    fn end_input(&mut self, at: usize, connection: Connection) -> Event {
        let execution = &mut self.streams[at].execution;
        execution.life = Life::InputEnded;
        if execution.inputs.is_empty() {
            let key = (execution.task, execution.generation);
            self.last_positions.insert(key, execution.position);
            self.send(at, Element::End);
        }
        self.streams[at].execution.input_ended(connection)
    }

    fn finish_writing(&mut self, at: usize) {
        let object = self.streams[at].execution.finish_writing();
        self.objects.extend(object);
    }

    /// Asserts that all records of all sources are committed, by each sink of their region.
    pub(super) fn assert_output_is_complete(&self, stored: &pb::JobState) {
        for (region, tasks) in self.regions.iter().enumerate() {
            let generation = stored.regions[region].generation;
            let (sources, sinks) = tasks.split_at(self.sources_of(region));
            for source in sources {
                // A region without checkpoints has no streams.
                let Some(last) = self.last_positions.get(&(*source, generation)) else {
                    continue;
                };
                let own = [*source];
                let sinks = if sinks.is_empty() { &own[..] } else { sinks };
                for (sink, at) in sinks
                    .iter()
                    .flat_map(|sink| (0..*last).map(move |it| (sink, it)))
                {
                    let record = (format!("t{sink}"), format!("{source}.{at}"));
                    let is_committed = self.committed_records.contains_key(&record);
                    assert!(is_committed, "K7: record {record:?} is not committed");
                }
            }
        }
    }

    /// Regions with a source that reads, by the record of the job, without those with a task whose input has ended and
    /// that still runs: no number is taken until it has ended.
    pub(super) fn reading(&self, stored: &pb::JobState) -> BTreeSet<usize> {
        let executions = self.streams.iter().map(|it| &it.execution);
        let present: Vec<&Execution> = executions
            .filter(|it| {
                let region = stored.regions.get(it.region);
                region.is_some_and(|region| region.generation == it.generation)
            })
            .collect();
        let ending = present.iter().filter(|it| it.life == Life::InputEnded);
        let ending: BTreeSet<usize> = ending.map(|it| it.region).collect();
        let reads = |it: &&&Execution| it.inputs.is_empty() && it.life == Life::Running;
        let reading = present.iter().filter(reads).map(|it| it.region);
        reading.filter(|region| !ending.contains(region)).collect()
    }

    /// The regions and numbers for which executions block inputs, by the record of the job.
    pub(super) fn blocked(&self, stored: &pb::JobState) -> Vec<(usize, u64)> {
        let live = self.streams.iter().map(|it| &it.execution).filter(|it| {
            it.life == Life::Running && stored.regions[it.region].generation == it.generation
        });
        let blocked = live.filter_map(|it| Some((it.region, it.barrier?.number)));
        blocked.collect()
    }
}

impl World {
    /// Fills in what tasks are restored from, as the actor does.
    pub(in crate::core::tests::simulation) fn fill_restores(
        &mut self,
        tasks: &mut [pb::TaskDeployment],
    ) {
        let first = self.graph.vertices[0].id.clone();
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        for task in tasks {
            let region = usize::try_from(task.region).expect("few regions");
            let number = task.restore.as_ref().map_or(0, |it| it.number);
            let stored = &self.stored.regions[region];
            let id = at.task((&task.vertex_id, task.subtask));
            if task.vertex_id == first {
                let listing = stored_listing(&self.stored, &first);
                at.deployed_listings.insert((id, task.generation), listing);
            }
            assert_eq!(number, stored.restored_from, "K1: {task:?}");
            let Some(restore) = &mut task.restore else {
                continue;
            };
            let core = at.core.as_ref().expect("the term has one");
            let snapshot = core
                .snapshot(region)
                .expect("K1: a snapshot that is durable");
            assert_eq!(snapshot.number, restore.number, "K1: of {region}");
            let mut subtasks = snapshot.subtasks.iter();
            let own = subtasks
                .find(|it| it.vertex_id == task.vertex_id && it.subtask == task.subtask)
                .expect("it has each task")
                .clone();
            at.reached.restored += 1;
            at.reached.restored_ended += u64::from(own.ended);
            if task.vertex_id == first && !own.ended {
                // Its position is a number of a request to the coordinator that gave its splits.
                let listing = stored_listing(&self.stored, &first);
                let before = at.listings[&(id, restore.number)];
                assert_eq!(listing, before, "K8: files were listed again for {task:?}");
            }
            restore.snapshot = Some(own);
        }
    }

    /// A TaskManager starts a task.
    pub(in crate::core::tests::simulation) fn begin_stream(
        &mut self,
        index: usize,
        task: &pb::TaskDeployment,
    ) {
        let Some(at) = self.checkpoints.as_mut().filter(|_| task.takes_checkpoints) else {
            return;
        };
        let key = (task.vertex_id.clone(), task.subtask);
        let id = at.task((&key.0, key.1));
        let region = at.tasks[id].region;
        let inputs = match at.tasks[id].is_source {
            true => 0,
            false => at.sources_of(region),
        };
        let of = (region, task.generation);
        let mut execution = Execution::new((id, key.clone()), of, index, inputs);
        let mut is_ended = false;
        if let Some(restore) = &task.restore {
            execution.highest = restore.number;
            let saved = restore.snapshot.as_ref().expect("it was filled in");
            is_ended = saved.ended;
            if is_ended {
                let generation = at.generations[&(region, restore.number)];
                let before = at.last_positions.get(&(id, generation));
                execution.position = before.copied().unwrap_or_default();
            } else {
                execution.restore(restore.number, saved);
            }
        }
        for (number, element) in at
            .early
            .remove(&(id, task.generation))
            .into_iter()
            .flatten()
        {
            execution.inputs[number].queue.push_back(element);
        }
        let listing = at.deployed_listings.get(&(id, task.generation)).copied();
        at.streams.push(Stream {
            key,
            incarnation: self.task_managers[index].incarnation,
            execution,
            listing: listing.unwrap_or_default(),
        });
        if is_ended {
            // It opens nothing and ends its outputs.
            let last = at.streams.len() - 1;
            let connection = self.task_managers[index].connection();
            let event = at.end_input(last, connection);
            at.told.push((self.task_managers[index].epoch, event));
        }
    }

    /// Executions that have failed or were cancelled, or whose TaskManager ended, do nothing any more.
    pub(super) fn sync_streams(&mut self) {
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        for stream in &mut at.streams {
            let execution = &mut stream.execution;
            let task_manager = &self.task_managers[execution.te];
            let known = task_manager.running.get(&stream.key);
            let mut known = known.into_iter().flatten();
            let known = known.find(|it| it.generation == execution.generation);
            let is_gone = match known.map(|it| it.state) {
                Some(S::Failed | S::Canceled) => true,
                Some(_) => false,
                None => execution.life != Life::Ended,
            };
            if is_gone || task_manager.incarnation != stream.incarnation {
                execution.life = Life::Dead;
            }
        }
    }

    /// What a TaskManager reports of its executions.
    pub(super) fn stream_reports(&mut self, index: usize) -> Vec<TaskReport> {
        self.sync_streams();
        let streams = self.checkpoints.iter().flat_map(|at| &at.streams);
        let known = streams.map(|it| &it.execution);
        let known = known.filter(|it| it.te == index && it.life != Life::Dead);
        known.map(Execution::report).collect()
    }

    /// A TaskManager reports with its registration.
    pub(in crate::core::tests::simulation) fn report_registering(&mut self, index: usize) {
        let reports = self.stream_reports(index);
        if let Some(at) = &mut self.checkpoints {
            let connection = self.task_managers[index].connection();
            at.registrations.insert(connection, reports);
        }
    }

    /// A TaskManager reports with the answer to a heartbeat.
    pub(in crate::core::tests::simulation) fn report_answering(
        &mut self,
        index: usize,
        connection: &Connection,
    ) {
        let reports = self.stream_reports(index);
        if let Some(at) = &mut self.checkpoints {
            let event = Event::Reported {
                connection: connection.clone(),
                reports,
            };
            at.told.push((self.task_managers[index].epoch, event));
        }
    }

    /// Whether an execution is one that saves its state.
    pub(in crate::core::tests::simulation) fn has_stream(
        &self,
        key: &TaskKey,
        generation: u64,
    ) -> bool {
        let mut streams = self.checkpoints.iter().flat_map(|at| &at.streams);
        streams.any(|it| it.key == *key && it.execution.generation == generation)
    }

    /// Whether an execution has read all of its input.
    pub(in crate::core::tests::simulation) fn has_read_all(
        &self,
        key: &TaskKey,
        generation: u64,
    ) -> bool {
        let mut streams = self.checkpoints.iter().flat_map(|at| &at.streams);
        streams.any(|it| {
            let execution = &it.execution;
            it.key == *key
                && execution.generation == generation
                && execution.life == Life::InputEnded
        })
    }

    /// An execution goes on until its end, if that is what is left to do. None: it goes on.
    pub(in crate::core::tests::simulation) fn end_stream(
        &mut self,
        key: &TaskKey,
        generation: u64,
    ) -> Option<TaskEnd> {
        let at = self.checkpoints.as_mut()?;
        let task = at.task((&key.0, key.1));
        let position = at.position((task, generation))?;
        let execution = &at.streams[position].execution;
        if execution.life != Life::InputEnded || execution.writing.is_some() {
            self.run_stream(position, true);
            return None;
        }
        let execution = &mut at.streams[position].execution;
        execution.life = Life::Ended;
        at.true_ends.insert((task, generation), execution.highest);
        Some(execution.end())
    }

    /// An execution takes its next step. `reads`: also if it is a source.
    fn run_stream(&mut self, position: usize, reads: bool) {
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        let stream = &at.streams[position];
        let task_manager = &self.task_managers[stream.execution.te];
        let known = task_manager.running.get(&stream.key);
        let runs = known.into_iter().flatten().any(|it| {
            it.generation == stream.execution.generation
                && matches!(it.state, S::Running | S::Canceling)
        });
        let is_source = stream.execution.inputs.is_empty();
        let has_read = !self.stopping.is_endless && stream.execution.position >= at.records;
        let ends = has_read || task_manager.is_told_to_stop;
        if !runs || is_source && !reads {
            return;
        }
        let (connection, epoch) = (task_manager.connection(), task_manager.epoch);
        let event = at.run(position, connection, ends);
        at.told.extend(event.map(|event| (epoch, event)));
    }

    /// One of the sources comes to its end early.
    pub(super) fn end_a_source_early(&mut self, pick: usize) {
        self.sync_streams();
        let streams = self.checkpoints.iter().flat_map(|at| &at.streams);
        let reads = |it: &Execution| it.inputs.is_empty() && it.life == Life::Running;
        let sources = streams.enumerate().filter(|(_, it)| reads(&it.execution));
        let sources: Vec<usize> = sources.map(|it| it.0).collect();
        if let Some(position) = sources.get(pick % sources.len().max(1)) {
            self.end_early(*position);
        }
    }

    /// A source comes to its end early.
    fn end_early(&mut self, position: usize) {
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        let task_manager = &self.task_managers[at.streams[position].execution.te];
        let (connection, epoch) = (task_manager.connection(), task_manager.epoch);
        let is_told = at.fails && task_manager.epoch > 0;
        let event = is_told
            .then(|| at.run(position, connection, true))
            .flatten();
        at.told.extend(event.map(|event| (epoch, event)));
    }

    /// An execution repeats what was not answered.
    fn repeat(&mut self, position: usize) {
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        let execution = &at.streams[position].execution;
        if execution.life != Life::Dead {
            let task_manager = &self.task_managers[execution.te];
            let event = execution.acknowledged(task_manager.connection());
            at.told
                .extend(event.map(|event| (task_manager.epoch, event)));
        }
    }

    /// An execution that writes can't do so.
    fn decline(&mut self, position: usize) {
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        let execution = &mut at.streams[position].execution;
        execution.writing = None;
        let number = execution.highest;
        execution.give_up(number, TaskProgress::Declined);
        let task_manager = &self.task_managers[execution.te];
        let event = execution.declined(task_manager.connection(), number);
        at.told.push((task_manager.epoch, event));
        at.reached.declined += 1;
    }

    /// TaskManagers that have had no JobMaster for some time decline what their tasks block for.
    pub(super) fn note_alone(&mut self) {
        self.sync_streams();
        let connections = self.core.iter().flat_map(|core| core.connections());
        let connections: BTreeSet<Connection> = connections.map(|it| it.0).collect();
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        for (index, task_manager) in self.task_managers.iter().enumerate() {
            if connections.contains(&task_manager.connection()) {
                at.alone_since_ms.remove(&index);
                continue;
            }
            let since_ms = at.alone_since_ms.entry(index).or_insert(self.now_ms);
            if *since_ms + ALONE_MS > self.now_ms {
                continue;
            }
            let executions = at.streams.iter_mut().map(|it| &mut it.execution);
            for execution in executions.filter(|it| it.te == index && it.lives()) {
                if execution.progress == TaskProgress::Blocked {
                    let number = execution.highest;
                    execution.give_up(number, TaskProgress::Declined);
                }
            }
        }
    }

    /// What a TaskManager tells arrives, unless the term is over.
    fn deliver_told(&mut self, pick: usize) {
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        if at.told.is_empty() {
            return;
        }
        let (epoch, event) = at.told.remove(pick % at.told.len());
        if epoch == self.epoch && self.result.is_none() {
            self.tell_checkpoints(event);
            self.settle_checkpoints();
        }
    }

    /// Something happens at the executions, the store or the blob store.
    pub(super) fn work_on_checkpoints(&mut self) {
        self.sync_streams();
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        let pick = at.random.below(usize::MAX);
        let kind = at.random.below(100);
        let is_fault = at.fails && at.random.one_in(12);
        let live = at.streams.iter().enumerate();
        let live = live.filter(|(_, it)| it.execution.lives()).map(|it| it.0);
        let live: Vec<usize> = live.collect();
        let position = live.get(pick % live.len().max(1)).copied();
        match (kind, position) {
            (0..25, _) => self.deliver_told(pick),
            (25..60, Some(position)) => self.run_stream(position, true),
            (60..75, Some(_)) => {
                let writing = live.into_iter();
                let writing = writing.filter(|it| at.streams[*it].execution.writing.is_some());
                let writing: Vec<usize> = writing.collect();
                match at.random.pick(&writing) {
                    Some(position) if is_fault => self.decline(position),
                    Some(position) => {
                        at.finish_writing(position);
                        self.repeat(position);
                    }
                    None => {}
                }
            }
            (75..80, Some(_)) if !at.streams.is_empty() => {
                let position = pick % at.streams.len();
                self.repeat(position);
            }
            (80..88, _) => self.answer_checkpoints(is_fault),
            (88..97, _) if !at.is_copied_later(pick) => self.do_outside(pick, is_fault),
            (97, Some(position)) if at.streams[position].execution.inputs.is_empty() => {
                self.end_early(position);
            }
            (98.., _) if !at.told.is_empty() => {
                // Told twice, or lost on the way.
                let event = at.told[pick % at.told.len()].clone();
                match is_fault {
                    true => drop(at.told.swap_remove(pick / 2 % at.told.len())),
                    false => at.told.push(event),
                }
            }
            _ => {}
        }
    }

    /// All that is under way arrives, and executions go on. `reads`: sources read, too.
    pub(in crate::core::tests::simulation) fn round_of_checkpoints(&mut self, reads: bool) {
        if self.checkpoints.is_none() {
            return;
        }
        self.sync_streams();
        self.answer_checkpoints(false);
        while let Some(pick) = self.checkpoints.as_mut().and_then(|at| at.next_outside()) {
            self.do_outside(pick, false);
        }
        let count = self.checkpoints.as_ref().map_or(0, |at| at.streams.len());
        for position in 0..count {
            if let Some(at) = &mut self.checkpoints
                && at.streams[position].execution.lives()
            {
                at.finish_writing(position);
                for _ in 0..STEPS {
                    self.run_stream(position, reads);
                }
            }
            self.repeat(position);
        }
        while self
            .checkpoints
            .as_ref()
            .is_some_and(|at| !at.told.is_empty())
        {
            self.deliver_told(0);
        }
    }
}

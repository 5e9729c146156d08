//! Blocked reasons: why not all of a job runs or makes progress, for users and REST. Missing slots, a pending
//! restart, awaited TaskManagers. Pure; decides nothing.

use std::collections::BTreeSet;

use tanist_gateway::START_BY_HAND;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::JobMasterCore;
use super::job_end::Commit;
use super::result_partitions::ResultPartition;

/// Maximum number of subtasks or TaskManagers that are named.
const NAMED: usize = 8;
/// Duration of a write in ms after which it is reported.
const LONG_WRITE_MS: u64 = 1_000;

fn blocked_reason(kind: pb::BlockedReasonKind, text: String) -> pb::BlockedReason {
    pb::BlockedReason {
        kind: kind.into(),
        text,
        ..pb::BlockedReason::default()
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl JobMasterCore {
    /// The reasons that keep the job or some of its regions from running, or running tasks from records;
    /// empty if all of it makes progress. The first cases exclude the later ones: while they hold, the rest is only a
    /// consequence.
    pub(super) fn blocked_reasons(&self) -> Vec<pb::BlockedReason> {
        if self.end.has_ended() {
            let text = "it has ended, and its result is being written".to_owned();
            return vec![blocked_reason(pb::BlockedReasonKind::CleaningUp, text)];
        }
        if let Some(reason) = self.record.refusal() {
            let text = format!("its state can't be persisted: {reason}");
            return vec![blocked_reason(pb::BlockedReasonKind::Store, text)];
        }
        if !self.record.is_durable() {
            let text = "the store has not confirmed yet that this JobMaster has the job".to_owned();
            return vec![blocked_reason(pb::BlockedReasonKind::Store, text)];
        }
        if self.record.is_stopping() {
            return self
                .storing()
                .into_iter()
                .chain(self.checkpoint_commit.blocked_reason())
                .chain([self.stopping()])
                .collect();
        }
        let found = [
            self.storing(),
            self.reconciling(),
            self.restarting(),
            self.restoring(),
            self.without_slots(),
            self.committing(),
            self.checkpoint_commit.blocked_reason(),
            self.winding_up(),
            self.moving(),
            self.without_peers(),
        ];
        found.into_iter().flatten().collect()
    }

    /// The reason if the last decision has not been confirmed by the store for a long time.
    fn storing(&self) -> Option<pb::BlockedReason> {
        let is_long = self.decided_at_ms >= self.write_is_long_at_ms()?;
        is_long.then(|| {
            let text =
                "the store has not confirmed the last decision yet; it takes effect only then";
            pb::BlockedReason {
                since_ms: self.record.writing_since_ms().unwrap_or_default(),
                ..blocked_reason(pb::BlockedReasonKind::Store, text.to_owned())
            }
        })
    }

    /// When the write in flight has to be reported as slow.
    pub(super) fn write_is_long_at_ms(&self) -> Option<u64> {
        let since_ms = self.record.writing_since_ms()?;
        Some(since_ms.saturating_add(LONG_WRITE_MS))
    }

    fn stopping(&self) -> pb::BlockedReason {
        let tasks = self.graph.tasks().iter().enumerate();
        let left: Vec<usize> = tasks
            .filter(|(_, task)| !task.execution.is_ended())
            .map(|(task, _)| task)
            .collect();
        let decided = self.record.decided();
        let why = match decided.fatal_cause.as_str() {
            "" if !decided.stopped_with.is_empty() => {
                format!("it stops with the savepoint {}", decided.stopped_with)
            }
            "" => "it is being cancelled".to_owned(),
            cause => format!("it fails: {cause}"),
        };
        let text = match left.len() {
            0 => format!("{why}; all its tasks have stopped, and its end is being written"),
            left => format!("{why}; {left} tasks have not stopped yet"),
        };
        let named = left.iter().take(NAMED);
        pb::BlockedReason {
            missing: named.map(|task| self.graph.task_name(*task)).collect(),
            ..blocked_reason(pb::BlockedReasonKind::Stopping, text)
        }
    }

    fn reconciling(&self) -> Option<pb::BlockedReason> {
        if !self.is_reconciling() {
            return None;
        }
        let executions = self.graph.tasks().iter().map(|task| &task.execution);
        let (mut running, mut outputs, mut ids) = (0, 0, BTreeSet::new());
        for (execution, place) in executions.filter_map(|it| Some((it, it.place.as_ref()?))) {
            let of_kind = if execution.state == ExecutionState::Reconciling {
                &mut running
            } else if execution.output == ResultPartition::Awaited {
                &mut outputs
            } else {
                continue;
            };
            *of_kind += 1;
            ids.insert(place.task_manager.as_str());
        }
        let first = ids.first()?;
        let what = match (running, outputs) {
            (running, 0) => format!("{running} running tasks"),
            (0, outputs) => format!("the outputs of {outputs} finished tasks"),
            (running, outputs) => {
                format!("{running} running tasks and the outputs of {outputs} finished ones")
            }
        };
        let text = format!(
            "{what} are awaited, on {} TaskManagers that have not registered since the leader changed: {first}{}",
            ids.len(),
            if ids.len() > 1 { " and others" } else { "" }
        );
        let until_ms = self.reconciliation.deadline_ms().unwrap_or_default();
        Some(pb::BlockedReason {
            since_ms: until_ms.saturating_sub(self.options.reconcile_timeout_ms),
            until_ms,
            missing: ids.into_iter().take(NAMED).map(str::to_owned).collect(),
            ..blocked_reason(pb::BlockedReasonKind::Reconciling, text)
        })
    }

    /// The reason while regions wait for their restart.
    pub(super) fn restarting(&self) -> Option<pb::BlockedReason> {
        let restarting = self.graph.indexes().restarting_at.iter();
        // Moved regions have not failed; `moving` reports them.
        let restarting = restarting.filter(|(at_ms, _)| !self.moves.is_of_move(*at_ms));
        let held_until_ms = |region: usize| {
            let failover = &self.failover;
            failover.held_until_ms(region, &self.graph, &self.record)
        };
        let held = |region: usize| held_until_ms(region).unwrap_or_default();
        let due: Vec<u64> = restarting
            .map(|(at_ms, region)| (*at_ms).max(held(*region)))
            .collect();
        let until_ms = *due.iter().max()?;
        let failure = self.record.decided().failures.last();
        let cause = failure.map_or_else(String::new, |failure| match failure.task.as_str() {
            "" => failure.cause.clone(),
            task => format!("{task}: {}", failure.cause),
        });
        let is_held = (0..self.graph.regions().len()).any(|region| held_until_ms(region).is_some());
        let regions = match self.graph.regions().len() {
            1 => "1 region".to_owned(),
            number => format!("{number} regions"),
        };
        let text = format!(
            "{} of {regions} {} restarted, after: {cause}{}",
            due.len(),
            if due.len() == 1 { "is" } else { "are" },
            if is_held {
                "; by then all of the last attempt has stopped (isolation: stop-first)"
            } else {
                ""
            }
        );
        Some(pb::BlockedReason {
            since_ms: failure.map_or(0, |failure| failure.at_ms),
            until_ms,
            ..blocked_reason(pb::BlockedReasonKind::Restarting, text)
        })
    }

    /// The reason while regions wait for slots.
    pub(super) fn without_slots(&self) -> Option<pb::BlockedReason> {
        if self.is_reconciling() {
            // The job's slots are not known yet.
            return None;
        }
        let needs = self.slot_needs();
        let waiting = self.graph.waiting().iter();
        let tasks: Vec<usize> = waiting
            .flat_map(|region| self.graph.region(*region).tasks.iter().copied())
            .collect();
        let (since_ms, _) = *self.graph.indexes().waiting_since.first()?;
        let needed = self.graph.slots_needed();
        let missing = needs
            .missing_slots()
            .iter()
            .map(|(_, number)| number)
            .sum::<u32>() as usize;
        // The first case that applies; the order matters.
        let text = match self.slots.unfulfillable() {
            _ if missing == 0 => self.with_slots(),
            Some(verdict) => format!("{}; {verdict}", needs.shortage()),
            None if needs.will_free_slots() => format!(
                "{}: the waiting regions run when regions of the job that run now have ended",
                needs.shortage()
            ),
            None if self.slots.wait().has_room() => format!(
                "{}: it runs when a TaskManager that has left comes back, or when jobs that were submitted before it, or \
                 hold what it needs, leave them",
                needs.shortage()
            ),
            None => format!("{}{START_BY_HAND}", needs.shortage()),
        };
        // Subtasks that already have a slot are not named as missing one.
        let taken = self.graph.taken_slots();
        let (mut keys, mut named) = (BTreeSet::new(), Vec::new());
        for task in &tasks {
            let key = self.graph.slot_key(*task);
            let is_named = named.len() == NAMED.min(missing) || taken.contains_key(&key);
            if !is_named && keys.insert(key) {
                named.push(self.graph.task_name(*task));
            }
        }
        Some(pb::BlockedReason {
            since_ms,
            until_ms: self.waits_until_ms().unwrap_or_default(),
            slots_needed: count(needed),
            slots_missing: count(missing),
            missing: named,
            ..blocked_reason(pb::BlockedReasonKind::NoSlots, text)
        })
    }

    /// What regions wait for although the job has slots for all of them.
    fn with_slots(&self) -> String {
        let needs = self.slot_needs();
        let (mut has_others, mut yields_slots, mut is_preparing) = (false, false, false);
        for region in self.graph.waiting().iter() {
            if needs.is_preparing(*region) {
                is_preparing = true;
            } else if needs.yields_slots(*region) {
                yields_slots = true;
            } else {
                has_others = true;
            }
        }
        let is_blocked = has_others && !needs.blocked_slots().is_empty();
        let awaited = [
            (is_blocked, "they are free of tasks of earlier attempts"),
            (yields_slots, "regions that wait longer have had their turn"),
            (is_preparing, "its input files have been listed"),
        ];
        let awaited = awaited.into_iter().filter(|(is_awaited, _)| *is_awaited);
        let awaited: Vec<&str> = awaited.map(|(_, what)| what).collect();
        match awaited.as_slice() {
            [] => "it has its slots, and is about to start".to_owned(),
            awaited => format!(
                "it has its slots, and starts when {}",
                awaited.join(", and when ")
            ),
        }
    }

    /// When the first waiting region fails if nothing changes, as `give_up_waiting` decides.
    fn waits_until_ms(&self) -> Option<u64> {
        let needs = self.slot_needs();
        let since_ms = |is_preparing: bool| {
            let mut waiting = self.graph.indexes().waiting_since.iter();
            let first = waiting.find(|(_, region)| needs.is_preparing(*region) == is_preparing);
            first.map(|(since_ms, _)| *since_ms)
        };
        let preparing = self
            .coordinators
            .is_any_preparing()
            .then(|| since_ms(true))
            .flatten();
        let fails_from_ms = needs.fails_from_ms();
        let others = since_ms(false).zip(fails_from_ms);
        let others = others.map(|(since_ms, from_ms)| since_ms.max(from_ms));
        let from_ms = preparing.into_iter().chain(others).min()?;
        Some(from_ms.saturating_add(self.options.slot_request_timeout_ms))
    }

    /// The reason if running tasks can't reach their peers, according to their last reports.
    fn without_peers(&self) -> Option<pb::BlockedReason> {
        let away_since = |task: &usize| {
            let execution = self.graph.execution(*task);
            let metrics = execution.metrics?;
            let is_away =
                execution.state == ExecutionState::Running && metrics.peer_away_since_ms > 0;
            is_away.then_some(metrics.peer_away_since_ms)
        };
        let tasks = 0..self.graph.tasks().len();
        let away: Vec<(usize, u64)> = tasks
            .filter_map(|task| Some((task, away_since(&task)?)))
            .collect();
        let since_ms = away.iter().map(|(_, since_ms)| *since_ms).min()?;
        let text = format!(
            "{} running tasks can't reach the peer that they read from or write to: the logs of their TaskManagers say why",
            away.len()
        );
        let named = away.iter().take(NAMED);
        Some(pb::BlockedReason {
            since_ms,
            missing: named.map(|(task, _)| self.graph.task_name(*task)).collect(),
            ..blocked_reason(pb::BlockedReasonKind::PeerAway, text)
        })
    }

    /// The reason if tasks can't read what they are restored from, according to their last reports.
    fn restoring(&self) -> Option<pb::BlockedReason> {
        let tasks = self.graph.tasks().iter().enumerate();
        let waiting = tasks.filter_map(|(task, at)| Some((task, at.execution.unread_state()?)));
        let waiting: Vec<(usize, &str)> = waiting.collect();
        let (_, first) = waiting.first()?;
        let text = match waiting.len() {
            1 => {
                format!("a task can't read the state that it begins with, and tries again: {first}")
            }
            count => format!(
                "{count} tasks can't read the state that they begin with, and try again: {first}"
            ),
        };
        let since_ms = waiting.iter().map(|(task, _)| {
            let execution = self.graph.execution(*task);
            execution.entered_at_ms(ExecutionState::Deploying)
        });
        let named = waiting.iter().take(NAMED);
        Some(pb::BlockedReason {
            since_ms: since_ms.min().unwrap_or_default(),
            missing: named.map(|(task, _)| self.graph.task_name(*task)).collect(),
            ..blocked_reason(pb::BlockedReasonKind::Restoring, text)
        })
    }

    /// The reason while a move waits for slots or its regions stop.
    fn moving(&self) -> Option<pb::BlockedReason> {
        let restarting = self.graph.indexes().restarting_at.iter();
        let stopping = restarting.filter(|(at_ms, _)| self.moves.is_of_move(*at_ms));
        let (number, names) = (stopping.count(), self.moves.describe());
        let text = if number > 0 {
            format!("{number} regions are being moved off {names}: they stop, and start elsewhere")
        } else if self.slot_needs().awaits_replacements() {
            let slots = self.moves.replaced().len();
            format!("the job runs, but has to leave {names}; it waits for {slots} slots elsewhere")
        } else {
            return None;
        };
        Some(pb::BlockedReason {
            since_ms: self.moves.since_ms(),
            ..blocked_reason(pb::BlockedReasonKind::Eviction, text)
        })
    }

    fn committing(&self) -> Option<pb::BlockedReason> {
        let (since_ms, until_ms) = match self.end.commit() {
            Commit::NotYet | Commit::Done => return None,
            Commit::Running { since_ms, .. } => (since_ms, 0),
            Commit::RetryAt { at_ms, .. } => (0, at_ms),
        };
        let text = match self.end.commit_failure() {
            None => "all tasks have finished, and what they wrote is being made visible".to_owned(),
            Some(failure) => format!(
                "all tasks have finished, and what they wrote can't be made visible yet (cancelling the job gives it up): {}",
                failure.cause
            ),
        };
        Some(pb::BlockedReason {
            since_ms,
            until_ms,
            ..blocked_reason(pb::BlockedReasonKind::Committing, text)
        })
    }
}

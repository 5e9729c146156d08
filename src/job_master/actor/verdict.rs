//! The ResourceManager's side of a job: its verdict, which the actor takes from a cell, and the declarations of what
//! the job needs.

use tanist_gateway::{GoneTaskManager, Verdict};

use super::{JobMasterActor, Next};
use crate::core::Event;

impl JobMasterActor {
    /// Takes the ResourceManager's verdict if it has changed since this actor last took it.
    pub(super) fn check_verdict(&mut self) -> Next {
        let verdict = self
            .calls
            .verdict
            .look(|verdict| (*verdict != self.verdict).then(|| verdict.clone()));
        match verdict {
            Some(verdict) => self.take_verdict(verdict),
            None => Next::Continue,
        }
    }

    /// Passes on the changed parts of the ResourceManager's verdict.
    pub(super) fn take_verdict(&mut self, verdict: Verdict) -> Next {
        if verdict.is_superseded {
            tracing::warn!(job = self.calls.job.job_id, "replaced by another JobMaster");
            return Next::Forget;
        }
        // The room is not taken from this copy, which may be out of date by now.
        let taken = Verdict {
            has_room: self.verdict.has_room,
            room_changes: self.verdict.room_changes,
            // `take_gone` takes these out of the cell, so that each is taken once.
            gone: Vec::new(),
            ..verdict.clone()
        };
        let before = std::mem::replace(&mut self.verdict, taken);
        self.take_room();
        self.take_gone();
        if verdict.leaving != before.leaving {
            self.note(Event::Leaving(verdict.leaving));
        }
        if verdict.unfulfillable != before.unfulfillable {
            self.note(Event::Unfulfillable(verdict.unfulfillable));
        }
        Next::Continue
    }

    /// Takes whether the cluster has room for the job, as the ResourceManager says at this moment.
    pub(super) fn take_room(&mut self) {
        let room = |verdict: &Verdict| (verdict.has_room, verdict.room_changes);
        let (has_room, room_changes) = self.calls.verdict.look(room);
        if room_changes == self.verdict.room_changes {
            return;
        }
        self.verdict.room_changes = room_changes;
        let had_room = std::mem::replace(&mut self.verdict.has_room, has_room);
        // Two changes since the last look: there was room in between. The core receives that too, because its time
        // without room begins again.
        let missed = (!had_room && !has_room).then_some(true);
        for has_room in missed.into_iter().chain([has_room]) {
            if let Err(refusal) = self.apply_one(Event::HasRoom(has_room)) {
                tracing::error!(job = self.calls.job.job_id, %refusal, "a change of the room was refused, which is a bug");
            }
        }
    }

    /// Takes the TaskManagers that the ResourceManager found gone out of the cell, and gives them up.
    fn take_gone(&mut self) {
        let mut gone = Vec::new();
        let take = |verdict: &mut Verdict| gone = std::mem::take(&mut verdict.gone);
        self.calls.verdict.change_quietly(take);
        for GoneTaskManager {
            id,
            incarnation,
            cause,
        } in gone
        {
            let location = self.core.location(&id);
            // Another process may have registered under its id.
            let is_registered = location.is_some_and(|it| it.incarnation == incarnation);
            match self.core.connection(&id).filter(|_| is_registered) {
                Some(connection) => self.lose(connection, cause),
                // Its executions may be awaited.
                None => self.note(Event::TaskManagerGone {
                    task_manager: id,
                    incarnation,
                }),
            }
        }
    }

    /// Declares what the job needs, unless a declaration is in flight.
    pub(super) fn declare(&mut self) {
        if !self.is_declaring {
            self.is_declaring = true;
            let (wanted, is_registered) = (self.wanted.clone(), self.is_registered);
            self.calls.declare(&mut self.io, wanted, is_registered);
        }
    }
}

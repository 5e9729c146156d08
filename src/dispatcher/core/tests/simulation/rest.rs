//! What holds once no effect is under way and no fault is left: each request has its answer, and no job waits.

use std::collections::BTreeSet;
use std::time::Duration;

use tanist_ha::election::NotLeading;
use tanist_proto::id::JobId;

use super::store::Health;
use super::world::{Asked, RETENTION, Reached, World, job_of};
use crate::core::{Command, Entry, Event, Resolution};

impl World {
    /// Whether the term ends, so that it answers its requests but leads no job.
    fn is_ending(&self) -> bool {
        self.is_fenced || self.standing == Err(NotLeading::Over)
    }

    /// The faults of the present term end, but not the term.
    pub(super) fn settle(&mut self) {
        if self.standing == Err(NotLeading::Suspended) {
            self.standing = Ok(());
        }
        self.come_to_rest();
        self.reach(Reached::SettledInTerm);
    }

    /// Without further faults: all effects end, and each request gets its answer.
    pub(in crate::core::tests) fn come_to_rest(&mut self) {
        (0..3).for_each(|number| self.heal(job_of(number)));
        self.read_results();
        self.start_suspects();
        for _ in 0..1000 {
            if self.pending.is_empty() {
                assert!(self.open.is_empty(), "no answer to {:?}", self.open);
                if !self.is_ending() {
                    self.check_entries();
                }
                if !self.is_fenced {
                    self.check_list();
                }
                return;
            }
            self.finish_one(0, false);
        }
        panic!("it does not come to rest: {:?}", self.pending);
    }

    /// No job waits for something that will not come.
    fn check_entries(&self) {
        assert!(!self.core.is_expiring, "a write about results never ends");
        assert!(self.core.unread.is_none(), "results stay unread");
        for (job, entry) in self.core.jobs.iter() {
            match entry {
                Entry::Persisting(_) | Entry::Rebuilding(_) => panic!("{job} stays {entry:?}"),
                Entry::Running { .. } => {
                    let job_master = self.job_masters.get(&job);
                    assert!(
                        job_master.is_some_and(|it| !it.has_ended),
                        "{job} has no JobMaster"
                    );
                }
                Entry::Quarantined(known) => assert!(!known.is_busy(), "{job} stays busy"),
                Entry::Ended(ended) => {
                    assert_eq!(ended.waiting(), 0, "submissions of {job} wait");
                    let is_done = !ended.result().dirty || ended.left().is_some();
                    assert!(is_done, "{job} stays dirty");
                }
            }
        }
    }

    /// A list has all jobs of the store, and no other.
    fn check_list(&mut self) {
        self.ask(Asked::Other, |reply| Command::List { reply }, false);
        self.finish_one(0, false);
        let stored = self.runs.keys().chain(self.removed.keys());
        let stored: BTreeSet<JobId> = stored.copied().collect();
        assert_eq!(self.listed, stored, "a list has other jobs than the store");
    }

    /// All requests are answered, then all jobs end and are forgotten, whatever has happened to them.
    pub(super) fn come_to_an_end(&mut self, pick: u16) {
        self.settle();
        if pick & 0x100 == 0x100 && !self.is_ending() {
            self.end_jobs();
            for job in (0..3).map(job_of) {
                let result = self.store.results.get(&job);
                let is_left = result.is_some_and(|it| it.value.dirty);
                assert!(is_left || !self.store.has(job), "{job} remains in the term");
            }
        }
        self.take_over(pick & !0x60);
        self.come_to_rest();
        for job in (0..3).map(job_of) {
            let is_led = self.job_masters.contains_key(&job);
            let state = self.store.states.get(&job);
            let is_sound = state.is_some_and(|it| it.value.quarantine.is_none());
            let is_sound = is_sound && self.store.is_readable(job);
            assert_eq!(is_led, is_sound, "{job} is led if it can be");
        }
        self.end_jobs();
        for job in (0..3).map(job_of) {
            assert!(!self.store.has(job), "{job} remains");
        }
    }

    /// All jobs end, quarantined ones are deleted, and the retention time passes.
    fn end_jobs(&mut self) {
        (0..3).for_each(|number| self.end(job_of(number)));
        self.come_to_rest();
        for job in (0..3).map(job_of) {
            let is_damaged = |health| matches!(health, Health::Damaged(_));
            let result = self.store.results.get(&job);
            if self.store.has_begun(job) || result.is_some_and(|it| is_damaged(it.health)) {
                self.ask_resolve(job, Resolution::Delete);
                self.come_to_rest();
            }
        }
        for _ in 0..8 {
            self.pass(RETENTION + Duration::from_secs(1));
            self.give(Event::ExpirationDue);
            self.come_to_rest();
        }
    }
}

//! Delays taking free leadership while the former term is still reachable and lost its lease only because of a
//! store problem.
//!
//! A leader whose store does not answer is suspended and says so in its heartbeats. When the store is back
//! and first reports that the lease expired, a standby that receives those heartbeats gives the term some time
//! to attach again: the store failed, not the leader. The wait ends at once when the heartbeats end or the
//! term was resigned (its token moved, or the store says so), and at a limit.
//!
//! *If the own store answered without a gap*, the store has no problem as far as this process knows, and
//! only the leader is cut off from it. Such a term gets a short time to attach again, and no more
//! (`docs/adr/0048`). The test is the own lease or session: it was renewed without a gap for at least its own
//! timeout, so a problem that ended the leader's lease would have shown there.
//!
//! A process that starts while leadership is free has received no heartbeat of the term yet. If that term was
//! confirmed, so that its address is known, the process waits a short time for the detector's report.
//!
//! Owned by the election's core. Only the time without a leader depends on it: a wrong answer costs a change of
//! leader, or a wait up to the limit.

use std::time::Duration;

use crate::clock::Moment;
use crate::election::driver::{ElectionView, Epoch, EpochToken, Nonce, SessionState};

/// Time for which free leadership is left to a reachable term, if the own store answered without a gap.
const CUT_OFF_TIMEOUT: Duration = Duration::from_secs(2);

/// The renewals of the own lease or session since the last gap between two of them.
#[derive(Debug)]
struct Renewals {
    nonce: Nonce,
    timeout: Duration,
    first: Moment,
    last: Moment,
}

impl Renewals {
    /// Whether a renewal at `now` is in time: a lease is renewed three times within its timeout.
    fn is_in_time(&self, now: Moment) -> bool {
        now.since(self.last) <= self.timeout * 2 / 3
    }

    /// The moment from which the renewals prove that the own store answered without a gap; `None`: they have
    /// stopped.
    fn conclusive_from(&self, now: Moment) -> Option<Moment> {
        self.is_in_time(now).then(|| self.first.after(self.timeout))
    }
}

/// The known state of a term that lost its lease or session. Pure.
#[derive(Debug, Default)]
pub(super) struct HoldOff {
    /// The term is reachable until this moment.
    reachable_until: Option<(Epoch, Moment)>,
    /// The last term for which the detector reported whether it is reachable.
    reported: Option<Epoch>,
    /// The token of the term when `leader` was last there.
    attached: Option<(Epoch, EpochToken)>,
    /// The moment at which its leadership was first seen free.
    free_since: Option<(Epoch, Moment)>,
    renewals: Option<Renewals>,
}

impl HoldOff {
    /// Records that the own lease or session was renewed, or is gone.
    pub(super) fn renewed(&mut self, now: Moment, session: &SessionState) {
        let SessionState::Alive { nonce, timeout, .. } = session else {
            self.renewals = None;
            return;
        };
        let before = self.renewals.as_ref();
        let before = before.filter(|before| before.nonce == *nonce && before.is_in_time(now));
        self.renewals = Some(Renewals {
            nonce: nonce.clone(),
            timeout: *timeout,
            first: before.map_or(now, |before| before.first),
            last: now,
        });
    }

    /// Records that the term of `epoch` is reachable until the given moment; `None`: its heartbeats no longer arrive.
    pub(super) fn set_reachable(&mut self, epoch: Epoch, until: Option<Moment>) {
        self.reported = Some(epoch);
        match until {
            Some(until) => self.reachable_until = Some((epoch, until)),
            None => self.reachable_until = self.reachable_until.filter(|(of, _)| *of != epoch),
        }
    }

    /// Records the content of the keys.
    pub(super) fn see(&mut self, now: Moment, view: &ElectionView) {
        let Some((record, token)) = &view.epoch else {
            return;
        };
        if view.leader.is_some() {
            self.attached = Some((record.epoch, *token));
            self.free_since = None;
        } else if self
            .free_since
            .is_none_or(|(epoch, _)| epoch != record.epoch)
        {
            self.free_since = Some((record.epoch, now));
        }
    }

    /// Whether the holder of the free leadership in `view` resigned it.
    pub(super) fn was_resigned(&self, view: &ElectionView) -> bool {
        let Some((record, token)) = &view.epoch else {
            return false;
        };
        let of_this = self.attached.filter(|(epoch, _)| *epoch == record.epoch);
        let has_moved = of_this.is_some_and(|(_, attached)| attached != *token);
        view.leader.is_none() && (view.is_resigned || has_moved)
    }

    /// Until when the free leadership in `view` is left alone, as known now: at most `bound` while the term
    /// is reachable, less if the own store answered without a gap; `no_contact` until the detector has reported
    /// whether it is reachable.
    pub(super) fn until(
        &self,
        now: Moment,
        view: &ElectionView,
        bound: Duration,
        no_contact: Option<Duration>,
    ) -> Option<Moment> {
        let youngest = view.youngest();
        let (_, since) = self.free_since.filter(|(epoch, _)| *epoch == youngest)?;
        if self.was_resigned(view) {
            return None;
        }
        let was_attached = self.attached.is_some_and(|(epoch, _)| epoch == youngest);
        let until = match self.reachable_until.filter(|(epoch, _)| *epoch == youngest) {
            Some((_, until)) => until,
            // A process that has seen `leader` of this term had time to receive its heartbeats.
            None if was_attached || self.reported == Some(youngest) => return None,
            None => since.after(no_contact?),
        };
        let conclusive_from = self
            .renewals
            .as_ref()
            .and_then(|it| it.conclusive_from(now));
        let cut_off_limit = conclusive_from.map(|from| from.max(since.after(CUT_OFF_TIMEOUT)));
        let limit = since.after(bound);
        let limit = cut_off_limit.map_or(limit, |cut_off| limit.min(cut_off));
        Some(until.min(limit)).filter(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::driver::{ClusterIncarnation, EpochRecord, LeaderKey, Nonce, ProcessId};

    const BOUND: Duration = Duration::from_secs(10);

    fn at(ms: u64) -> Moment {
        Moment::default().after(Duration::from_millis(ms))
    }

    fn view(token: u64, attached: bool) -> ElectionView {
        let epoch = Epoch::new(7);
        ElectionView {
            epoch: Some((
                EpochRecord {
                    epoch,
                    incarnation: ClusterIncarnation::new("c"),
                    holder: None,
                    store: None,
                },
                EpochToken(token),
            )),
            leader: attached.then(|| LeaderKey {
                epoch,
                process: ProcessId::new("a"),
                nonce: Nonce::new("n"),
            }),
            ..ElectionView::default()
        }
    }

    #[test]
    fn free_leadership_is_left_to_a_reachable_term_up_to_the_bound() {
        let mut hold_off = HoldOff::default();
        hold_off.see(at(0), &view(1, true));
        hold_off.see(at(1000), &view(1, false));
        let free = view(1, false);
        assert_eq!(
            hold_off.until(at(1000), &free, BOUND, None),
            None,
            "not reachable"
        );
        hold_off.set_reachable(Epoch::new(7), Some(at(1800)));
        assert_eq!(hold_off.until(at(1000), &free, BOUND, None), Some(at(1800)));
        assert_eq!(
            hold_off.until(at(1800), &free, BOUND, None),
            None,
            "not reachable any more"
        );
        hold_off.set_reachable(Epoch::new(7), Some(at(11_500)));
        assert_eq!(
            hold_off.until(at(10_900), &free, BOUND, None),
            Some(at(11_000))
        );
        assert_eq!(
            hold_off.until(at(11_000), &free, BOUND, None),
            None,
            "the bound"
        );
    }

    const TIMEOUT: Duration = Duration::from_secs(6);

    fn session(nonce: &str) -> SessionState {
        SessionState::Alive {
            nonce: Nonce::new(nonce),
            deadline: Some(at(u64::MAX / 2_000_000)),
            timeout: TIMEOUT,
        }
    }

    /// Leadership became free at 20 s; the term is reachable.
    fn reachable_and_free() -> HoldOff {
        let mut hold_off = HoldOff::default();
        hold_off.see(at(0), &view(1, true));
        hold_off.see(at(20_000), &view(1, false));
        hold_off.set_reachable(Epoch::new(7), Some(at(60_000)));
        hold_off
    }

    fn renew(hold_off: &mut HoldOff, times_ms: impl IntoIterator<Item = u64>) {
        for ms in times_ms {
            hold_off.renewed(at(ms), &session("own"));
        }
    }

    #[test]
    fn a_leader_cut_off_from_a_store_that_answers_here_gets_a_short_time() {
        let free = view(1, false);
        let mut hold_off = reachable_and_free();
        renew(&mut hold_off, (0..=20_000).step_by(2000));
        let until = |hold_off: &HoldOff, ms| hold_off.until(at(ms), &free, BOUND, None);
        assert_eq!(until(&hold_off, 20_000), Some(at(22_000)));
        assert_eq!(until(&hold_off, 22_000), None, "it had its moment");
        // The own store has stopped answering, too.
        assert_eq!(until(&hold_off, 24_001), Some(at(30_000)));
    }

    #[test]
    fn a_process_that_recently_missed_the_store_itself_leaves_the_term_its_whole_time() {
        let free = view(1, false);
        let until = |hold_off: &HoldOff, ms| hold_off.until(at(ms), &free, BOUND, None);
        let mut missed = reachable_and_free();
        renew(&mut missed, [0, 2000, 4000, 19_000, 21_000, 23_000]);
        // Only after a full timeout the renewals prove that the store works for all but the leader.
        assert_eq!(until(&missed, 23_000), Some(at(25_000)));
        renew(&mut missed, [28_000]);
        assert_eq!(until(&missed, 29_000), Some(at(30_000)), "missed it again");

        let mut lost = reachable_and_free();
        renew(&mut lost, (0..=18_000).step_by(2000));
        lost.renewed(at(19_000), &SessionState::None);
        assert_eq!(until(&lost, 20_000), Some(at(30_000)));
        lost.renewed(at(20_500), &session("another"));
        assert_eq!(until(&lost, 20_500), Some(at(26_500)));
    }

    #[test]
    fn heartbeats_that_end_or_belong_to_another_term_cause_no_hold_off() {
        let mut hold_off = HoldOff::default();
        let free = view(1, false);
        hold_off.see(at(0), &free);
        hold_off.set_reachable(Epoch::new(6), Some(at(800)));
        assert_eq!(hold_off.until(at(0), &free, BOUND, None), None);
        hold_off.set_reachable(Epoch::new(7), Some(at(800)));
        hold_off.set_reachable(Epoch::new(7), None);
        assert_eq!(hold_off.until(at(0), &free, BOUND, None), None);
    }

    #[test]
    fn a_process_that_finds_leadership_free_waits_for_the_detectors_report() {
        let free = view(1, false);
        let no_contact = Some(Duration::from_secs(1));
        let waits = |hold_off: &HoldOff, ms| hold_off.until(at(ms), &free, BOUND, no_contact);
        let mut hold_off = HoldOff::default();
        hold_off.see(at(0), &free);
        assert_eq!(waits(&hold_off, 10), Some(at(1000)));
        assert_eq!(waits(&hold_off, 1000), None, "there was no report");
        assert_eq!(hold_off.until(at(10), &free, BOUND, None), None);

        hold_off.set_reachable(Epoch::new(7), Some(at(900)));
        assert_eq!(waits(&hold_off, 10), Some(at(900)));
        hold_off.set_reachable(Epoch::new(7), None);
        assert_eq!(waits(&hold_off, 10), None, "it is not reachable");

        let mut standing_by = HoldOff::default();
        standing_by.see(at(0), &view(1, true));
        standing_by.see(at(1), &free);
        assert_eq!(waits(&standing_by, 10), None, "it had time to listen");
    }

    #[test]
    fn a_term_that_was_resigned_is_followed_at_once() {
        let mut hold_off = HoldOff::default();
        hold_off.see(at(0), &view(1, true));
        hold_off.see(at(10), &view(2, false));
        hold_off.set_reachable(Epoch::new(7), Some(at(800)));
        assert!(hold_off.was_resigned(&view(2, false)));
        assert_eq!(hold_off.until(at(10), &view(2, false), BOUND, None), None);
    }

    #[test]
    fn a_term_that_the_store_itself_reports_as_resigned_is_followed_at_once() {
        let mut hold_off = HoldOff::default();
        // Also by a process that had never seen its leader.
        let free = ElectionView {
            is_resigned: true,
            ..view(1, false)
        };
        hold_off.see(at(10), &free);
        hold_off.set_reachable(Epoch::new(7), Some(at(800)));
        assert!(hold_off.was_resigned(&free));
        assert!(!hold_off.was_resigned(&view(1, false)));
        assert_eq!(hold_off.until(at(10), &free, BOUND, None), None);
    }
}

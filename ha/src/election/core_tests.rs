//! Tests of the election's core alone: the effects of late and overtaken events.

use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::election::core::{Effect, ElectionCore, ElectionStatus, Event, Refusal, Timing};
use crate::election::{
    Attempt, ClusterIncarnation, ElectionView, Epoch, EpochRecord, EpochToken, LeaderKey, Nonce,
    ProcessId, SessionState, StoreIdentity, TermHolder, Unreadable,
};
use crate::error::Error;

const LONG: Duration = Duration::from_secs(600);

fn holder() -> TermHolder {
    TermHolder {
        process: ProcessId::new("a"),
        start: "1".to_owned(),
    }
}

/// A core that received a session and an empty store, and so has sent its request to take leadership.
fn acquiring_core(now: Moment) -> (ElectionCore, EpochRecord, LeaderKey) {
    let fresh = ClusterIncarnation::new("fresh");
    let mut core = ElectionCore::new(holder(), fresh, Timing::default());
    core.handle(now, session(now));
    let effects = core.handle(now, Event::View(ElectionView::default()));
    let request = effects.iter().find_map(|effect| match effect {
        Effect::Advance { next, leader, .. } => Some((next.clone(), leader.clone())),
        _ => None,
    });
    let (next, leader) = request.expect("an empty store is free to take");
    (core, next, leader)
}

fn session(now: Moment) -> Event {
    Event::Session(SessionState::Alive {
        nonce: Nonce::new("session"),
        deadline: Some(now.after(LONG)),
        timeout: LONG,
    })
}

fn refuses(effects: &[Effect]) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::Publish(ElectionStatus::Refused(_))))
}

#[test]
fn a_late_view_of_the_empty_store_refutes_no_term() {
    let now = Clock::Boottime.now();
    let (mut core, next, leader) = acquiring_core(now);
    let token = EpochToken(1);
    let view = ElectionView {
        epoch: Some((next, token)),
        leader: Some(leader),
        info: None,
        ..ElectionView::default()
    };
    core.handle(now, Event::View(view.clone()));
    let effects = core.handle(now, Event::View(ElectionView::default()));
    assert!(!refuses(&effects), "{effects:?}");
    let effects = core.handle(now, Event::ReadReply(Ok(ElectionView::default())));
    assert!(!refuses(&effects), "{effects:?}");
    assert!(
        effects.contains(&Effect::Read),
        "the doubt is to be settled"
    );

    // The read that began after that confirms the state; or refutes it.
    let mut wiped = core;
    let effects = wiped.handle(now, Event::ReadReply(Ok(view)));
    assert!(!refuses(&effects), "{effects:?}");
    let effects = wiped.handle(now, Event::View(ElectionView::default()));
    assert!(effects.contains(&Effect::Read), "{effects:?}");
    let effects = wiped.handle(now, Event::ReadReply(Ok(ElectionView::default())));
    assert!(refuses(&effects), "{effects:?}");
}

#[test]
fn a_store_that_went_back_is_refused_and_news_that_are_only_late_are_not() {
    let now = Clock::Boottime.now();
    let fresh = ClusterIncarnation::new("fresh");
    let mut core = ElectionCore::new(holder(), fresh, Timing::default());
    core.handle(now, session(now));
    let (past, present) = (Epoch::new(7), Epoch::new(9));
    core.handle(now, Event::ReadReply(Ok(led_by_another_in(present))));
    let effects = core.handle(now, Event::View(led_by_another_in(past)));
    assert!(effects.contains(&Effect::Read), "{effects:?}");
    let effects = core.handle(now, Event::ReadReply(Ok(led_by_another_in(present))));
    assert!(!refuses(&effects), "it was late: {effects:?}");

    // A read that began before the younger epoch was shown proves nothing.
    core.handle(now, Event::View(led_by_another_in(past)));
    core.handle(now, Event::View(led_by_another_in(Epoch::new(10))));
    let effects = core.handle(now, Event::ReadReply(Ok(led_by_another_in(present))));
    assert!(!refuses(&effects), "{effects:?}");
    assert!(effects.contains(&Effect::Read), "{effects:?}");
    let effects = core.handle(now, Event::ReadReply(Ok(led_by_another_in(present))));
    let refusal = Effect::Publish(ElectionStatus::Refused(Refusal::WentBack {
        known: Epoch::new(10),
        found: present,
    }));
    assert!(effects.contains(&refusal), "{effects:?}");
}

fn told(epoch: u64) -> Event {
    Event::EpochClaimed {
        epoch: Epoch::new(epoch),
        sender: "x".to_owned(),
    }
}

fn refuted(effects: &[Effect]) -> Vec<(Epoch, Epoch)> {
    let refuted = effects.iter().filter_map(|effect| match effect {
        Effect::Refute { epoch, found, .. } => Some((*epoch, *found)),
        _ => None,
    });
    refuted.collect()
}

fn is_over(effects: &[Effect]) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::Publish(ElectionStatus::Over(_))))
}

/// A core that leads in epoch 1, and the store's view.
fn leading_core(now: Moment) -> (ElectionCore, ElectionView) {
    let (mut core, next, leader) = acquiring_core(now);
    let token = EpochToken(1);
    // Answer of its initial read.
    core.handle(now, Event::ReadReply(Ok(ElectionView::default())));
    core.handle(now, Event::AdvanceReply(Ok(Attempt::Applied(token))));
    assert!(core.term().is_some());
    let view = ElectionView {
        epoch: Some((next, token)),
        leader: Some(leader),
        ..ElectionView::default()
    };
    (core, view)
}

#[test]
fn a_higher_epoch_in_a_message_alone_ends_no_term_and_its_sender_is_named() {
    let now = Clock::Boottime.now();
    let (mut core, view) = leading_core(now);
    let effects = core.handle(now, told(1001));
    assert!(effects.contains(&Effect::Read), "{effects:?}");
    assert!(!is_over(&effects), "{effects:?}");
    assert_eq!(core.highest(), Epoch::new(1), "nothing is raised");

    let effects = core.handle(now, Event::ReadReply(Ok(view.clone())));
    assert_eq!(refuted(&effects), [(Epoch::new(1001), Epoch::new(1))]);
    assert!(!refuses(&effects) && !is_over(&effects), "{effects:?}");
    assert_eq!(core.term().map(|term| term.epoch), Some(Epoch::new(1)));

    // A later view of the store is not refuted by it either.
    let effects = core.handle(now, Event::View(view));
    assert!(!refuses(&effects) && !is_over(&effects), "{effects:?}");
}

#[test]
fn a_higher_epoch_counts_once_a_read_that_was_begun_since_shows_it() {
    let now = Clock::Boottime.now();
    let (mut core, view) = leading_core(now);
    assert!(core.handle(now, told(2)).contains(&Effect::Read));
    // A third teller while the read is in progress: the read may have begun before that epoch was taken.
    core.handle(now, told(3));
    let effects = core.handle(now, Event::ReadReply(Ok(view)));
    assert!(refuted(&effects).is_empty(), "{effects:?}");
    assert!(effects.contains(&Effect::Read), "{effects:?}");
    let unanswered = Error::Unavailable {
        store: "the store",
        reason: "busy".to_owned(),
    };
    let effects = core.handle(now, Event::ReadReply(Err(unanswered)));
    assert!(!effects.contains(&Effect::Read), "{effects:?}");
    let later = now.after(Timing::default().retry_interval);
    let effects = core.handle(later, Event::Wake);
    assert!(effects.contains(&Effect::Read), "{effects:?}");
    let younger = led_by_another_in(Epoch::new(3));
    let effects = core.handle(later, Event::ReadReply(Ok(younger)));
    assert!(is_over(&effects), "{effects:?}");
    assert!(refuted(&effects).is_empty(), "{effects:?}");
    assert_eq!(core.highest(), Epoch::new(3));
}

#[test]
fn a_view_of_before_a_resignation_does_not_grant_the_term_again() {
    let now = Clock::Boottime.now();
    let (mut core, before) = leading_core(now);
    // A read is in progress when it resigns.
    assert!(core.handle(now, told(9)).contains(&Effect::Read));
    let effects = core.handle(now, Event::Resign);
    assert!(is_over(&effects), "{effects:?}");
    let moved = EpochToken(2);
    core.handle(now, Event::ResignReply(Ok(Attempt::Applied(moved))));
    // The watch is late, and so is a read that began before.
    let mut effects = core.handle(now, Event::View(before.clone()));
    effects.extend(core.handle(now, Event::ReadReply(Ok(before.clone()))));
    assert!(effects.contains(&Effect::Read), "{effects:?}");
    effects.extend(core.handle(now, Event::View(before.clone())));
    assert_eq!(core.term(), None, "{effects:?}");
    assert!(!advances(&effects), "it holds off: {effects:?}");

    // A view from after the resignation is used.
    let (record, _) = before.epoch.expect("it was led");
    let after = ElectionView {
        epoch: Some((record, moved)),
        ..ElectionView::default()
    };
    let later = now.after(Timing::default().resign_hold_off);
    let mut effects = core.handle(later, Event::View(after));
    effects.extend(core.handle(later, Event::Wake));
    assert!(advances(&effects), "{effects:?}");
}

#[test]
fn a_view_of_before_a_refused_attachment_does_not_grant_the_term_again() {
    let now = Clock::Boottime.now();
    let (mut core, led) = leading_core(now);
    let without = ElectionView {
        leader: None,
        ..led.clone()
    };
    core.handle(now, Event::View(without.clone()));
    core.handle(now, Event::ReadReply(Ok(without.clone())));
    let is_resigned = ElectionView {
        is_resigned: true,
        ..without
    };
    let reply = Event::AttachReply {
        token: EpochToken(1),
        reply: Ok(Attempt::Refused(is_resigned)),
    };
    assert!(is_over(&core.handle(now, reply)));
    let effects = core.handle(now, Event::View(led));
    assert_eq!(core.term(), None, "{effects:?}");
}

#[test]
fn what_is_left_of_a_term_that_is_over_is_followed_by_the_next_epoch() {
    let now = Clock::Boottime.now();
    let (mut core, led) = leading_core(now);
    let (record, _) = led.epoch.clone().expect("it was led");
    // Another writer wrote the same value again: no write of this term can be applied, although the key names
    // this session.
    let moved = ElectionView {
        epoch: Some((record, EpochToken(5))),
        ..led
    };
    let effects = core.handle(now, Event::View(moved));
    assert!(is_over(&effects), "{effects:?}");
    let next = effects.iter().find_map(|effect| match effect {
        Effect::Advance { next, .. } => Some(next.epoch),
        _ => None,
    });
    assert_eq!(next, Some(Epoch::new(2)), "{effects:?}");
}

#[test]
fn a_store_that_shows_another_identity_than_its_youngest_epoch_names_is_refused() {
    let now = Clock::Boottime.now();
    let (mut core, mut view) = leading_core(now);
    let identity = |name: &str| Some(StoreIdentity::new(name));
    // If either side has no identity, nothing is compared.
    view.store = identity("copy");
    assert!(!refuses(&core.handle(now, Event::View(view.clone()))));
    let (record, _) = view.epoch.as_mut().expect("it was led");
    record.store = identity("copy");
    assert!(!refuses(&core.handle(now, Event::View(view.clone()))));
    let (record, _) = view.epoch.as_mut().expect("it was led");
    record.store = identity("original");
    let refusal = Effect::Publish(ElectionStatus::Refused(Refusal::Copied {
        recorded: StoreIdentity::new("original"),
        found: StoreIdentity::new("copy"),
    }));
    let effects = core.handle(now, Event::View(view.clone()));
    assert!(effects.contains(&refusal), "{effects:?}");

    let fresh = ClusterIncarnation::new("other");
    let mut starts = ElectionCore::new(holder(), fresh, Timing::default());
    starts.handle(now, session(now));
    view.leader = None;
    let effects = starts.handle(now, Event::View(view));
    assert!(effects.contains(&refusal), "{effects:?}");
    assert!(!advances(&effects), "{effects:?}");
}

#[test]
fn a_term_is_suspended_while_the_epoch_can_not_be_read_and_a_late_read_does_not_deny_that() {
    let now = Clock::Boottime.now();
    let (mut core, view) = leading_core(now);
    let suspends = |effects: &[Effect]| {
        let suspended =
            |effect: &Effect| matches!(effect, Effect::Publish(ElectionStatus::Suspended(_)));
        effects.iter().any(suspended)
    };
    let rubbish = ElectionView {
        unreadable: Some(Unreadable {
            reason: "rubbish".to_owned(),
            token: EpochToken(2),
        }),
        leader: view.leader.clone(),
        ..ElectionView::default()
    };
    // A read for another reason is in progress when the key is overwritten.
    core.handle(now, told(9));
    let effects = core.handle(now, Event::View(rubbish.clone()));
    assert!(suspends(&effects), "{effects:?}");
    assert!(!refuses(&effects), "{effects:?}");
    core.handle(now, Event::ReadReply(Ok(view.clone())));
    let effects = core.handle(now, Event::ReadReply(Ok(rubbish)));
    assert!(suspends(&effects), "{effects:?}");
    assert!(!effects.contains(&Effect::Read), "not at once: {effects:?}");
    assert_eq!(core.unreadable(), Some("rubbish"));
    let later = now.after(Timing::default().retry_interval);
    assert!(core.handle(later, Event::Wake).contains(&Effect::Read));

    let effects = core.handle(later, Event::ReadReply(Ok(view)));
    let leads = |effect: &Effect| matches!(effect, Effect::Publish(ElectionStatus::Leading(_)));
    assert!(effects.iter().any(leads), "{effects:?}");
    assert_eq!(core.unreadable(), None);
}

/// `b` leads in epoch 1.
fn led_by_another() -> ElectionView {
    led_by_another_in(Epoch::new(1))
}

fn led_by_another_in(epoch: Epoch) -> ElectionView {
    let incarnation = ClusterIncarnation::new("fresh");
    ElectionView {
        epoch: Some((
            EpochRecord {
                epoch,
                incarnation,
                holder: None,
                store: None,
            },
            EpochToken(1),
        )),
        leader: Some(LeaderKey {
            epoch,
            process: ProcessId::new("b"),
            nonce: Nonce::new("other"),
        }),
        info: None,
        ..ElectionView::default()
    }
}

fn advances(effects: &[Effect]) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::Advance { .. }))
}

#[test]
fn a_depose_request_outlives_an_attempt_that_failed() {
    let now = Clock::Boottime.now();
    let mut core = ElectionCore::new(
        holder(),
        ClusterIncarnation::new("fresh"),
        Timing::default(),
    );
    core.handle(now, session(now));
    let (epoch, led) = (Epoch::new(1), led_by_another());
    assert!(!advances(&core.handle(now, Event::View(led.clone()))));
    assert!(advances(&core.handle(now, Event::Depose(epoch))));
    let busy = Error::Unavailable {
        store: "the store",
        reason: "busy".to_owned(),
    };
    core.handle(now, Event::AdvanceReply(Err(busy)));
    let later = now.after(Timing::default().retry_interval);
    core.handle(later, Event::Wake);
    let effects = core.handle(later, Event::ReadReply(Ok(led)));
    assert!(advances(&effects), "{effects:?}");
}

#[test]
fn a_late_depose_request_for_an_older_term_does_not_replace_the_one_for_the_present_term() {
    let now = Clock::Boottime.now();
    let fresh = ClusterIncarnation::new("fresh");
    let mut core = ElectionCore::new(holder(), fresh, Timing::default());
    core.handle(now, session(now));
    let led = led_by_another_in(Epoch::new(8));
    core.handle(now, Event::View(led.clone()));
    assert!(advances(&core.handle(now, Event::Depose(Epoch::new(8)))));
    let lost = Error::NoAnswer {
        store: "the store",
        reason: "lost".to_owned(),
    };
    core.handle(now, Event::AdvanceReply(Err(lost)));
    core.handle(now, Event::Depose(Epoch::new(7)));
    let later = now.after(Timing::default().retry_interval);
    let mut effects = core.handle(later, Event::ReadReply(Ok(led)));
    effects.extend(core.handle(later, Event::Wake));
    assert!(advances(&effects), "{effects:?}");
}

#[test]
fn a_request_to_depose_whose_answer_was_lost_is_not_sent_again_once_it_is_cancelled() {
    let now = Clock::Boottime.now();
    let fresh = ClusterIncarnation::new("fresh");
    let mut core = ElectionCore::new(holder(), fresh, Timing::default());
    core.handle(now, session(now));
    let (epoch, led) = (Epoch::new(1), led_by_another());
    core.handle(now, Event::View(led.clone()));
    let effects = core.handle(now, Event::Depose(epoch));
    let sent = effects.iter().find_map(|effect| match effect {
        Effect::Advance { next, leader, .. } => Some((next.clone(), leader.clone())),
        _ => None,
    });
    let (next, leader) = sent.expect("it deposes");
    core.handle(now, Event::CancelDepose(epoch));
    let lost = Error::NoAnswer {
        store: "the store",
        reason: "lost".to_owned(),
    };
    core.handle(now, Event::AdvanceReply(Err(lost)));
    let later = now.after(Timing::default().retry_interval);
    let effects = core.handle(later, Event::ReadReply(Ok(led.clone())));
    assert!(!advances(&effects), "{effects:?}");
    assert!(!advances(&core.handle(later, Event::Wake)));
    assert!(!advances(&core.handle(later, Event::View(led))));

    // A copy of it was applied after all: the process that holds the key leads.
    let applied = ElectionView {
        epoch: Some((next.clone(), EpochToken(2))),
        leader: Some(leader),
        info: None,
        ..ElectionView::default()
    };
    core.handle(later, Event::View(applied));
    assert_eq!(core.term().map(|term| term.epoch), Some(next.epoch));
}

#[test]
fn a_term_that_the_store_refuses_to_attach_is_over() {
    let now = Clock::Boottime.now();
    let (mut core, next, leader) = acquiring_core(now);
    core.handle(
        now,
        Event::AdvanceReply(Ok(Attempt::Applied(EpochToken(1)))),
    );
    assert!(core.term().is_some());
    let without = ElectionView {
        epoch: Some((next, EpochToken(1))),
        leader: None,
        info: None,
        ..ElectionView::default()
    };
    core.handle(now, Event::View(without.clone()));
    let effects = core.handle(now, Event::ReadReply(Ok(without.clone())));
    let attach = Effect::Attach {
        token: EpochToken(1),
        leader,
    };
    assert!(effects.contains(&attach), "{effects:?}");
    let effects = core.handle(
        now,
        Event::AttachReply {
            token: EpochToken(1),
            reply: Ok(Attempt::Refused(without)),
        },
    );
    assert!(
        effects.contains(&Effect::Publish(ElectionStatus::Over(Epoch::new(1)))),
        "{effects:?}"
    );
    assert_eq!(core.term(), None);
}

#[test]
fn a_read_that_was_overtaken_by_a_younger_term_grants_nothing() {
    let now = Clock::Boottime.now();
    let (mut core, next, leader) = acquiring_core(now);
    let lost = Error::NoAnswer {
        store: "the store",
        reason: "lost".to_owned(),
    };
    // It was applied, and another process has deposed it since: the watch reports that before the read is
    // answered.
    core.handle(now, Event::AdvanceReply(Err(lost)));
    let younger = ElectionView {
        epoch: Some((
            EpochRecord {
                epoch: next.epoch.next(),
                ..next.clone()
            },
            EpochToken(2),
        )),
        leader: Some(LeaderKey {
            epoch: next.epoch.next(),
            process: ProcessId::new("b"),
            nonce: Nonce::new("other"),
        }),
        info: None,
        ..ElectionView::default()
    };
    core.handle(now, Event::View(younger));
    let overtaken = ElectionView {
        epoch: Some((next, EpochToken(1))),
        leader: Some(leader),
        info: None,
        ..ElectionView::default()
    };
    let effects = core.handle(now, Event::ReadReply(Ok(overtaken)));
    let granted = |effect: &Effect| matches!(effect, Effect::Publish(ElectionStatus::Leading(_)));
    assert!(!effects.iter().any(granted), "{effects:?}");
    assert_eq!(core.term(), None);
}

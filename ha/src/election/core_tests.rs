//! The election's core alone: what late and overtaken news make of it.

use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::election::core::{Effect, ElectionCore, Event, Refusal, Standing, Timing};
use crate::election::{
    Attempt, ClusterIncarnation, ElectionView, Epoch, EpochRecord, EpochToken, LeaderKey, Nonce,
    ProcessId, SessionState, TermHolder,
};
use crate::error::Error;

const LONG: Duration = Duration::from_secs(600);

fn holder() -> TermHolder {
    TermHolder {
        process: ProcessId::new("a"),
        start: "1".to_owned(),
    }
}

/// A core that was told of a session, and of an empty store, and so has sent its request to take.
fn taking_core(now: Moment) -> (ElectionCore, EpochRecord, LeaderKey) {
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
        .any(|effect| matches!(effect, Effect::Publish(Standing::Refused(_))))
}

#[test]
fn a_watch_that_tells_late_that_the_store_was_empty_refutes_no_term() {
    let now = Clock::Boottime.now();
    let (mut core, next, leader) = taking_core(now);
    let token = EpochToken(1);
    let view = ElectionView {
        epoch: Some((next, token)),
        leader: Some(leader),
        info: None,
        store: None,
        given_up: false,
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

    // The read that was begun since then says that all is well; or else that it is not.
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

    // A read that was begun before the younger epoch was heard of proves nothing.
    core.handle(now, Event::View(led_by_another_in(past)));
    core.handle(
        now,
        Event::Told {
            epoch: Epoch::new(10),
            teller: "b".to_owned(),
        },
    );
    let effects = core.handle(now, Event::ReadReply(Ok(led_by_another_in(present))));
    assert!(!refuses(&effects), "{effects:?}");
    assert!(effects.contains(&Effect::Read), "{effects:?}");
    let effects = core.handle(now, Event::ReadReply(Ok(led_by_another_in(present))));
    let refusal = Effect::Publish(Standing::Refused(Refusal::WentBack {
        known: Epoch::new(10),
        found: present,
    }));
    assert!(effects.contains(&refusal), "{effects:?}");
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
        store: None,
        given_up: false,
    }
}

fn advances(effects: &[Effect]) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::Advance { .. }))
}

#[test]
fn a_wish_to_depose_outlives_an_attempt_that_failed() {
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
fn a_late_wish_to_depose_an_older_term_does_not_replace_the_one_for_the_present_term() {
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
fn a_request_to_depose_whose_answer_was_lost_is_not_sent_again_once_the_leader_is_spared() {
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
    core.handle(now, Event::Spare(epoch));
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

    // A copy of it was applied after all: whoever holds the key leads.
    let applied = ElectionView {
        epoch: Some((next.clone(), EpochToken(2))),
        leader: Some(leader),
        info: None,
        store: None,
        given_up: false,
    };
    core.handle(later, Event::View(applied));
    assert_eq!(core.term().map(|term| term.epoch), Some(next.epoch));
}

#[test]
fn a_term_that_the_store_refuses_to_attach_is_over() {
    let now = Clock::Boottime.now();
    let (mut core, next, leader) = taking_core(now);
    core.handle(
        now,
        Event::AdvanceReply(Ok(Attempt::Applied(EpochToken(1)))),
    );
    assert!(core.term().is_some());
    let without = ElectionView {
        epoch: Some((next, EpochToken(1))),
        leader: None,
        info: None,
        store: None,
        given_up: false,
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
        effects.contains(&Effect::Publish(Standing::Over(Epoch::new(1)))),
        "{effects:?}"
    );
    assert_eq!(core.term(), None);
}

#[test]
fn a_read_that_was_overtaken_by_a_younger_term_grants_nothing() {
    let now = Clock::Boottime.now();
    let (mut core, next, leader) = taking_core(now);
    let lost = Error::NoAnswer {
        store: "the store",
        reason: "lost".to_owned(),
    };
    // It was applied, and another process has deposed it since: the watch tells that before the read is answered.
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
        store: None,
        given_up: false,
    };
    core.handle(now, Event::View(younger));
    let overtaken = ElectionView {
        epoch: Some((next, EpochToken(1))),
        leader: Some(leader),
        info: None,
        store: None,
        given_up: false,
    };
    let effects = core.handle(now, Event::ReadReply(Ok(overtaken)));
    let granted = |effect: &Effect| matches!(effect, Effect::Publish(Standing::Leading(_)));
    assert!(!effects.iter().any(granted), "{effects:?}");
    assert_eq!(core.term(), None);
}

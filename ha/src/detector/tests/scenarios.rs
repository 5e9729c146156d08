//! Tests of the core, event by event.

use std::time::Duration;

use crate::clock::Moment;
use crate::detector::core::{DetectorCore, DetectorOptions, Effect, Event, Target};
use crate::detector::peer_heartbeat::{
    Break, PeerHeartbeat, Progress, Reply, Role, SchedulingAges,
};
use crate::election::{Detection, Epoch, HostIdentity, ProcessId};

pub(super) const ADDRESS: &str = "a:1";
pub(super) const LOST: Reply = Reply::Lost {
    since: Duration::ZERO,
};

pub(super) fn host(name: &str) -> HostIdentity {
    HostIdentity::new(name)
}

pub(super) fn target() -> Target {
    Target {
        epoch: Epoch::new(7),
        process: ProcessId::new("a"),
        address: Some(ADDRESS.to_owned()),
        is_confirmed: true,
        host: None,
    }
}

pub(super) fn heartbeat(incarnation: &str, role: Role) -> PeerHeartbeat {
    PeerHeartbeat {
        process: ProcessId::new("a"),
        incarnation: incarnation.to_owned(),
        role,
        host: Some(host("there")),
        progress: Progress::default(),
        since_ms: None,
        scheduling_ages: SchedulingAges::default(),
        stalled_term: None,
        cached_change: 0,
        witnesses: Vec::new(),
    }
}

pub(super) fn leading() -> PeerHeartbeat {
    heartbeat("first", Role::Leading(Epoch::new(7)))
}

/// The core of process `b`, with the time.
struct Standby {
    core: DetectorCore,
    now: Moment,
}

impl Standby {
    fn on(name: &str) -> Standby {
        let options = DetectorOptions::default();
        let own = ProcessId::new("b");
        let core = DetectorCore::new(own, "own".to_owned(), Some(host(name)), options);
        Standby {
            core,
            now: Moment::default(),
        }
    }

    /// Hears `a`, which leads on the host `there`.
    fn watching(name: &str) -> Standby {
        let mut standby = Standby::on(name);
        standby.handle(Event::Watch(Some(target())));
        standby.handle(Event::Tick);
        standby.handle(Event::Heartbeat(leading()));
        standby
    }

    fn handle(&mut self, event: Event) -> Vec<Effect> {
        self.core.handle(self.now, event)
    }

    fn broken(&mut self, why: Break) -> Vec<Effect> {
        self.handle(Event::Broken(why))
    }

    /// Runs this number of ticks in time; returns all effects.
    fn ticks(&mut self, count: u32) -> Vec<Effect> {
        let interval = DetectorOptions::default().heartbeat_interval;
        let tick = |_| {
            self.now = self.now.after(interval);
            self.core.handle(self.now, Event::Tick)
        };
        (0..count).flat_map(tick).collect()
    }

    /// Ticks until other processes are asked.
    fn ticks_until_inquiry(&mut self) -> u64 {
        let inquiry = (0..100).find_map(|_| inquired(&self.ticks(1)));
        inquiry.expect("others are asked")
    }

    fn answers(&mut self, inquiry: u64, replies: &[Option<Reply>]) -> Vec<Effect> {
        let count = replies.len();
        let mut effects = self.handle(Event::InquirySent { inquiry, count });
        for reply in replies {
            let reply = *reply;
            effects.extend(self.handle(Event::Answered { inquiry, reply }));
        }
        effects
    }
}

fn deposed(effects: &[Effect]) -> Option<Detection> {
    effects.iter().find_map(|effect| match effect {
        Effect::Depose { evidence, .. } => Some(evidence.detection),
        _ => None,
    })
}

fn inquired(effects: &[Effect]) -> Option<u64> {
    effects.iter().find_map(|effect| match effect {
        Effect::Inquire { inquiry } => Some(*inquiry),
        _ => None,
    })
}

fn connects(effects: &[Effect]) -> bool {
    let is_connect = |effect: &Effect| matches!(effect, Effect::Connect { .. });
    effects.iter().any(is_connect)
}

#[test]
fn a_refusal_on_the_leaders_own_host_proves_that_its_process_is_gone() {
    let mut b = Standby::watching("there");
    let effects = b.broken(Break::Ended);
    assert!(connects(&effects) && deposed(&effects).is_none());
    assert_eq!(
        deposed(&b.broken(Break::RefusedHere)),
        Some(Detection::ProcessGone)
    );
    assert_eq!(
        deposed(&b.broken(Break::RefusedHere)),
        None,
        "once is enough"
    );
}

#[test]
fn a_refusal_elsewhere_may_be_a_firewalls_and_others_are_asked() {
    let mut b = Standby::watching("here");
    b.broken(Break::Ended);
    let effects = b.broken(Break::Refused);
    assert_eq!(deposed(&effects), None);
    let inquiry = inquired(&effects).expect("others are asked at once");
    assert_eq!(
        deposed(&b.answers(inquiry, &[Some(Reply::Reachable)])),
        None
    );
    // Later they are asked again, and this time they have lost it too.
    let inquiry = b.ticks_until_inquiry();
    let effects = b.answers(inquiry, &[Some(LOST)]);
    assert_eq!(deposed(&effects), Some(Detection::LostBySeveral));
}

#[test]
fn one_process_that_lost_the_leader_among_many_that_reach_it_deposes_no_leader() {
    let mut b = Standby::watching("here");
    b.broken(Break::Ended);
    let inquiry = inquired(&b.broken(Break::Refused)).expect("others are asked");
    let reachable = Some(Reply::Reachable);
    let replies = [reachable, reachable, Some(LOST), reachable];
    assert_eq!(deposed(&b.answers(inquiry, &replies)), None);
    let inquiry = b.ticks_until_inquiry();
    assert_eq!(deposed(&b.answers(inquiry, &[Some(LOST), reachable])), None);
    let inquiry = b.ticks_until_inquiry();
    let replies = [Some(LOST), reachable, Some(LOST)];
    assert!(deposed(&b.answers(inquiry, &replies)).is_some());
}

#[test]
fn a_process_that_is_just_ending_is_tried_until_its_port_refuses() {
    let mut b = Standby::watching("there");
    b.broken(Break::Ended);
    for tries in 0..3 {
        let effects = b.broken(Break::Ended);
        assert!(connects(&effects) && inquired(&effects).is_none());
        // The first reset comes from the port's end: the next attempt can prove it.
        let at_once =
            |effect: &Effect| matches!(effect, Effect::Connect { after, .. } if after.is_zero());
        assert_eq!(effects.iter().any(at_once), tries == 0);
    }
    assert_eq!(
        deposed(&b.broken(Break::RefusedHere)),
        Some(Detection::ProcessGone)
    );
}

#[test]
fn another_start_at_the_leaders_address_proves_that_the_first_is_gone() {
    let mut b = Standby::watching("here");
    b.broken(Break::Ended);
    let effects = b.handle(Event::Heartbeat(heartbeat("second", Role::Standby)));
    assert_eq!(deposed(&effects), Some(Detection::OtherIncarnation));
}

#[test]
fn a_leader_that_gave_up_its_term_or_does_not_know_of_it_is_not_gone() {
    let mut b = Standby::watching("here");
    let effects = b.handle(Event::Heartbeat(heartbeat("first", Role::Standby)));
    assert_eq!(deposed(&effects), None);
    let mut b = Standby::on("here");
    b.handle(Event::Watch(Some(target())));
    let effects = b.handle(Event::Heartbeat(heartbeat("any", Role::Standby)));
    assert_eq!(deposed(&effects), None, "it never heard who leads");
}

#[test]
fn silence_is_confirmed_by_others_before_anything_is_done() {
    let mut b = Standby::watching("there");
    let effects = b.ticks(7);
    assert!(inquired(&effects).is_none() && !connects(&effects));
    let effects = b.ticks(1);
    let inquiry = inquired(&effects).expect("800 ms are the bound");
    assert!(connects(&effects), "a new connection may heal it");
    assert_eq!(deposed(&b.answers(inquiry, &[None, Some(LOST)])), None);
    let effects = b.handle(Event::Answered {
        inquiry,
        reply: Some(LOST),
    });
    assert_eq!(deposed(&effects), Some(Detection::SilentConfirmed));
}

#[test]
fn a_heartbeat_ends_an_inquiry_and_cancels_a_depose_request() {
    let mut b = Standby::watching("here");
    let inquiry = inquired(&b.ticks(8)).expect("silence");
    b.handle(Event::Heartbeat(leading()));
    assert_eq!(deposed(&b.answers(inquiry, &[Some(LOST)])), None);

    let inquiry = b.ticks_until_inquiry();
    assert!(deposed(&b.answers(inquiry, &[Some(LOST)])).is_some());
    let effects = b.handle(Event::Heartbeat(leading()));
    let cancelled = |effect: &Effect| matches!(effect, Effect::CancelDepose { .. });
    assert!(effects.iter().any(cancelled), "{effects:?}");
}

#[test]
fn a_depose_request_that_failed_cancels_no_later_one() {
    let mut b = Standby::watching("there");
    let gone = |b: &mut Standby| {
        b.broken(Break::Ended);
        let effects = b.broken(Break::RefusedHere);
        effects.iter().find_map(|effect| match effect {
            Effect::Depose { request, .. } => Some(*request),
            _ => None,
        })
    };
    let first = gone(&mut b).expect("it is gone");
    let effects = b.handle(Event::Heartbeat(leading()));
    assert!(effects.contains(&Effect::CancelDepose { request: first }));
    let second = gone(&mut b).expect("it is gone again");
    // The failure of the first arrives only now: the second is pending nevertheless.
    b.handle(Event::DeposeFailed { request: first });
    b.ticks(20);
    assert_eq!(deposed(&b.broken(Break::RefusedHere)), None);
    b.handle(Event::DeposeFailed { request: second });
    b.ticks(20);
    assert!(deposed(&b.broken(Break::RefusedHere)).is_some());
}

#[test]
fn a_refusal_proves_nothing_where_another_host_may_have_refused() {
    // A copy of the leader's host has the same identity.
    let mut b = Standby::watching("there");
    b.broken(Break::Ended);
    assert_eq!(deposed(&b.broken(Break::Refused)), None);
    let copied = Target {
        host: Some(host("there")),
        ..target()
    };
    let mut b = Standby::on("there");
    b.handle(Event::Watch(Some(copied.clone())));
    assert_eq!(deposed(&b.broken(Break::RefusedOnLoopback)), None);
    // The leader was heard there, so the address is this host's.
    b.handle(Event::Heartbeat(leading()));
    b.broken(Break::Ended);
    assert_eq!(
        deposed(&b.broken(Break::RefusedOnLoopback)),
        Some(Detection::ProcessGone)
    );
    let mut b = Standby::on("there");
    b.handle(Event::Watch(Some(copied)));
    assert_eq!(
        deposed(&b.broken(Break::RefusedHere)),
        Some(Detection::ProcessGone),
        "no other host has that address"
    );
}

#[test]
fn without_a_process_to_ask_the_lease_decides() {
    let mut b = Standby::watching("here");
    for _ in 0..10 {
        let effects = b.ticks(60);
        let inquiry = inquired(&effects).expect("it tries");
        assert_eq!(deposed(&b.answers(inquiry, &[])), None);
    }
}

#[test]
fn a_standby_that_was_frozen_itself_suspects_no_leader() {
    let mut b = Standby::watching("there");
    b.now = b.now.after(Duration::from_secs(30));
    let effects = b.handle(Event::Tick);
    assert!(inquired(&effects).is_none(), "{effects:?}");
}

#[test]
fn false_alarms_double_the_wait_for_silence_and_cost_proof_nothing() {
    let mut b = Standby::watching("there");
    b.handle(Event::FalseAlarms(1));
    assert_eq!(inquired(&b.ticks(15)), None);
    assert!(inquired(&b.ticks(1)).is_some());
    b.handle(Event::Heartbeat(leading()));
    b.broken(Break::Ended);
    assert_eq!(
        deposed(&b.broken(Break::RefusedHere)),
        Some(Detection::ProcessGone)
    );
}

#[test]
fn a_term_is_reported_reachable_while_its_heartbeats_arrive() {
    let mut b = Standby::watching("here");
    let suspended = heartbeat("first", Role::Suspended(Epoch::new(7)));
    let until = b.now.after(DetectorOptions::default().silence_timeout);
    let effects = b.handle(Event::Heartbeat(suspended));
    assert!(effects.contains(&Effect::TermReachable(Epoch::new(7), Some(until))));
    let effects = b.broken(Break::Ended);
    assert!(effects.contains(&Effect::TermReachable(Epoch::new(7), None)));
}

#[test]
fn what_happens_where_an_earlier_start_of_the_leader_was_says_nothing_about_its_term() {
    let unconfirmed = Target {
        is_confirmed: false,
        host: Some(host("there")),
        ..target()
    };
    let watching = || {
        let mut b = Standby::on("there");
        b.handle(Event::Watch(Some(unconfirmed.clone())));
        b
    };
    let mut b = watching();
    assert_eq!(deposed(&b.broken(Break::RefusedHere)), None);
    assert_eq!(
        inquired(&b.ticks(100)),
        None,
        "others know no better address"
    );
    let somebody = PeerHeartbeat {
        process: ProcessId::new("c"),
        ..leading()
    };
    assert_eq!(deposed(&b.handle(Event::Heartbeat(somebody))), None);

    // Once the term itself confirms the address, or was heard there, it counts.
    b.handle(Event::Watch(Some(target())));
    b.broken(Break::Ended);
    assert_eq!(
        deposed(&b.broken(Break::RefusedHere)),
        Some(Detection::ProcessGone)
    );
    let mut b = watching();
    b.handle(Event::Tick);
    b.handle(Event::Heartbeat(leading()));
    b.broken(Break::Ended);
    assert_eq!(
        deposed(&b.broken(Break::RefusedHere)),
        Some(Detection::ProcessGone)
    );
}

#[test]
fn an_own_earlier_start_is_deposed_when_it_answers_no_more() {
    let own = Target {
        process: ProcessId::new("b"),
        ..target()
    };
    let gone = Some(Detection::OwnEarlierIncarnation);
    let mut b = Standby::on("there");
    assert_eq!(deposed(&b.handle(Event::Watch(Some(own.clone())))), None);
    assert_eq!(deposed(&b.broken(Break::RefusedHere)), gone);

    // It has never published an address.
    let unconfirmed = Target {
        address: None,
        ..own.clone()
    };
    let mut b = Standby::on("there");
    assert_eq!(deposed(&b.handle(Event::Watch(Some(unconfirmed)))), gone);

    // Its address is now this process's.
    let mut b = Standby::on("there");
    b.handle(Event::Watch(Some(own.clone())));
    let myself = PeerHeartbeat {
        process: ProcessId::new("b"),
        ..heartbeat("own", Role::Standby)
    };
    assert_eq!(deposed(&b.handle(Event::Heartbeat(myself))), gone);

    // It is alive: two processes have the same id.
    let mut b = Standby::on("there");
    b.handle(Event::Watch(Some(own)));
    let duplicate = PeerHeartbeat {
        process: ProcessId::new("b"),
        ..leading()
    };
    let effects = b.handle(Event::Heartbeat(duplicate.clone()));
    assert_eq!(deposed(&effects), None);
    assert!(effects.contains(&Effect::DuplicateId(duplicate)));
}

#[test]
fn a_leader_watches_no_process() {
    let mut b = Standby::watching("there");
    assert_eq!(b.handle(Event::Watch(None)), [Effect::Disconnect]);
    assert_eq!(b.ticks(100), []);
    assert_eq!(b.broken(Break::Refused), []);
}

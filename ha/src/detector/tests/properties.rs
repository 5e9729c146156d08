//! The core at random: in any order of events, it deposes only for a reason that holds at that moment.

use std::time::Duration;

use proptest::prelude::*;

use super::scenarios::{LOST, heartbeat, host, leading, target};
use crate::clock::Moment;
use crate::detector::core::{DetectorCore, DetectorOptions, Effect, Event};
use crate::detector::peer_heartbeat::{Break, Reply, Role};
use crate::election::{Detection, Epoch, ProcessId};

#[derive(Debug, Clone)]
enum Happening {
    Watch(bool),
    Hear,
    HearStandby,
    HearAnother,
    Break(Break),
    InquirySent(usize),
    Answered(Option<Reply>),
    OldAnswer,
    DeposeFailed,
    Alarms(u32),
    Tick(u64),
}

fn happening(of_a_link_only: bool) -> impl Strategy<Value = Happening> {
    let others = prop_oneof![
        4 => Just(Happening::Hear),
        1 => Just(Happening::HearStandby),
        3 => prop_oneof![
            Just(Break::Ended),
            Just(Break::Refused),
            Just(Break::RefusedHere),
            Just(Break::RefusedOnLoopback),
            Just(Break::NoAnswer),
        ]
            .prop_map(Happening::Break),
        2 => (0usize..4).prop_map(Happening::InquirySent),
        1 => Just(Happening::DeposeFailed),
        1 => (0u32..3).prop_map(Happening::Alarms),
        12 => (90u64..400).prop_map(Happening::Tick),
        1 => any::<bool>().prop_map(Happening::Watch),
    ];
    let replies = if of_a_link_only {
        prop_oneof![
            Just(None),
            Just(Some(Reply::Reachable)),
            Just(Some(Reply::Unsure))
        ]
        .boxed()
    } else {
        reply().boxed()
    };
    let answers = replies.prop_map(Happening::Answered);
    if of_a_link_only {
        prop_oneof![4 => others, 1 => answers].boxed()
    } else {
        let another = prop_oneof![Just(Happening::HearAnother), Just(Happening::OldAnswer)];
        prop_oneof![12 => others, 4 => answers, 1 => another].boxed()
    }
}

fn reply() -> impl Strategy<Value = Option<Reply>> {
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(Reply::Reachable)),
        1 => Just(Some(Reply::Unsure)),
        2 => Just(Some(LOST)),
    ]
}

/// The events and effects of the core, with the state that justifies its effects.
struct Run {
    core: DetectorCore,
    now: Moment,
    inquiry: u64,
    recipients: usize,
    lost: usize,
    deposing: bool,
    /// The last depose request.
    request: u64,
    watches: bool,
    deposed: Vec<Detection>,
}

impl Run {
    fn new(own_host: &str) -> Run {
        let options = DetectorOptions::default();
        let own = ProcessId::new("b");
        let mut core = DetectorCore::new(own, "own".to_owned(), Some(host(own_host)), options);
        core.handle(Moment::default(), Event::Watch(Some(target())));
        Run {
            core,
            now: Moment::default(),
            inquiry: 0,
            recipients: 0,
            lost: 0,
            deposing: false,
            request: 0,
            watches: true,
            deposed: Vec::new(),
        }
    }

    fn event(&mut self, happening: &Happening) -> Event {
        let inquiry = self.inquiry;
        match happening {
            Happening::Watch(true) => Event::Watch(Some(target())),
            Happening::Watch(false) => Event::Watch(None),
            Happening::Hear => Event::Heartbeat(leading()),
            Happening::HearStandby => Event::Heartbeat(heartbeat("first", Role::Standby)),
            Happening::HearAnother => Event::Heartbeat(heartbeat("second", Role::Standby)),
            Happening::Break(why) => Event::Broken(*why),
            Happening::InquirySent(count) => Event::InquirySent {
                inquiry,
                count: *count,
            },
            Happening::Answered(reply) => Event::Answered {
                inquiry,
                reply: *reply,
            },
            Happening::OldAnswer => Event::Answered {
                inquiry: inquiry.saturating_sub(1),
                reply: Some(LOST),
            },
            Happening::DeposeFailed => Event::DeposeFailed {
                request: self.request,
            },
            Happening::Alarms(count) => Event::FalseAlarms(*count),
            Happening::Tick(ms) => {
                self.now = self.now.after(Duration::from_millis(*ms));
                Event::Tick
            }
        }
    }

    fn step(&mut self, happening: &Happening) -> Result<(), TestCaseError> {
        let event = self.event(happening);
        match happening {
            Happening::InquirySent(count) => self.recipients = *count,
            Happening::Answered(Some(Reply::Lost { .. })) => self.lost += 1,
            // A heartbeat of the term ends the inquiry.
            Happening::Hear => self.lost = 0,
            Happening::DeposeFailed => self.deposing = false,
            Happening::Watch(watches) => {
                self.deposing &= *watches && self.watches;
                self.watches = *watches;
            }
            _ => {}
        }
        for effect in self.core.handle(self.now, event) {
            match effect {
                Effect::Inquire { inquiry } => {
                    prop_assert!(inquiry > self.inquiry, "ids are never used again");
                    (self.inquiry, self.recipients, self.lost) = (inquiry, 0, 0);
                }
                Effect::CancelDepose { request } => {
                    prop_assert_eq!(request, self.request);
                    self.deposing = false;
                }
                Effect::Depose {
                    request,
                    epoch,
                    evidence,
                } => {
                    prop_assert!(request > self.request, "numbers are never used again");
                    self.request = request;
                    prop_assert!(self.watches, "no process is watched");
                    prop_assert!(!self.deposing, "it is under way already");
                    prop_assert_eq!(epoch, Epoch::new(7));
                    self.check_reason(happening, evidence.detection)?;
                    self.deposing = true;
                    self.deposed.push(evidence.detection);
                }
                Effect::Connect { .. }
                | Effect::Disconnect
                | Effect::Explain(..)
                | Effect::TermReachable(..)
                | Effect::DuplicateId(_) => {}
            }
        }
        Ok(())
    }

    fn check_reason(&self, last: &Happening, detection: Detection) -> Result<(), TestCaseError> {
        match detection {
            Detection::ProcessGone => {
                prop_assert!(matches!(
                    last,
                    Happening::Break(Break::RefusedHere | Break::RefusedOnLoopback)
                ));
            }
            Detection::OtherIncarnation => {
                prop_assert!(matches!(
                    last,
                    Happening::HearAnother | Happening::HearStandby
                ));
            }
            Detection::SilentConfirmed | Detection::LostBySeveral => {
                let others = self.recipients.saturating_sub(self.lost);
                prop_assert!(self.lost > others, "most of those asked confirm it");
            }
            other => prop_assert!(false, "{other} is not detected from outside"),
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn every_deposition_has_its_reason_at_that_moment(
        same_host: bool,
        happenings in proptest::collection::vec(happening(false), 1..200),
    ) {
        let mut run = Run::new(if same_host { "there" } else { "here" });
        for happening in &happenings {
            run.step(happening)?;
        }
        if !same_host {
            prop_assert!(!run.deposed.contains(&Detection::ProcessGone));
        }
    }

    /// Two or more are asked each time. One of them gives arbitrary answers; the others hear the leader,
    /// don't know, or don't answer.
    #[test]
    fn a_broken_link_and_one_false_witness_depose_no_leader(
        happenings in proptest::collection::vec(happening(true), 1..300),
        asked in 2usize..6,
        lies in proptest::collection::vec(reply(), 1..50),
    ) {
        let mut run = Run::new("here");
        let mut lies = lies.into_iter().cycle();
        let others = |happening: &&Happening| !matches!(happening, Happening::InquirySent(_));
        for happening in happenings.iter().filter(others) {
            let before = run.inquiry;
            run.step(happening)?;
            if run.inquiry != before {
                run.step(&Happening::InquirySent(asked))?;
                let lie = lies.next().expect("it goes round");
                run.step(&Happening::Answered(lie))?;
            }
        }
        prop_assert_eq!(run.deposed, []);
    }

    #[test]
    fn a_link_that_only_this_process_lost_deposes_no_leader(
        happenings in proptest::collection::vec(happening(true), 1..300),
    ) {
        let mut run = Run::new("here");
        for happening in &happenings {
            run.step(happening)?;
        }
        prop_assert_eq!(run.deposed, []);
    }
}

//! The decisions of a failure detector, without I/O, clock or randomness: events in, effects out. Owned by the
//! detector's actor, which feeds it.
//!
//! ```text
//!           heartbeat             stream ended                 refused on this host, or another one answers
//!   Opening --------> Up  ---------------------------> Down -----------------------------------------.
//!      |               | silent past the bound           | refused, reset or silent                    |
//!      '---------------+-------------> Inquiry <---------'                                             v
//!                                         | most of those asked have lost it, too ----> depose
//! ```
//!
//! Invariants:
//! - A leader is deposed only for evidence that was seen or confirmed during its current silence: a heartbeat
//!   of its term ends every inquiry, and cancels a depose request that is still pending.
//! - A refused connection suffices as evidence only if this host's own kernel refused it, at an address of this host,
//!   and the leader runs on this host and network; otherwise other processes are asked.
//! - If there is no process to ask, nothing is done: the lease decides.
//! - A process that leads, or knows no leader, watches no process.

use std::time::Duration;

use super::inquiry::Inquiry;
use super::peer_heartbeat::{Break, PeerHeartbeat};
use super::silence::Silence;
use crate::clock::Moment;
use crate::election::{Detection, Evidence, Former, HostIdentity, ProcessId};

pub use super::event::{DetectorOptions, Effect, Event, Target};

/// Pause between connection attempts to a leader whose connections close at once. Its process may be ending right
/// now: the listening socket outlives the other sockets by some milliseconds, and resets what it has queued when it
/// is closed. So the attempt after the first reset follows at once: it shows whether the address still listens.
const RESET_PAUSE: Duration = Duration::from_millis(5);
/// Number of such attempts after which other processes are asked.
const RESETS_BEFORE_INQUIRY: u32 = 10;
/// Number of such attempts after which they follow each other slowly.
const RESETS_BEFORE_PAUSING: u32 = 40;
/// Pause after a failed deposition before the next try.
const DEPOSE_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between inquiries, and the maximum number of doublings of the silence timeout for false
/// alarms.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const MAX_DOUBLINGS: u32 = 4;

/// The start of the process that leads the watched term, and its last heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastContact {
    incarnation: String,
    at: Moment,
}

/// The heartbeat stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// No heartbeat of any process has arrived from the address yet.
    Opening,
    /// A heartbeat arrived on the present connection.
    Up,
    /// It was up, and broke or became silent.
    Down,
}

/// The leader that is watched, and the evidence against it.
#[derive(Debug, Clone)]
struct Watched {
    target: Target,
    /// When this process began to watch it.
    since: Moment,
    link: Link,
    /// `None`: no heartbeat of its term has arrived.
    contact: Option<LastContact>,
    /// The host of the leader, as its last heartbeat or its target says; `None`: unknown.
    host: Option<HostIdentity>,
    /// The detection to record if other processes confirm the current loss; `None`: the leader is not lost.
    loss: Option<Detection>,
    /// Connections in a row that closed at once.
    resets: u32,
    /// The inquiry under way.
    inquiry: Option<Inquiry>,
    /// Inquiries since the last heartbeat that were not answered in time by enough processes.
    failed_inquiries: u32,
    /// No inquiry begins before this moment.
    next_inquiry: Option<Moment>,
    /// No depose request begins before this moment.
    next_depose: Option<Moment>,
    /// The pending depose request.
    deposing: Option<u64>,
}

/// The state of one process's detector.
#[derive(Debug)]
pub struct DetectorCore {
    own: ProcessId,
    own_incarnation: String,
    /// `None`: unknown, so no refused connection suffices as evidence.
    own_host: Option<HostIdentity>,
    options: DetectorOptions,
    silence: Silence,
    watched: Option<Watched>,
    false_alarms: u32,
    /// The number of the last inquiry, and of the last depose request.
    last_inquiry: u64,
    last_request: u64,
}

impl DetectorCore {
    /// The detector of this process.
    pub fn new(
        own: ProcessId,
        own_incarnation: String,
        own_host: Option<HostIdentity>,
        options: DetectorOptions,
    ) -> DetectorCore {
        DetectorCore {
            own,
            own_incarnation,
            own_host,
            silence: Silence::new(options.heartbeat_interval, options.silence_timeout),
            options,
            watched: None,
            false_alarms: 0,
            last_inquiry: 0,
            last_request: 0,
        }
    }

    /// The leader that is watched.
    pub fn target(&self) -> Option<&Target> {
        self.watched.as_ref().map(|watched| &watched.target)
    }

    /// Whether its heartbeat stream is connected.
    pub fn is_connected(&self) -> bool {
        self.watched
            .as_ref()
            .is_some_and(|watched| watched.link == Link::Up)
    }

    /// Whether no heartbeat has arrived from its address yet.
    pub fn is_opening(&self) -> bool {
        self.watched
            .as_ref()
            .is_some_and(|watched| watched.link == Link::Opening)
    }

    /// Time of the watched term's last heartbeat; if there was none, the time at which watching began.
    pub fn last_contact(&self) -> Option<Moment> {
        self.watched.as_ref().map(Watched::last_contact)
    }

    /// Whether this process itself was recently delayed.
    pub fn is_unsure(&self) -> bool {
        self.silence.is_unsure()
    }

    /// Handles an event at `now` and returns the effects.
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Watch(target) => self.watch(now, target, &mut effects),
            Event::Heartbeat(heartbeat) => self.on_heartbeat(now, heartbeat, &mut effects),
            Event::Broken(why) => self.on_broken(now, why, &mut effects),
            Event::InquirySent { inquiry, count } => {
                self.with_inquiry(now, inquiry, &mut effects, |inquiry| inquiry.sent_to(count));
            }
            Event::Answered { inquiry, reply } => {
                self.with_inquiry(now, inquiry, &mut effects, |inquiry| {
                    inquiry.answered(reply)
                });
            }
            Event::ProvenDead { inquiry } => {
                self.with_inquiry(now, inquiry, &mut effects, Inquiry::exclude_dead);
            }
            Event::DeposeFailed { request } => {
                if let Some(watched) = &mut self.watched
                    && watched.deposing == Some(request)
                {
                    watched.deposing = None;
                    watched.next_depose = Some(now.after(DEPOSE_PAUSE));
                }
            }
            Event::FalseAlarms(count) => self.false_alarms = count,
            Event::Tick => self.on_tick(now, &mut effects),
        }
        effects
    }

    fn watch(&mut self, now: Moment, target: Option<Target>, effects: &mut Vec<Effect>) {
        let Some(target) = target else {
            if self.watched.take().is_some() {
                effects.push(Effect::Disconnect);
            }
            return;
        };
        let (epoch, address) = (target.epoch, target.address.clone());
        let is_own = target.process == self.own;
        if let Some(watched) = &mut self.watched
            && watched.target.epoch == target.epoch
            && watched.target.process == target.process
        {
            let is_same_address = watched.target.address == target.address;
            watched.host = watched.host.take().or_else(|| target.host.clone());
            watched.target = target;
            if is_same_address {
                return;
            }
            // The address became known late, or is a better address of the same leader.
            watched.link = Link::Opening;
        } else {
            self.silence.restart();
            self.watched = Some(Watched {
                since: now,
                link: Link::Opening,
                contact: None,
                host: target.host.clone(),
                loss: None,
                resets: 0,
                inquiry: None,
                failed_inquiries: 0,
                next_inquiry: None,
                next_depose: None,
                deposing: None,
                target,
            });
        }
        match address {
            Some(address) => effects.push(Effect::Connect {
                address,
                after: Duration::ZERO,
            }),
            // An earlier start of this process that ended before it was confirmed.
            None if is_own => self.depose(now, Detection::OwnEarlierIncarnation, effects),
            // There is no address to connect to.
            None => {
                effects.push(Effect::TermReachable(epoch, None));
                effects.push(Effect::Disconnect);
            }
        }
    }

    fn on_heartbeat(&mut self, now: Moment, heartbeat: PeerHeartbeat, effects: &mut Vec<Effect>) {
        let Some(watched) = &mut self.watched else {
            return;
        };
        watched.link = Link::Up;
        watched.resets = 0;
        self.silence.heartbeat();
        let same_process = heartbeat.process == watched.target.process;
        let is_own = watched.target.process == self.own;
        if same_process && heartbeat.incarnation == self.own_incarnation && is_own {
            // This process now has the address of its earlier start, so that start is gone.
            self.depose(now, Detection::OwnEarlierIncarnation, effects);
            return;
        }
        if same_process && heartbeat.stalled_term == Some(watched.target.epoch) {
            let evidence = watched.evidence(now, Detection::Stalled);
            effects.push(Effect::Explain(watched.target.epoch, evidence));
        }
        let leads = heartbeat.role.epoch() == Some(watched.target.epoch);
        if same_process && leads {
            self.on_heartbeat_of_the_term(now, heartbeat, effects);
            return;
        }
        // The heartbeat is not of the watched term. The first case that fits counts.
        effects.push(Effect::TermReachable(watched.target.epoch, None));
        let known = watched.contact.as_ref().map(|contact| &contact.incarnation);
        if known.is_none() && !is_own && !same_process {
            // Another process where this term was never reached: an address shared by several processes, or the
            // address of an earlier start.
        } else if same_process && known.is_none_or(|known| *known == heartbeat.incarnation) {
            // It has resigned this term, or does not know yet that it has taken it, or it is a new start that
            // will itself find the key of its earlier start.
            watched.inquiry = None;
            watched.loss = None;
        } else if is_own {
            self.depose(now, Detection::OwnEarlierIncarnation, effects);
        } else {
            self.depose(now, Detection::OtherIncarnation, effects);
        }
    }

    fn on_heartbeat_of_the_term(
        &mut self,
        now: Moment,
        heartbeat: PeerHeartbeat,
        effects: &mut Vec<Effect>,
    ) {
        let Some(watched) = &mut self.watched else {
            return;
        };
        watched.contact = Some(LastContact {
            incarnation: heartbeat.incarnation.clone(),
            at: now,
        });
        watched.host.clone_from(&heartbeat.host);
        watched.inquiry = None;
        watched.failed_inquiries = 0;
        watched.next_inquiry = None;
        watched.loss = None;
        let epoch = watched.target.epoch;
        if let Some(request) = watched.deposing.take() {
            effects.push(Effect::CancelDepose { request });
        }
        let until = now.after(self.silence.bound());
        effects.push(Effect::TermReachable(epoch, Some(until)));
        if watched.target.process == self.own {
            effects.push(Effect::DuplicateId(heartbeat));
        }
    }

    fn on_broken(&mut self, now: Moment, why: Break, effects: &mut Vec<Effect>) {
        let pause = self.options.heartbeat_interval * 2;
        let Some(watched) = &mut self.watched else {
            return;
        };
        let Some(address) = watched.target.address.clone() else {
            return;
        };
        let was_up = watched.link == Link::Up;
        if watched.link != Link::Opening {
            watched.link = Link::Down;
        }
        if was_up {
            effects.push(Effect::TermReachable(watched.target.epoch, None));
            if watched.contact.is_some() {
                watched.loss.get_or_insert(Detection::LostBySeveral);
            }
            // The process that answers there now, if any, is the best evidence.
            effects.push(Effect::Connect {
                address,
                after: Duration::ZERO,
            });
            return;
        }
        let same_host = self.own_host.is_some() && watched.host == self.own_host;
        let suffices = match why {
            Break::RefusedHere => same_host && !watched.is_unproven(),
            // Every host has that address: it is the leader's only if a heartbeat of the leader arrived there.
            Break::RefusedOnLoopback => same_host && watched.contact.is_some(),
            Break::Ended | Break::Refused | Break::NoAnswer => false,
        };
        let (after, inquires) = match why {
            Break::Ended => {
                watched.resets += 1;
                let after = match watched.resets {
                    1 => Duration::ZERO,
                    ..RESETS_BEFORE_PAUSING => RESET_PAUSE,
                    _ => pause,
                };
                (after, watched.resets >= RESETS_BEFORE_INQUIRY)
            }
            Break::Refused | Break::RefusedHere | Break::RefusedOnLoopback | Break::NoAnswer => {
                // A process that waits to know whether the term is reachable can stop waiting.
                effects.push(Effect::TermReachable(watched.target.epoch, None));
                (pause, true)
            }
        };
        effects.push(Effect::Connect { address, after });
        let is_unreachable = why != Break::Ended || watched.resets >= RESETS_BEFORE_PAUSING;
        // First an earlier start of this process at an address that does not answer: this process replaces it, and no
        // other process is asked about it.
        if is_unreachable && watched.target.process == self.own {
            self.depose(now, Detection::OwnEarlierIncarnation, effects);
        } else if suffices {
            self.depose(now, Detection::ProcessGone, effects);
        } else if inquires && watched.loss.is_some() {
            self.inquire(now, effects);
        }
    }

    fn on_tick(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        self.silence.tick(now);
        let Some(watched) = &mut self.watched else {
            return;
        };
        let epoch = watched.target.epoch;
        if let Some(inquiry) = &watched.inquiry
            && now >= inquiry.until
        {
            // Each inquiry without a result doubles the pause before the next one.
            let pause =
                self.options.silence_timeout / 2 * 2u32.saturating_pow(watched.failed_inquiries);
            watched.next_inquiry = Some(now.after(pause.min(LONGEST_PAUSE)));
            watched.failed_inquiries += 1;
            watched.inquiry = None;
        }
        if !self
            .silence
            .is_suspicious(self.false_alarms.min(MAX_DOUBLINGS))
        {
            return;
        }
        let Some(address) = watched.target.address.clone() else {
            return;
        };
        if watched.is_unproven() {
            return;
        }
        // A loss by a broken stream is already recorded as such.
        watched.loss.get_or_insert(Detection::SilentConfirmed);
        if watched.link == Link::Up {
            // A silently broken connection is replaced by a new one.
            watched.link = Link::Down;
            effects.push(Effect::TermReachable(epoch, None));
            effects.push(Effect::Connect {
                address,
                after: Duration::ZERO,
            });
        }
        self.inquire(now, effects);
    }

    /// Asks other processes, unless an inquiry is running, has just failed, or is not needed.
    fn inquire(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let Some(watched) = &mut self.watched else {
            return;
        };
        let waits = watched.next_inquiry.is_some_and(|at| now < at);
        // No inquiry about a leader with this process's own id.
        let own = watched.target.process == self.own;
        let Some(detection) = watched.loss else {
            return;
        };
        if waits || own || watched.deposing.is_some() || watched.inquiry.is_some() {
            return;
        }
        self.last_inquiry += 1;
        let own_loss = now.since(watched.last_contact());
        let freshness = own_loss + self.silence.bound() * 2 + self.options.inquiry_timeout;
        let until = now.after(self.options.inquiry_timeout);
        watched.inquiry = Some(Inquiry::new(self.last_inquiry, detection, until, freshness));
        effects.push(Effect::Inquire {
            inquiry: self.last_inquiry,
        });
    }

    fn with_inquiry(
        &mut self,
        now: Moment,
        id: u64,
        effects: &mut Vec<Effect>,
        change: impl FnOnce(&mut Inquiry),
    ) {
        let Some(watched) = &mut self.watched else {
            return;
        };
        let Some(inquiry) = watched.inquiry.as_mut().filter(|inquiry| inquiry.id == id) else {
            return;
        };
        change(inquiry);
        if inquiry.is_pointless() {
            inquiry.until = now;
        } else if inquiry.is_confirmed() {
            let detection = inquiry.detection;
            self.depose(now, detection, effects);
        }
    }

    fn depose(&mut self, now: Moment, detection: Detection, effects: &mut Vec<Effect>) {
        let Some(watched) = &mut self.watched else {
            return;
        };
        watched.inquiry = None;
        let waits = watched.next_depose.is_some_and(|at| now < at);
        if waits || watched.deposing.is_some() {
            return;
        }
        self.last_request += 1;
        watched.deposing = Some(self.last_request);
        effects.push(Effect::Depose {
            request: self.last_request,
            epoch: watched.target.epoch,
            evidence: watched.evidence(now, detection),
        });
    }
}

impl Watched {
    /// Whether nothing ties the address to this term yet.
    fn is_unproven(&self) -> bool {
        self.contact.is_none() && !self.target.is_confirmed
    }

    fn evidence(&self, now: Moment, detection: Detection) -> Evidence {
        let contact = self.contact.as_ref();
        Evidence {
            detection,
            former: Former {
                process: Some(self.target.process.clone()),
                incarnation: contact.map(|contact| contact.incarnation.clone()),
                address: self.target.address.clone(),
            },
            last_heartbeat: contact.map(|contact| contact.at),
            detected: now,
        }
    }

    fn last_contact(&self) -> Moment {
        self.contact
            .as_ref()
            .map_or(self.since, |contact| contact.at)
    }
}

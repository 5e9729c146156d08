//! What all processes of a test share: the history, who is dead or cut off, the weather on the network, and the moment at
//! which a JobManager is struck dead.
//!
//! A process that is struck does nothing any more from that moment on, although its tasks still exist for a while: what it
//! sends arrives nowhere, and no answer reaches it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tanist_ha::election::ProcessId;
use tanist_ha::memory::MemoryCluster;
use tokio::sync::watch;

use super::history::{Event, Record, Stored};
use super::tasks::Tasks;
use crate::gateway::local::{Call, Fault, Journey, Roads};

/// A step of a JobManager.
#[derive(Debug)]
pub enum Step<'a> {
    /// It sends a transaction.
    Committing(&'a [Record]),
    /// The store has applied one; nobody heard of it.
    Committed(&'a [Record]),
    /// It calls somebody.
    Calling(&'a Call<'a>),
    /// It begins to make visible what sinks wrote.
    CommittingSinks,
    /// It has done so.
    CommittedSinks,
}

impl Step<'_> {
    /// Whether this is a transaction about to be sent with such a record.
    pub fn commits(&self, is: impl Fn(&Record) -> bool) -> bool {
        matches!(self, Step::Committing(records) if records.iter().any(is))
    }

    /// Whether this is a transaction that was applied with such a record.
    pub fn committed(&self, is: impl Fn(&Record) -> bool) -> bool {
        matches!(self, Step::Committed(records) if records.iter().any(is))
    }

    /// Whether this is a call of a method of somebody.
    pub fn calls(&self, method: &str) -> bool {
        matches!(self, Step::Calling(call) if call.method == method)
    }
}

type Strike = Box<dyn FnMut(&Step<'_>) -> bool + Send>;

/// How calls and transactions go wrong by chance.
#[derive(Debug)]
pub struct Weather {
    random: StdRng,
    /// Of a thousand calls, so many are refused.
    pub unreachable: u32,
    /// Of a thousand calls and transactions, so many lose their answer.
    pub lost: u32,
    /// Each way takes up to so many milliseconds.
    pub delay_ms: u64,
}

impl Weather {
    pub fn of_seed(seed: u64) -> Weather {
        Weather {
            random: StdRng::seed_from_u64(seed),
            unreachable: 20,
            lost: 30,
            delay_ms: 40,
        }
    }
}

#[derive(Default)]
struct Inner {
    events: Vec<Event>,
    stored: Stored,
    dead: BTreeSet<String>,
    cut: BTreeSet<String>,
    weather: Option<Weather>,
    strike: Option<Strike>,
}

/// See the module.
#[derive(Clone)]
pub struct World {
    inner: Arc<Mutex<Inner>>,
    pub memory: MemoryCluster,
    pub tasks: Tasks,
    /// The life that was struck last.
    struck: Arc<watch::Sender<Option<String>>>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

/// The process of a life (`a#2`: the second life of `a`) or of an address (`a:1`).
pub fn process_of(text: &str) -> &str {
    text.split(['#', ':']).next().unwrap_or(text)
}

fn is_job_manager(life: &str) -> bool {
    process_of(life).starts_with("jm")
}

impl World {
    pub fn new(memory: MemoryCluster) -> World {
        World {
            inner: Arc::default(),
            memory,
            tasks: Tasks::default(),
            struck: Arc::new(watch::Sender::new(None)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what happened.
    pub fn note(&self, event: Event) {
        let mut inner = self.lock();
        inner.stored.apply(&event);
        inner.events.push(event);
    }

    pub fn events(&self) -> Vec<Event> {
        self.lock().events.clone()
    }

    /// What the store holds of jobs.
    pub fn stored(&self) -> Stored {
        self.lock().stored.clone()
    }

    /// The next JobManager that takes such a step dies before it.
    pub fn strike_at(&self, strike: impl FnMut(&Step<'_>) -> bool + Send + 'static) {
        self.struck.send_replace(None);
        self.lock().strike = Some(Box::new(strike));
    }

    /// Waits until a JobManager was struck; gives its life.
    pub async fn struck(&self) -> String {
        let mut struck = self.struck.subscribe();
        let life = struck.wait_for(Option::is_some).await;
        life.expect("the world lives").clone().unwrap_or_default()
    }

    /// Whether a life may take a step: not if it is dead, or struck at this very moment.
    pub fn takes(&self, life: &str, step: &Step<'_>) -> bool {
        let mut inner = self.lock();
        if inner.dead.contains(life) {
            return false;
        }
        let is_struck =
            is_job_manager(life) && inner.strike.as_mut().is_some_and(|strike| strike(step));
        if is_struck {
            inner.strike = None;
            drop(inner);
            self.kill(life);
            self.struck.send_replace(Some(life.to_owned()));
        }
        !is_struck
    }

    /// Nothing that this life sends arrives from now on.
    pub fn kill(&self, life: &str) {
        self.lock().dead.insert(life.to_owned());
        if is_job_manager(life) {
            self.memory.partition(&ProcessId::new(process_of(life)));
        }
    }

    pub fn is_dead(&self, life: &str) -> bool {
        self.lock().dead.contains(life)
    }

    /// Cuts the network between a process and all others. The store is another network.
    pub fn cut(&self, process: &str) {
        self.lock().cut.insert(process.to_owned());
        self.note(Event::Disturbed(process.to_owned()));
    }

    pub fn heal(&self, process: &str) {
        self.lock().cut.remove(process);
    }

    pub fn set_weather(&self, weather: Option<Weather>) {
        self.lock().weather = weather;
    }

    /// Whether the store's answer to a transaction is lost.
    pub fn loses_reply(&self) -> bool {
        let mut inner = self.lock();
        let weather = inner.weather.as_mut();
        weather.is_some_and(|weather| weather.random.random_range(0..1000) < weather.lost)
    }
}

impl Roads for World {
    fn leave(&self, call: &Call<'_>) -> Journey {
        let silent = Journey {
            fault: Fault::Silent,
            ..Journey::default()
        };
        let from = call.from.unwrap_or_default();
        if !self.takes(from, &Step::Calling(call)) {
            return silent;
        }
        let ends = [process_of(from), process_of(call.to)];
        let mut inner = self.lock();
        if ends.iter().any(|end| inner.cut.contains(*end)) {
            return silent;
        }
        let Some(weather) = inner.weather.as_mut() else {
            return Journey::default();
        };
        let mut way = || Duration::from_millis(weather.random.random_range(0..=weather.delay_ms));
        let (there, back) = (way(), way());
        let chance = weather.random.random_range(0..1000);
        let fault = if chance < weather.unreachable {
            Fault::Unreachable
        } else if chance < weather.unreachable + weather.lost {
            Fault::LoseReplies
        } else {
            Fault::None
        };
        drop(inner);
        if fault != Fault::None {
            for end in ends {
                self.note(Event::Disturbed(end.to_owned()));
            }
        }
        Journey { there, fault, back }
    }

    fn arrive(&self, call: &Call<'_>) -> bool {
        let from = call.from.unwrap_or_default();
        let inner = self.lock();
        let ends = [process_of(from), process_of(call.to)];
        !inner.dead.contains(from) && !ends.iter().any(|end| inner.cut.contains(*end))
    }
}

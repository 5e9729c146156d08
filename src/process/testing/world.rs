//! The state that all processes of a test share: the history, dead and cut-off processes, the random faults of
//! the network, and the step at which a JobManager is *struck*, that is, dies.
//!
//! A struck process has no effect from that moment on, although its tasks still exist for a while: its messages
//! arrive nowhere, and no answer reaches it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tanist_gateway::local::{Call, Delivery, Fault, NetworkModel};
use tanist_ha::election::ProcessId;
use tanist_ha::memory::MemoryCluster;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::history::{Event, Record, Stored};
use super::random_faults::{Fate, RandomFaults};
use super::reached::Reached;
use super::tasks::Tasks;

/// A step of a JobManager.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// It sends a transaction.
    Committing(&'a [Record]),
    /// The store has applied a transaction, and has not answered yet.
    Committed(&'a [Record]),
    /// It calls another process.
    Calling(&'a Call<'a>),
    /// A message for it is about to arrive.
    Called(&'a Call<'a>),
    /// It has handled a message, and is about to answer.
    Answering(&'a Call<'a>),
    /// It begins to make the output of sinks visible.
    CommittingSinks,
    /// It has done so.
    CommittedSinks,
}

impl Step<'_> {
    /// Whether this is a transaction with such a record that is about to be sent.
    pub(crate) fn commits(&self, is: impl Fn(&Record) -> bool) -> bool {
        matches!(self, Step::Committing(records) if records.iter().any(is))
    }

    /// Whether this is a transaction with such a record that was applied.
    pub(crate) fn committed(&self, is: impl Fn(&Record) -> bool) -> bool {
        matches!(self, Step::Committed(records) if records.iter().any(is))
    }

    /// Whether this is a message to one of its methods, before or after it is handled.
    pub(crate) fn receives(&self, method: &str, is_handled: bool) -> bool {
        match self {
            Step::Called(call) => !is_handled && call.method == method,
            Step::Answering(call) => is_handled && call.method == method,
            Step::Committing(_)
            | Step::Committed(_)
            | Step::Calling(_)
            | Step::CommittingSinks
            | Step::CommittedSinks => false,
        }
    }

    /// Whether this is a call of such a method.
    pub(crate) fn calls(&self, method: &str) -> bool {
        matches!(self, Step::Calling(call) if call.method == method)
    }
}

type Strike = Box<dyn FnMut(&Step<'_>) -> bool + Send>;

#[derive(Default)]
struct Inner {
    calls: BTreeMap<&'static str, u32>,
    events: Vec<Event>,
    stored: Stored,
    dead: BTreeSet<String>,
    /// The current life of each JobManager.
    lives: BTreeMap<String, String>,
    cut: BTreeSet<String>,
    /// Processes that reach each other, but no other process.
    apart: BTreeSet<String>,
    /// Frozen processes, and until when.
    stopped: BTreeMap<String, Instant>,
    /// The highest epoch of the messages that each life of a TaskManager has accepted.
    accepted: BTreeMap<String, u64>,
    random_faults: Option<RandomFaults>,
    strike: Option<Strike>,
    /// The delay of the next transaction, and the channel that reports that it was sent.
    held: Option<(Duration, oneshot::Sender<()>)>,
    /// Additional duration of each request to the store.
    slowness: Duration,
}

impl Inner {
    /// Whether no message passes between these two.
    fn is_cut(&self, ends: [&str; 2]) -> bool {
        let [from, to] = ends.map(|end| self.apart.contains(end));
        from != to || ends.iter().any(|end| self.cut.contains(*end))
    }
}

/// See the module.
#[derive(Clone)]
pub(crate) struct World {
    inner: Arc<Mutex<Inner>>,
    pub memory: MemoryCluster,
    pub tasks: Tasks,
    /// While set, nothing may be removed from the directories of sinks.
    pub sinks_deny: Arc<AtomicBool>,
    /// Counts the landmarks that were reached.
    pub reached: Reached,
    /// Processes whose clock stands still: they believe in their lease until a message says otherwise.
    pub stubborn: Arc<watch::Sender<BTreeSet<String>>>,
    /// The life that was struck last.
    struck: Arc<watch::Sender<Option<String>>>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

/// The process of a life (`a#2`: the second life of `a`) or of an address (`a:1`).
pub(crate) fn process_of(text: &str) -> &str {
    text.split(['#', ':']).next().unwrap_or(text)
}

fn is_job_manager(life: &str) -> bool {
    process_of(life).starts_with("jm")
}

impl World {
    pub(crate) fn new(memory: MemoryCluster) -> World {
        World {
            inner: Arc::default(),
            memory,
            tasks: Tasks::default(),
            sinks_deny: Arc::default(),
            reached: Reached::default(),
            stubborn: Arc::default(),
            struck: Arc::new(watch::Sender::new(None)),
        }
    }

    /// Records an event.
    pub(crate) fn note(&self, event: Event) {
        let mut inner = self.inner.lock();
        inner.stored.apply(&event);
        inner.events.push(event);
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.inner.lock().events.clone()
    }

    /// The jobs in the store.
    pub(crate) fn stored(&self) -> Stored {
        self.inner.lock().stored.clone()
    }

    /// Makes the next JobManager that takes such a step die before it.
    pub(crate) fn strike_at(&self, strike: impl FnMut(&Step<'_>) -> bool + Send + 'static) {
        self.struck.send_replace(None);
        self.inner.lock().strike = Some(Box::new(strike));
    }

    /// Waits until a JobManager was struck; returns its life.
    pub(crate) async fn struck(&self) -> String {
        let mut struck = self.struck.subscribe();
        let life = struck.wait_for(Option::is_some).await;
        life.expect("the world lives").clone().unwrap_or_default()
    }

    /// Whether a life may take a step: false if it is dead, or is struck at this moment.
    pub(crate) fn takes(&self, life: &str, step: &Step<'_>) -> bool {
        let mut inner = self.inner.lock();
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

    /// Records that a JobManager's life begins.
    pub(crate) fn begins(&self, life: &str) {
        let process = process_of(life).to_owned();
        self.inner.lock().lives.insert(process, life.to_owned());
    }

    /// Whether the called JobManager is struck at this moment.
    fn strikes_callee(&self, call: &Call<'_>, step: &Step<'_>) -> bool {
        let life = self.inner.lock().lives.get(process_of(call.to)).cloned();
        life.is_some_and(|life| !self.is_dead(&life) && !self.takes(&life, step))
    }

    /// The number of calls of a method until now, with any result.
    pub(crate) fn calls(&self, method: &str) -> u32 {
        self.inner
            .lock()
            .calls
            .get(method)
            .copied()
            .unwrap_or_default()
    }

    /// From now on, nothing that this life sends arrives.
    pub(crate) fn kill(&self, life: &str) {
        self.inner.lock().dead.insert(life.to_owned());
        self.ends(process_of(life));
        if is_job_manager(life) {
            self.memory.partition(&ProcessId::new(process_of(life)));
        }
    }

    pub(crate) fn is_dead(&self, life: &str) -> bool {
        self.inner.lock().dead.contains(life)
    }

    /// Cuts the network between a process and all others. The store is on another network.
    pub(crate) fn cut(&self, process: &str) {
        self.inner.lock().cut.insert(process.to_owned());
        self.note(Event::Disturbed(process.to_owned()));
    }

    /// Cuts the network between these processes and all others.
    pub(crate) fn set_apart(&self, processes: &[&str]) {
        for process in processes {
            self.inner.lock().apart.insert((*process).to_owned());
            self.note(Event::Disturbed((*process).to_owned()));
        }
    }

    /// Undoes [`set_apart`](Self::set_apart).
    pub(crate) fn together(&self) {
        self.inner.lock().apart.clear();
    }

    pub(crate) fn heal(&self, process: &str) {
        self.inner.lock().cut.remove(process);
    }

    pub(crate) fn set_random_faults(&self, random_faults: Option<RandomFaults>) {
        self.inner.lock().random_faults = random_faults;
    }

    /// The fate of the next transaction.
    pub(crate) fn fate(&self) -> Fate {
        let mut inner = self.inner.lock();
        inner
            .random_faults
            .as_mut()
            .map(RandomFaults::fate)
            .unwrap_or_default()
    }

    /// Duration of a request's way to the store.
    pub(crate) fn store_delay(&self) -> Duration {
        let mut inner = self.inner.lock();
        let slowness = inner.slowness;
        let random_faults = inner.random_faults.as_mut();
        slowness + random_faults.map_or(Duration::ZERO, RandomFaults::store_delay)
    }

    /// From now on, each request to the store takes longer by this time.
    pub(crate) fn slow_store(&self, time: Duration) {
        self.inner.lock().slowness = time;
    }

    /// Delays the next transaction by this time; the receiver reports that it was sent.
    pub(crate) fn hold_write(&self, time: Duration) -> oneshot::Receiver<()> {
        let (sender, sent) = oneshot::channel();
        self.inner.lock().held = Some((time, sender));
        sent
    }

    /// The delay of the transaction that is sent, if it is delayed.
    pub(crate) fn held_write(&self) -> Option<Duration> {
        let (time, sent) = self.inner.lock().held.take()?;
        // The receiver may not wait any more.
        let _ = sent.send(());
        Some(time)
    }

    /// Freezes a process until then: messages from and to it wait.
    pub(crate) fn stop(&self, process: &str, until: Instant) {
        self.inner.lock().stopped.insert(process.to_owned(), until);
    }

    /// Whether a process that lives is, or was, frozen until that moment.
    pub(crate) fn stood_until(&self, process: &str, until: Instant) -> bool {
        self.inner.lock().stopped.get(process) == Some(&until)
    }

    /// A process ends: the next one of that name is not frozen, and its clock runs.
    fn ends(&self, process: &str) {
        self.inner.lock().stopped.remove(process);
        self.stubborn
            .send_if_modified(|stubborn| stubborn.remove(process));
    }

    /// Unfreezes all processes, and starts all clocks.
    pub(crate) fn all_go_on(&self) {
        self.inner.lock().stopped.clear();
        self.stubborn.send_modify(BTreeSet::clear);
    }

    /// The time for which a process is still frozen.
    fn stopped_for(&self, process: &str) -> Duration {
        let now = Instant::now();
        let until = self.inner.lock().stopped.get(process).copied();
        until.map_or(Duration::ZERO, |until| until.duration_since(now))
    }

    /// Waits until a process is not frozen.
    pub(crate) async fn goes_on(&self, process: &str) {
        loop {
            let time = self.stopped_for(process);
            if time.is_zero() {
                return;
            }
            tokio::time::sleep(time).await;
        }
    }

    /// Raises the highest epoch whose messages this life of a TaskManager has accepted to `epoch`; returns the
    /// previous one.
    pub(crate) fn accepts(&self, life: &str, epoch: u64) -> u64 {
        let mut inner = self.inner.lock();
        let highest = inner.accepted.entry(life.to_owned()).or_default();
        std::mem::replace(highest, epoch.max(*highest))
    }
}

impl NetworkModel for World {
    fn leave(&self, call: &Call<'_>) -> Delivery {
        let silent = Delivery {
            fault: Fault::Silent,
            ..Delivery::default()
        };
        let from = call.from.unwrap_or_default();
        if !self.takes(from, &Step::Calling(call)) {
            return silent;
        }
        if self.strikes_callee(call, &Step::Called(call)) {
            return silent;
        }
        let ends = [process_of(from), process_of(call.to)];
        let mut inner = self.inner.lock();
        *inner.calls.entry(call.method).or_default() += 1;
        if inner.is_cut(ends) {
            return silent;
        }
        let Some(random_faults) = inner.random_faults.as_mut() else {
            return Delivery::default();
        };
        let delivery = random_faults.delivery(call.method, ends);
        drop(inner);
        if delivery.fault != Fault::None {
            for end in ends {
                self.note(Event::Disturbed(end.to_owned()));
            }
        }
        delivery
    }

    fn hold(&self, call: &Call<'_>) -> Duration {
        let from = self.stopped_for(process_of(call.from.unwrap_or_default()));
        from.max(self.stopped_for(process_of(call.to)))
    }

    fn delivers_late(&self, call: &Call<'_>) -> bool {
        !self.inner.lock().cut.contains(process_of(call.to))
    }

    fn arrive(&self, call: &Call<'_>) -> bool {
        if self.strikes_callee(call, &Step::Answering(call)) {
            return false;
        }
        let from = call.from.unwrap_or_default();
        let inner = self.inner.lock();
        let ends = [process_of(from), process_of(call.to)];
        !inner.dead.contains(from) && !inner.is_cut(ends)
    }
}

//! The leader ends or falls silent. Measures how long there is no leader, how long until its job is led
//! again, and the gap in the job's records.

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::demo::ticks;
use tanist_chaos::store::{Store, StoreKind};
use tanist_chaos::{Attempts, Cluster, Host, Leader, Link};
use tanist_proto::id::JobId;
use tokio::time::Instant;

use crate::BenchOptions;
use crate::host::milliseconds;
use crate::http::Http;
use crate::jobs;
use crate::phases::PhaseFigures;
use crate::report::Figure;
use crate::samples::Unit;
use crate::stream::TickFollower;
use crate::watch::{until_known, until_led, until_running};

pub(super) const METHOD: &str = "Three JobManagers and one TaskManager of 2 slots run a streaming job (2 \
vertices at parallelism 2, unbounded, 4,000 records per second over 8 keys, each printed). Measured from the \
signal until the `/v1/ha/leader` of another JobManager reports that it leads, confirmed, in a higher epoch, and \
until `/v1/jobs/:id` of that leader shows every subtask RUNNING. The times of the phases come from the term's \
record in the store, on the clocks of the processes. *Transfer* is `POST /v1/ha/transfer`. *Frozen* is SIGSTOP, \
followed by SIGKILL after the takeover, of a leader that has led for 11 s (a leader that continues, or a term \
that began and ended by silence within 10 s, counts as a false alarm, after which twice the silence is tolerated \
for a while). *Gap*: the longest time between two printed records of one key, from the signal until 500 records \
after the takeover; *without a kill* over 1,000 records of the same job. The run fails if a record is missing or \
duplicated, or if an attempt number changes.";

/// Number of repetitions for each kind of ending.
const KILLS: (usize, usize) = (100, 3);
const OTHERS: (usize, usize) = (25, 1);
/// Repetitions for endings by silence: each waits until the term has the right age.
const SILENT: (usize, usize) = (10, 1);
/// A term of at least this age that began by silence does not count as a false alarm when it ends by silence, too.
const AGE_BEFORE_SILENCE: Duration = Duration::from_secs(11);
const RECORDS_AFTER: u64 = 500;

/// How the leader ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Killed,
    ShutdownRequested,
    Transferred,
    Frozen,
    Unreachable,
}

impl Ending {
    /// The endings for processes on one host.
    const ON_ONE_HOST: [Ending; 4] = [
        Ending::Killed,
        Ending::ShutdownRequested,
        Ending::Transferred,
        Ending::Frozen,
    ];

    fn name(self) -> &'static str {
        match self {
            Ending::Killed => "SIGKILL",
            Ending::ShutdownRequested => "SIGTERM",
            Ending::Transferred => "transfer",
            Ending::Frozen => "frozen",
            Ending::Unreachable => "unreachable",
        }
    }

    fn repetitions(self, options: &BenchOptions) -> usize {
        match self {
            Ending::Killed => options.pick(KILLS.0, KILLS.1),
            Ending::ShutdownRequested | Ending::Transferred => options.pick(OTHERS.0, OTHERS.1),
            Ending::Frozen | Ending::Unreachable => options.pick(SILENT.0, SILENT.1),
        }
    }

    fn figures(self) -> [Figure; 3] {
        let name = self.name();
        [
            Figure::new(format!("{name} -> leader confirmed"), Unit::Milliseconds),
            Figure::new(
                format!("{name} -> all subtasks RUNNING"),
                Unit::Milliseconds,
            ),
            Figure::new(format!("gap in the records, {name}"), Unit::Milliseconds),
        ]
    }
}

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let builder = options.cluster(Store::shared(store).await?);
    let cluster = builder.jobmanagers(3).taskmanagers(1).start().await?;
    let mut quiet = Figure::new("gap in the records, without a kill", Unit::Milliseconds);
    let mut figures = of_endings(cluster, &Ending::ON_ONE_HOST, &mut quiet, options).await?;
    figures.push(quiet);
    Ok(figures)
}

/// The same for a leader that becomes unreachable. Runs in a network of its own.
pub(super) async fn measure_unreachable(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let builder = options.cluster(Store::own(store).await?);
    let builder = builder.jobmanagers(3).taskmanagers(1);
    let cluster = builder.on_hosts_of_their_own().start().await?;
    let mut quiet = Figure::new("gap in the records", Unit::Milliseconds);
    of_endings(cluster, &[Ending::Unreachable], &mut quiet, options).await
}

async fn of_endings(
    cluster: Cluster,
    endings: &[Ending],
    quiet: &mut Figure,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let mut bench = Bench::start(cluster).await?;
    let mut figures = Vec::new();
    let attempts = bench.attempts().await?;
    for &ending in endings {
        let mut of_it = ending.figures();
        let mut phases = PhaseFigures::of(ending.name());
        for _ in 0..ending.repetitions(options) {
            if matches!(ending, Ending::Frozen | Ending::Unreachable) {
                // The age of the term matters; there is no condition to wait for.
                tokio::time::sleep(AGE_BEFORE_SILENCE).await;
            }
            bench.ticks.take_longest_gap();
            bench.ticks.more(2 * RECORDS_AFTER).await?;
            quiet.push(milliseconds(bench.ticks.take_longest_gap()));
            let round = bench.end_the_leader(ending, &mut phases).await?;
            for (figure, sample) in of_it.iter_mut().zip(round) {
                figure.push(milliseconds(sample));
            }
        }
        figures.extend(of_it);
        figures.extend(phases.all());
    }
    bench.ticks.check()?;
    let after = bench.attempts().await?;
    ensure!(
        after == attempts,
        "attempts changed: {attempts:?}, {after:?}"
    );
    bench.cluster.discard();
    Ok(figures)
}

struct Bench {
    cluster: Cluster,
    http: Http,
    job: JobId,
    ticks: TickFollower,
}

impl Bench {
    async fn start(mut cluster: Cluster) -> anyhow::Result<Bench> {
        let http = Http::default();
        let leader = cluster.leader().await?;
        let job = jobs::submit(&http, &leader.rest, ticks::JOB_FILE, 2, &[]).await?;
        until_running(&http, &leader.rest, job).await?;
        let ticks = TickFollower::start(cluster.taskmanager(0).log_path());
        Ok(Bench {
            cluster,
            http,
            job,
            ticks,
        })
    }

    /// The attempt and the place of every subtask.
    async fn attempts(&mut self) -> anyhow::Result<Attempts> {
        let leader = self.cluster.leader().await?;
        until_running(&self.http, &leader.rest, self.job).await?;
        self.cluster.attempts(self.job).await
    }

    /// Times until the new leader was confirmed and until all tasks ran, and the longest gap in the records.
    async fn end_the_leader(
        &mut self,
        ending: Ending,
        phases: &mut PhaseFigures,
    ) -> anyhow::Result<[Duration; 3]> {
        let leader = self.cluster.leader().await?;
        let others = [1, 2].map(|next| {
            self.cluster
                .rest_address((leader.index + next) % 3)
                .to_owned()
        });
        let others = [others[0].as_str(), others[1].as_str()];
        let start = Instant::now();
        let process = self.cluster.jobmanager(leader.index);
        match ending {
            Ending::Killed => process.kill(),
            Ending::ShutdownRequested => process.request_shutdown()?,
            Ending::Frozen => process.stop()?,
            Ending::Unreachable => self.cut_off(leader.index)?,
            // The request is sent below.
            Ending::Transferred => {}
        }
        let led = async {
            let successor = until_led(&self.http, &others, leader.epoch).await?;
            anyhow::Ok((successor, start.elapsed()))
        };
        let (successor, confirmed) = if ending == Ending::Transferred {
            tokio::try_join!(led, self.http.transfer(&leader.rest))?.0
        } else {
            led.await?
        };
        until_running(&self.http, successor, self.job).await?;
        let running = start.elapsed();
        self.ticks.more(RECORDS_AFTER).await?;
        let gap = self.ticks.take_longest_gap();
        let now = self.cluster.successor_of(&leader).await?;
        self.heal(ending, &leader).await?;
        self.cluster.until_recovered().await?;
        phases.take(&self.cluster.term_record(now.epoch).await?);
        Ok([confirmed, running, gap])
    }

    /// Drops all packets from and to the JobManager with this index.
    fn cut_off(&self, index: usize) -> anyhow::Result<()> {
        let others = (0..3).filter(|other| *other != index);
        let others = others.map(Host::JobManager);
        let network = self.cluster.network()?;
        others
            .chain([Host::TaskManager(0), Host::Store])
            .try_for_each(|other| network.set_both(Host::JobManager(index), other, Link::Silent))
    }

    /// Restores three JobManagers, all of which know the leader.
    async fn heal(&mut self, ending: Ending, former: &Leader) -> anyhow::Result<()> {
        let process = self.cluster.jobmanager(former.index);
        match ending {
            Ending::Transferred => {}
            // As if its host was lost and is started again. A process that was only unreachable would answer
            // afterwards: then the takeover counts as a false alarm, and the next silence is tolerated twice as long.
            Ending::Unreachable => {
                process.kill();
                self.cluster.network()?.heal()?;
                self.cluster.jobmanager(former.index).start()?;
            }
            // It is killed while it hangs, as an operator would do.
            Ending::Killed | Ending::Frozen => process.start()?,
            Ending::ShutdownRequested => {
                process.terminate().await?;
                process.start()?;
            }
        }
        self.cluster.wait_until_complete().await?;
        let leader = self.cluster.leader().await?;
        for index in 0..3 {
            let address = self.cluster.rest_address(index).to_owned();
            until_known(&self.http, &address, leader.epoch).await?;
        }
        Ok(())
    }
}

//! The JobManager process: contends for leadership, leads one term after another, serves RPC all the while.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tanist_ha::election::{LeaderElection, LeaderSession, Leadership, Member, ProcessId};
use tanist_ha::retrieval::{self, LeaderView};
use tanist_ha::retry::Backoff;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::ha::{self, Backend, HaServices};
use super::listen::{self, BindError};
use super::settings;
use super::term::{self, TermServices};
use super::view::{CurrentTerm, JobManagerView, ViewInner};
use crate::config::{ClusterOptions, Configuration};
use crate::gateway::Connector;
use crate::rpc::{RpcServer, Services, TonicConnector};
use crate::telemetry::{ExitCode, version};

/// The newest format of records that this version reads.
const READS_FORMAT: u16 = 1;
const FIRST_REST: Duration = Duration::from_millis(200);
const LONGEST_REST: Duration = Duration::from_secs(10);

/// A JobManager whose servers are bound. It contends once it runs.
#[derive(Debug)]
pub struct JobManager {
    options: Arc<ClusterOptions>,
    process: ProcessId,
    addresses: BTreeMap<String, String>,
    rpc: RpcServer,
    rest: Option<TcpListener>,
    connector: Arc<dyn Connector>,
    current: Arc<CurrentTerm>,
    election: watch::Sender<Option<LeaderElection>>,
    leaders: watch::Sender<LeaderView>,
}

impl JobManager {
    /// Binds the servers; the ports that were really taken are what is published.
    pub async fn bind(configuration: &Configuration) -> Result<JobManager, BindError> {
        let options = configuration.options().clone();
        let manager = &options.jobmanager;
        let key = "jobmanager.rpc.port";
        let rpc = listen::bind("the RPC server", key, &manager.bind_host, &manager.ports).await?;
        let rest = &options.rest;
        let key = "rest.bind-port";
        let rest_listener =
            listen::bind("the REST server", key, &rest.bind_address, &rest.bind_ports).await?;
        let rpc_address = manager.address.with_port(port_of(&rpc));
        let rest_address = rest.address.with_port(port_of(&rest_listener));
        let process = match &manager.id {
            Some(id) => ProcessId::new(id.as_str()),
            None => ProcessId::new(rpc_address.as_str()),
        };
        let connector: Arc<dyn Connector> = Arc::new(TonicConnector::new(settings::rpc(&options)));
        let addresses = BTreeMap::from([
            ("rpc".to_owned(), rpc_address),
            ("rest".to_owned(), rest_address),
        ]);
        Ok(JobManager {
            rpc: RpcServer::new(rpc, settings::rpc(&options)),
            options: Arc::new(options),
            process,
            addresses,
            rest: Some(rest_listener),
            connector,
            current: Arc::default(),
            election: watch::Sender::new(None),
            leaders: watch::Sender::new(LeaderView::default()),
        })
    }

    /// The bound REST listener, for whoever serves it. There is one.
    pub fn take_rest_listener(&mut self) -> Option<TcpListener> {
        self.rest.take()
    }

    /// Where this process is reached: `rpc`, `rest`.
    pub fn addresses(&self) -> &BTreeMap<String, String> {
        &self.addresses
    }

    /// What this process knows of the cluster.
    pub fn view(&self) -> JobManagerView {
        JobManagerView {
            inner: Arc::new(ViewInner {
                process: self.process.clone(),
                store: Backend::of(&self.options.ha).name(),
                current: self.current.clone(),
                connector: self.connector.clone(),
                election: self.election.subscribe(),
                leaders: self.leaders.subscribe(),
            }),
        }
    }

    /// Contends, leads and stands by until `stop`; then resigns, so that another process leads at once.
    pub async fn run(self, stop: CancellationToken) -> ExitCode {
        let serving = CancellationToken::new();
        let services = Services::JobManager(self.current.clone());
        let server = tokio::spawn(self.rpc.serve(services, serving.clone()));

        let opened = tokio::select! {
            opened = ha::open(&self.options.ha, &self.process) => opened,
            () = stop.cancelled() => return ExitCode::Ended,
        };
        self.election.send_replace(Some(opened.election.clone()));
        tokio::spawn(forward(
            retrieval::follow(opened.election.observed()),
            self.leaders.clone(),
        ));
        let member = Member {
            process: self.process.clone(),
            incarnation: format!("{:016x}", rand::random::<u64>()),
            addresses: self.addresses.clone(),
            reads_format: READS_FORMAT,
            version: version(),
        };
        if let Err(error) = opened.election.announce(&member).await {
            warn!(%error, "this process is not listed among the members yet");
        }

        let terms = TermServices {
            rpc_address: self.addresses["rpc"].clone(),
            options: self.options.clone(),
            ha: opened.clone(),
            connector: self.connector.clone(),
            current: self.current.clone(),
            addresses: self.addresses.clone(),
        };
        let code = lead_term_after_term(&terms, &opened, &stop).await;
        opened.election.close().await;
        serving.cancel();
        if let Ok(Err(error)) = server.await {
            warn!(%error, "the RPC server ended with an error");
        }
        code
    }
}

/// One term after another; a grant that arrives while the last term stops waits for it.
async fn lead_term_after_term(
    services: &TermServices,
    opened: &HaServices,
    stop: &CancellationToken,
) -> ExitCode {
    let mut leadership = opened.election.leadership();
    let mut rest = Backoff::new(FIRST_REST, LONGEST_REST);
    loop {
        let session = tokio::select! {
            next = next_session(&mut leadership) => match next {
                Ok(session) => session,
                Err(refusal) => {
                    ExitCode::Refused.log_last_words(&refusal);
                    return ExitCode::Refused;
                }
            },
            () = stop.cancelled() => return ExitCode::Ended,
        };
        let ended = tokio::select! {
            ended = term::lead(services, &session) => ended,
            () = stop.cancelled() => {
                info!(epoch = %session.epoch(), "resigning: this process was asked to end");
                services.current.end();
                opened.election.resign().await;
                return ExitCode::Ended;
            }
        };
        match ended {
            Ok(()) => rest.reset(),
            Err(error) => {
                warn!(epoch = %session.epoch(), %error, "the term is given up");
                opened.election.resign().await;
                tokio::time::sleep(rest.next_delay()).await;
            }
        }
    }
}

/// The session of the next term. An error: this process is refused for good.
async fn next_session(
    leadership: &mut watch::Receiver<Leadership>,
) -> Result<LeaderSession, String> {
    loop {
        match &*leadership.borrow_and_update() {
            Leadership::Granted(session) if !session.is_over() => return Ok(session.clone()),
            Leadership::Refused(reason) => return Err(reason.clone()),
            Leadership::Granted(_)
            | Leadership::Standby
            | Leadership::Suspended(_)
            | Leadership::Over(_) => {}
        }
        if leadership.changed().await.is_err() {
            return Err("the election of this process has ended".to_owned());
        }
    }
}

async fn forward(mut from: watch::Receiver<LeaderView>, to: watch::Sender<LeaderView>) {
    loop {
        to.send_replace(from.borrow_and_update().clone());
        if from.changed().await.is_err() {
            return;
        }
    }
}

fn port_of(listener: &TcpListener) -> u16 {
    listener.local_addr().map_or(0, |address| address.port())
}

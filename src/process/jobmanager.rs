//! The JobManager process: a [`Contender`] with its servers and its store.
//!
//! It owns the listeners and servers (RPC, blobs, peers; the caller serves REST), and opens the store. All ports are
//! bound before it contends: a port that can't be bound ends the process at its start, and the leader publishes the
//! ports that were actually bound. What it decides as a leader is in [`tanist_leadership`].

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_config::{ClusterOptions, Configuration};
use tanist_gateway::blobs::ServedBlobs;
use tanist_ha::detector::service::PEER;
use tanist_ha::election::ProcessId;
use tanist_leadership::ha;
use tanist_leadership::{Contender, ContenderOptions, Ending, JobManagerView};
use tanist_net::{Listener, Port};
use tanist_rpc::{BlobServer, RpcServer, Services, TonicConnector};
use tanist_telemetry::ExitCode;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::application::ApplicationSetup;
use super::graph_checks::graph_checks;
use super::listen::{self, BindError};
use super::settings;
use super::sinks::file_sinks;

/// A JobManager whose servers are bound. It contends once it runs.
#[derive(Debug)]
pub struct JobManager {
    options: Arc<ClusterOptions>,
    process: ProcessId,
    rpc: RpcServer,
    blob_server: BlobServer,
    blobs: ServedBlobs,
    rest: Option<Listener>,
    application: Option<ApplicationSetup>,
    contender: Contender,
}

impl JobManager {
    /// Binds the servers; the ports that were actually bound are published.
    pub async fn bind(configuration: &Configuration) -> Result<JobManager, BindError> {
        JobManager::bind_for(configuration, None).await
    }

    /// Like [`bind`](Self::bind), for the cluster of an application, which ends with it.
    pub async fn bind_for(
        configuration: &Configuration,
        application: Option<ApplicationSetup>,
    ) -> Result<JobManager, BindError> {
        let options = Arc::new(configuration.options().clone());
        let manager = &options.jobmanager;
        let key = "jobmanager.rpc.port";
        let (host, security) = (&manager.bind_host, options.security);
        let what = ("the RPC server", Port::Rpc);
        let rpc = listen::bind(what, key, host, &manager.ports, security).await?;
        let key = "blob.server.port";
        let ports = &manager.blob_ports;
        let what = ("the blob server", Port::Blob);
        let blob_listener = listen::bind(what, key, host, ports, security).await?;
        let rest = &options.rest;
        let key = "rest.bind-port";
        let what = ("the REST server", Port::Rest);
        let (address, ports) = (&rest.bind_address, &rest.bind_ports);
        let rest_listener = listen::bind(what, key, address, ports, security).await?;
        let key = "jobmanager.peer.port";
        let ports = &manager.peer_ports;
        let what = ("the peer server", Port::Peer);
        let peer = listen::bind(what, key, host, ports, security).await?;
        let peer_address = manager.address.with_port(port_of(&peer));
        let rpc_address = manager.address.with_port(port_of(&rpc));
        let rest_address = rest.address.with_port(port_of(&rest_listener));
        let blob_address = manager.address.with_port(port_of(&blob_listener));
        let blobs = ServedBlobs::new(blob_address.as_str());
        let process = match &manager.id {
            Some(id) => ProcessId::new(id.as_str()),
            None => ProcessId::new(rpc_address.as_str()),
        };
        let addresses = BTreeMap::from([
            ("rpc".to_owned(), rpc_address),
            ("rest".to_owned(), rest_address),
            (PEER.to_owned(), peer_address),
            ("blob".to_owned(), blob_address),
        ]);
        let contender = Contender::new(ContenderOptions {
            options: options.clone(),
            process: process.clone(),
            store: options.ha.backend.name(),
            addresses,
            connector: Arc::new(TonicConnector::new(settings::rpc(&options))),
            checks: graph_checks(),
            sinks: file_sinks(),
            peers: Some(settings::peers(&options, listen::detach(peer)?)),
            blobs: blobs.clone(),
            application: application.as_ref().map(ApplicationSetup::application),
            workers: settings::workers(configuration),
        });
        Ok(JobManager {
            rpc: RpcServer::new(rpc, settings::rpc(&options)),
            blob_server: BlobServer::new(blob_listener),
            blobs,
            options,
            process,
            rest: Some(rest_listener),
            application,
            contender,
        })
    }

    /// Takes the bound REST listener, for the caller to serve it. There is one.
    pub fn take_rest_listener(&mut self) -> Option<Listener> {
        self.rest.take()
    }

    /// The application whose cluster it leads; `None` in a session.
    pub fn application(&self) -> Option<&ApplicationSetup> {
        self.application.as_ref()
    }

    /// How its application ended, once that is decided: the exit code of [`run`](JobManager::run) alone does
    /// not distinguish that from a stop request.
    pub fn ending(&self) -> Ending {
        self.contender.ending()
    }

    /// The addresses of this process: `rpc`, `rest`, `blob`.
    pub fn addresses(&self) -> &BTreeMap<String, String> {
        self.contender.addresses()
    }

    /// This process's view of the cluster.
    pub fn view(&self) -> JobManagerView {
        self.contender.view()
    }

    /// Contends, leads and stands by until `stop`, or until its application has ended; then resigns, so that
    /// another process leads at once. Returns [`ExitCode::Directory`] at once if an embedded store can't use
    /// its directory.
    pub async fn run(self, stop: CancellationToken) -> ExitCode {
        if let Err(error) = ha::make_directory(&self.options.ha).await {
            ExitCode::Directory.log_final_message(&error.to_string());
            return ExitCode::Directory;
        }
        // Before the store is open: callers get the answer that this process does not lead, and no refused connection.
        let serving = CancellationToken::new();
        let services = Services::JobManager(self.contender.components());
        let server = tokio::spawn(self.rpc.serve(services, serving.clone()));
        let content = Arc::new(self.blobs.clone());
        let blob_server = tokio::spawn(self.blob_server.serve(content, serving.clone()));
        let opened = tokio::select! {
            opened = ha::open(&self.options.ha, &self.process) => opened,
            () = stop.cancelled() => return ExitCode::Ended,
        };
        if let Some(store) = &opened.blobs {
            self.blobs.serve_store(store.clone());
        }
        let code = self.contender.run(opened, &stop).await;
        serving.cancel();
        if let Err(error) = server.await {
            warn!(%error, "the RPC server ended with an error");
        }
        if let Err(error) = blob_server.await {
            warn!(%error, "the blob server ended with an error");
        }
        code
    }
}

fn port_of(listener: &Listener) -> u16 {
    listener.local_addr().map_or(0, |address| address.port())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tanist_config::LoadOptions;

    #[tokio::test]
    async fn a_jobmanager_whose_store_can_not_have_its_directory_ends_and_names_the_option() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let below = file.path().join("store");
        let mut load = LoadOptions::default();
        for (key, value) in [
            ("high-availability.embedded.dir", &*below.to_string_lossy()),
            ("jobmanager.rpc.port", "0"),
            ("rest.bind-port", "0"),
        ] {
            load = load.with(key, value);
        }
        let configuration = Configuration::load(load).expect("it is valid");
        let manager = JobManager::bind(&configuration).await.expect("free ports");
        let made = ha::make_directory(configuration.ha()).await;
        let told = made.expect_err("a file is in its place").to_string();
        let key = "high-availability.embedded.dir";
        assert!(told.contains(key) && told.contains("store"), "{told}");
        let running = Box::pin(manager.run(CancellationToken::new()));
        let code = tokio::time::timeout(Duration::from_secs(30), running).await;
        assert_eq!(code, Ok(ExitCode::Directory));
    }
}

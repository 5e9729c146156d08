//! The common part of etcd and ZooKeeper as subjects: servers that can be broken, and for each process a wire
//! to them, made of proxies.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{Mutex, MutexGuard};

use super::CaseResult;
use crate::election::ProcessId;
use crate::testing::proxy::TcpProxy;
use crate::testing::servers::ServerError;

/// The servers of one case.
#[async_trait(?Send)]
pub(crate) trait Breakable: std::fmt::Debug + Send {
    /// The addresses of their clients' ports.
    fn addresses(&mut self) -> Vec<SocketAddr>;

    /// Kills enough of them that no quorum is left.
    fn kill_majority(&mut self);

    /// Starts the killed ones again.
    async fn start_majority(&mut self) -> Result<(), ServerError>;

    async fn restart(&mut self) -> Result<(), ServerError>;

    async fn restart_wiped(&mut self) -> Result<(), ServerError>;
}

/// A single server is its own majority.
macro_rules! breakable_server {
    ($server:ty) => {
        #[async_trait::async_trait(?Send)]
        impl $crate::testing::conformance::network::Breakable for $server {
            fn addresses(&mut self) -> Vec<std::net::SocketAddr> {
                vec![self.address()]
            }

            fn kill_majority(&mut self) {
                self.kill();
            }

            async fn start_majority(
                &mut self,
            ) -> Result<(), $crate::testing::servers::ServerError> {
                <$server>::restart(self).await
            }

            async fn restart(&mut self) -> Result<(), $crate::testing::servers::ServerError> {
                <$server>::restart(self).await
            }

            async fn restart_wiped(&mut self) -> Result<(), $crate::testing::servers::ServerError> {
                <$server>::restart_wiped(self).await
            }
        }
    };
}

/// All servers of an ensemble but the first are its majority.
macro_rules! breakable_ensemble {
    ($ensemble:ty) => {
        #[async_trait::async_trait(?Send)]
        impl $crate::testing::conformance::network::Breakable for $ensemble {
            fn addresses(&mut self) -> Vec<std::net::SocketAddr> {
                self.servers().iter().map(|it| it.address()).collect()
            }

            fn kill_majority(&mut self) {
                for server in self.servers().iter_mut().skip(1) {
                    server.kill();
                }
            }

            async fn start_majority(
                &mut self,
            ) -> Result<(), $crate::testing::servers::ServerError> {
                for server in self.servers().iter_mut().skip(1) {
                    server.restart().await?;
                }
                Ok(())
            }

            async fn restart(&mut self) -> Result<(), $crate::testing::servers::ServerError> {
                <$ensemble>::restart(self).await
            }

            async fn restart_wiped(&mut self) -> Result<(), $crate::testing::servers::ServerError> {
                <$ensemble>::restart_wiped(self).await
            }
        }
    };
}

pub(crate) use {breakable_ensemble, breakable_server};

/// The servers of a subject, and the wires of all processes to them.
#[derive(Debug)]
pub(crate) struct Network {
    /// `None`: the server is shared and must not be broken.
    own: Option<Mutex<Box<dyn Breakable>>>,
    addresses: Vec<SocketAddr>,
    wires: Mutex<HashMap<ProcessId, Arc<Vec<TcpProxy>>>>,
}

impl Network {
    /// A server that other cases use too.
    pub(crate) fn shared(address: SocketAddr) -> Network {
        Network::new(None, vec![address])
    }

    /// Servers of this case alone, which may be broken.
    pub(crate) fn own(mut servers: impl Breakable + 'static) -> Network {
        let addresses = servers.addresses();
        Network::new(Some(Box::new(servers)), addresses)
    }

    fn new(own: Option<Box<dyn Breakable>>, addresses: Vec<SocketAddr>) -> Network {
        Network {
            own: own.map(Mutex::new),
            addresses,
            wires: Mutex::default(),
        }
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().copied()
    }

    pub(crate) async fn servers(&self) -> CaseResult<MutexGuard<'_, Box<dyn Breakable>>> {
        match &self.own {
            Some(servers) => Ok(servers.lock().await),
            None => Err("this case breaks a server, so it needs one of its own".into()),
        }
    }

    /// The wire of a process: one proxy for each server.
    async fn wire(&self, process: &ProcessId) -> CaseResult<Arc<Vec<TcpProxy>>> {
        let mut wires = self.wires.lock().await;
        if let Some(wire) = wires.get(process) {
            return Ok(wire.clone());
        }
        let mut wire = Vec::new();
        for address in &self.addresses {
            wire.push(TcpProxy::start(*address).await?);
        }
        let wire = Arc::new(wire);
        wires.insert(process.clone(), wire.clone());
        Ok(wire)
    }

    /// The addresses of a process's wire.
    pub(crate) async fn endpoints(&self, process: &ProcessId) -> CaseResult<Vec<String>> {
        let wire = self.wire(process).await?;
        Ok(wire
            .iter()
            .map(|proxy| proxy.address().to_string())
            .collect())
    }

    pub(crate) async fn each_proxy(&self, process: &ProcessId, change: impl Fn(&TcpProxy)) {
        let wire = self.wires.lock().await.get(process).cloned();
        for proxy in wire.iter().flat_map(|wire| wire.iter()) {
            change(proxy);
        }
    }

    pub(crate) async fn interrupt(&self, process: &ProcessId) {
        self.each_proxy(process, TcpProxy::cut).await;
        self.each_proxy(process, TcpProxy::forward).await;
    }
}

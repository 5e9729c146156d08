//! Binds a port and accepts its connections: checks the caller, reserves a slot, and sets up the socket. The server of
//! a port owns its [`Listener`]; the slots of all ports are in [`Connections`].
//!
//! Errors in accepting, such as too many open files, are logged and tried again; a connection that fails is dropped.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tanist_config::LocalUsers;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream, ToSocketAddrs, lookup_host};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::caller::{Callers, Refusal};
use super::closed_first;
use super::limits::{Connection, Connections, Port};
use super::log_limiter::LogLimiter;
use super::socket::{SERVED_SILENCE, set_up};

/// Maximum number of connections that wait to be accepted, if the system allows it (`net.core.somaxconn`).
/// After a takeover all TaskManagers connect at once; one that does not fit retries after a second.
const BACKLOG: u32 = 16_384;
/// Delay after an error in accepting, such as too many open files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// Number of refused callers that are answered at the same time; the others are only closed.
const MAX_CONCURRENT_ANSWERS: usize = 8;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of bytes of a refused caller's request that are read.
const LONGEST_REFUSED: u64 = 16 << 10;

/// Why a port can't be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// No port can be bound: the host has no such address.
    #[error(transparent)]
    Host(io::Error),
    /// This port can't be bound.
    #[error(transparent)]
    Port(io::Error),
    /// The address can be reached from other hosts.
    #[error("{0} can be reached from other hosts")]
    BeyondLoopback(SocketAddr),
}

impl From<io::Error> for BindError {
    fn from(error: io::Error) -> BindError {
        match error.kind() {
            io::ErrorKind::AddrNotAvailable => BindError::Host(error),
            _ => BindError::Port(error),
        }
    }
}

/// A bound port.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    port: Port,
    callers: Arc<Callers>,
    connections: Arc<Connections>,
    refused: LogLimiter,
    failed: LogLimiter,
    answers: Arc<Semaphore>,
}

/// A port that is registered at no runtime, so that another runtime can serve it. When the process dies, the kernel
/// closes it before anything else.
#[derive(Debug)]
pub struct DetachedListener {
    listener: std::net::TcpListener,
    port: Port,
    callers: Arc<Callers>,
}

/// An accepted connection.
#[derive(Debug)]
pub struct Accepted {
    /// The socket, set up.
    pub stream: TcpStream,
    /// Address of the caller.
    pub peer: SocketAddr,
    /// Its slot; hold it while the connection is open.
    pub connection: Connection,
}

impl Listener {
    /// Listens on the first of a host's addresses that can be bound. All of them must be loopback, unless
    /// others are allowed.
    pub async fn bind_host(
        (host, port): (&str, u16),
        kind: Port,
        users: LocalUsers,
        is_beyond_loopback_allowed: bool,
    ) -> Result<Listener, BindError> {
        let addresses = lookup_host((host, port)).await.map_err(BindError::Host)?;
        let addresses: Vec<SocketAddr> = addresses.collect();
        let is_beyond = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
        if let Some(address) = addresses.iter().find(is_beyond)
            && !is_beyond_loopback_allowed
        {
            return Err(BindError::BeyondLoopback(*address));
        }
        let mut last = None;
        for address in addresses {
            let socket = match address {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            // After a restart, connections of the predecessor may not be closed completely.
            socket.set_reuseaddr(true)?;
            match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
                Ok(listener) => {
                    return Ok(Listener::new(listener, kind, Callers::new(users).into()));
                }
                Err(error) => last = Some(error),
            }
        }
        let no_address = || BindError::Host(io::Error::other("the host has no address"));
        Err(last.map_or_else(no_address, BindError::from))
    }

    /// Listens on `address` for this user and root.
    pub async fn bind(address: impl ToSocketAddrs, kind: Port) -> io::Result<Listener> {
        let listener = TcpListener::bind(address).await?;
        let callers = Callers::new(LocalUsers::Same);
        Ok(Listener::new(listener, kind, callers.into()))
    }

    fn new(listener: TcpListener, port: Port, callers: Arc<Callers>) -> Listener {
        let connections = Connections::of_process();
        connections.serve(port);
        Listener {
            listener,
            port,
            callers,
            connections,
            refused: LogLimiter::default(),
            failed: LogLimiter::default(),
            answers: Arc::new(Semaphore::new(MAX_CONCURRENT_ANSWERS)),
        }
    }

    /// Uses other limits than the process's.
    #[cfg(any(test, feature = "testing"))]
    pub fn within(mut self, connections: Arc<Connections>) -> Listener {
        connections.serve(self.port);
        self.connections = connections;
        self
    }

    /// Returns the address that was actually bound.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Removes it from this runtime.
    pub fn detach(self) -> io::Result<DetachedListener> {
        Ok(DetachedListener {
            listener: closed_first::duplicate(&self.listener.into_std()?)?,
            port: self.port,
            callers: self.callers,
        })
    }

    /// Returns the kind of the port.
    pub fn port(&self) -> Port {
        self.port
    }

    /// Returns the next connection to be served.
    pub async fn accept(&mut self) -> Accepted {
        loop {
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    if let Some(count) = self.failed.note() {
                        let port = self.port.name();
                        warn!(port, count, %error, "connections can't be accepted");
                    }
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            // Before a slot is reserved: connections of other users must not displace those of this one.
            let refusal = match stream.local_addr() {
                Ok(ours) => self.callers.refuse(peer, ours),
                Err(_) => Some(Refusal::Unknown),
            };
            if let Some(refusal) = refusal {
                self.refuse(stream, refusal);
                continue;
            }
            let Some(connection) = self.connections.admit(self.port).await else {
                continue;
            };
            match set_up(&stream, SERVED_SILENCE) {
                Ok(()) => {
                    return Accepted {
                        stream,
                        peer,
                        connection,
                    };
                }
                Err(error) => debug!(%peer, %error, "a connection was closed before it was served"),
            }
        }
    }

    /// Closes the connection of another user. On the REST port, answers with the reason.
    fn refuse(&self, stream: TcpStream, refusal: Refusal) {
        if let Some(count) = self.refused.note() {
            let port = self.port.name();
            warn!(port, count, "refused: {refusal} (security.local-users)");
        }
        if self.port != Port::Rest {
            return;
        }
        let Ok(permit) = Arc::clone(&self.answers).try_acquire_owned() else {
            return;
        };
        tokio::spawn(async move {
            let answering = tokio::time::timeout(ANSWER_TIMEOUT, answer_refused(stream, refusal));
            if let Ok(Err(error)) = answering.await {
                debug!(%error, "a refused caller could not be answered");
            }
            drop(permit);
        });
    }
}

/// Answers an HTTP/1 request with 403 once its first bytes are there, and closes the connection after the caller has
/// closed its side: bytes that arrive at a closed socket cause a reset, which would lose the answer.
async fn answer_refused(mut stream: TcpStream, refusal: Refusal) -> io::Result<()> {
    let sentence =
        format!("{refusal}: this server answers only its own user and root (security.local-users)");
    let body = format!("{{\"errors\":[\"{sentence}\"]}}");
    let length = body.len();
    let _first_bytes = stream.read(&mut [0; 1024]).await?;
    let answer = format!(
        "HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    let mut rest_of_request = stream.take(LONGEST_REFUSED);
    tokio::io::copy(&mut rest_of_request, &mut tokio::io::sink()).await?;
    Ok(())
}

impl DetachedListener {
    /// Registers it at this runtime. It may be registered at several runtimes, one after the other.
    pub fn attach(&self) -> io::Result<Listener> {
        let listener = TcpListener::from_std(closed_first::duplicate(&self.listener)?)?;
        Ok(Listener::new(listener, self.port, self.callers.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn bind(host: &str, is_allowed: bool) -> Result<Listener, BindError> {
        Listener::bind_host((host, 0), Port::Rest, LocalUsers::Same, is_allowed).await
    }

    #[tokio::test]
    async fn what_is_reached_from_beyond_this_host_is_bound_only_if_that_is_allowed() {
        for host in ["0.0.0.0", "::", "::ffff:0.0.0.0"] {
            let refused = bind(host, false).await.err();
            let is_it = matches!(refused, Some(BindError::BeyondLoopback(_)));
            assert!(is_it, "{host}: {refused:?}");
        }
        assert!(bind("0.0.0.0", true).await.is_ok());
        for host in ["127.0.0.1", "127.0.0.9", "localhost"] {
            assert!(bind(host, false).await.is_ok(), "{host}");
        }
    }

    #[tokio::test]
    async fn a_refused_caller_that_sends_its_request_in_pieces_reads_the_whole_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let mut caller = TcpStream::connect(address).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        let answering = tokio::spawn(answer_refused(stream, Refusal::Unknown));
        caller.write_all(b"GET / HTTP/1.1\r\n").await.expect("sent");
        let mut first = [0; 12];
        caller.read_exact(&mut first).await.expect("answered");
        assert_eq!(&first, b"HTTP/1.1 403");
        // The server has answered already. None of these pieces may be answered by a reset.
        for _ in 0..100 {
            caller.write_all(b"a: b\r\n").await.expect("sent");
        }
        let mut rest = String::new();
        caller.read_to_string(&mut rest).await.expect("not reset");
        assert!(rest.contains("security.local-users"), "{rest}");
        drop(caller);
        answering.await.expect("no panic").expect("answered");
    }

    #[tokio::test]
    async fn one_that_asks_at_once_is_served_though_others_that_ask_nothing_flood_the_port() {
        let listener = bind("127.0.0.1", false).await.expect("a free port");
        // At most two connections.
        let mut listener = listener.within(Connections::within(4));
        let address = listener.local_addr().expect("bound");
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(TcpStream::connect(address).await.expect("connected"));
            let Accepted { connection, .. } = listener.accept().await;
            tokio::spawn(async move { connection.evicted().await });
        }
        let _client = TcpStream::connect(address).await.expect("connected");
        let accepted = listener.accept().await;
        accepted.connection.establish();
    }
}

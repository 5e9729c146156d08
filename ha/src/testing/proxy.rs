//! A TCP proxy between a client and a server that loses, holds and delays traffic on request of a test.
//!
//! Bytes of one direction stay in order and are never duplicated. A connection that lost bytes is closed,
//! never continued with a gap.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::servers::ports::free_port;

/// How the proxy handles traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Forwards everything.
    Forward,
    /// Drops connections and refuses new ones.
    Cut,
    /// Keeps connections and reads incoming data, but forwards only the directions that are not held. Held
    /// data is forwarded when the direction opens again.
    Hold {
        /// From client to server.
        requests: bool,
        /// From server to client.
        answers: bool,
    },
    /// Forwards requests and discards the answers. Connections that lost bytes are closed when the mode
    /// changes.
    DropAnswers,
}

#[derive(Debug, Clone, Copy)]
struct ProxyState {
    mode: Mode,
    /// Number of cuts: shows a cut that ended before it was noticed.
    cuts: u64,
    /// Connections with a lower number were frozen.
    frozen_before: u64,
    /// Connections with a lower number were thawed again.
    thawed_before: u64,
}

#[derive(Debug, Default)]
struct Counters {
    held_requests: AtomicUsize,
    connections: AtomicUsize,
    accepted: AtomicU64,
}

/// A proxy that runs until it is dropped.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    state: watch::Sender<ProxyState>,
    counters: Arc<Counters>,
    _stop: DropGuard,
}

impl TcpProxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `target`.
    pub async fn start(target: SocketAddr) -> io::Result<TcpProxy> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        TcpProxy::listening(move || std::net::TcpListener::bind(address), target)
    }

    /// Listens on the socket from `bind`, which always has the same address, and forwards to `target`. Calls
    /// `bind` again after a cut.
    pub fn listening(
        bind: impl Fn() -> io::Result<std::net::TcpListener> + Send + Sync + 'static,
        target: SocketAddr,
    ) -> io::Result<TcpProxy> {
        let bind = Box::new(move || {
            let listener = bind()?;
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        });
        let listener = bind()?;
        let address = listener.local_addr()?;
        let state = ProxyState {
            mode: Mode::Forward,
            cuts: 0,
            frozen_before: 0,
            thawed_before: 0,
        };
        let (state, receiver) = watch::channel(state);
        let counters = Arc::<Counters>::default();
        let stop = CancellationToken::new();
        let acceptor = Acceptor {
            bind,
            target,
            state: receiver,
            counters: counters.clone(),
            stop: stop.clone(),
        };
        tokio::spawn(
            stop.clone()
                .run_until_cancelled_owned(acceptor.run(listener)),
        );
        Ok(TcpProxy {
            address,
            state,
            counters,
            _stop: stop.drop_guard(),
        })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the mode.
    pub fn set(&self, mode: Mode) {
        self.state.send_modify(|state| {
            state.mode = mode;
            state.cuts += u64::from(mode == Mode::Cut);
        });
    }

    /// Forwards everything again.
    pub fn forward(&self) {
        self.set(Mode::Forward);
    }

    /// Drops all connections and refuses new ones.
    pub fn cut(&self) {
        self.set(Mode::Cut);
    }

    /// Holds both directions: the server seems silent.
    pub fn hold(&self) {
        self.set(Mode::Hold {
            requests: true,
            answers: true,
        });
    }

    /// Holds the clients' requests.
    pub fn hold_requests(&self) {
        self.set(Mode::Hold {
            requests: true,
            answers: false,
        });
    }

    /// Discards the server's answers.
    pub fn drop_answers(&self) {
        self.set(Mode::DropAnswers);
    }

    /// Detaches held requests from their clients: existing connections are closed for the clients, and new
    /// connections are forwarded, but the held requests stay in flight until [`TcpProxy::thaw`]. A connection that
    /// waits to be accepted counts as new.
    pub fn freeze(&self) {
        let accepted = self.counters.accepted.load(Ordering::SeqCst);
        self.state.send_modify(|state| {
            state.frozen_before = accepted;
            state.mode = Mode::Forward;
        });
    }

    /// Delivers the frozen requests to the server, like a slow network: late, after their clients have given
    /// up.
    pub fn thaw(&self) {
        self.state
            .send_modify(|state| state.thawed_before = state.frozen_before);
    }

    /// Bytes of requests that are held or frozen at present.
    pub fn held_requests(&self) -> usize {
        self.counters.held_requests.load(Ordering::SeqCst)
    }

    /// Number of present connections, frozen ones included.
    pub fn connections(&self) -> usize {
        self.counters.connections.load(Ordering::SeqCst)
    }

    /// Connections accepted since the start.
    pub fn accepted(&self) -> u64 {
        self.counters.accepted.load(Ordering::SeqCst)
    }
}

struct Acceptor {
    bind: Box<dyn Fn() -> io::Result<TcpListener> + Send + Sync>,
    target: SocketAddr,
    state: watch::Receiver<ProxyState>,
    counters: Arc<Counters>,
    stop: CancellationToken,
}

impl Acceptor {
    async fn run(mut self, listener: TcpListener) {
        let mut listener = Some(listener);
        // Ends the present connections when the proxy is cut.
        let mut lives = self.stop.child_token();
        let mut cuts = 0;
        loop {
            let state = *self.state.borrow_and_update();
            if state.cuts != cuts {
                cuts = state.cuts;
                lives.cancel();
                lives = self.stop.child_token();
            }
            if state.mode == Mode::Cut {
                // Without a listener the kernel refuses connections.
                listener = None;
            } else if listener.is_none() {
                listener = (self.bind)().ok();
            }
            let accepted = async {
                match &listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.state.changed() => if changed.is_err() { return },
                Ok((client, _)) = accepted => self.connect(client, &lives),
            }
        }
    }

    fn connect(&self, client: TcpStream, lives: &CancellationToken) {
        let number = self.counters.accepted.fetch_add(1, Ordering::SeqCst);
        let (target, state, counters) = (self.target, self.state.clone(), self.counters.clone());
        let connection = async move {
            let Ok(server) = TcpStream::connect(target).await else {
                return;
            };
            counters.connections.fetch_add(1, Ordering::SeqCst);
            let mut connection = Connection::new(number, client, server, state, counters);
            // An error ends only this connection; both ends see it closed.
            let _ = connection.run().await;
        };
        tokio::spawn(lives.clone().run_until_cancelled_owned(connection));
    }
}

struct Connection {
    number: u64,
    /// `None`: closed by the client, or frozen.
    client: Option<(OwnedReadHalf, OwnedWriteHalf)>,
    server: (OwnedReadHalf, OwnedWriteHalf),
    requests: Vec<u8>,
    answers: Vec<u8>,
    answers_lost: bool,
    state: watch::Receiver<ProxyState>,
    counters: Arc<Counters>,
}

impl Connection {
    fn new(
        number: u64,
        client: TcpStream,
        server: TcpStream,
        state: watch::Receiver<ProxyState>,
        counters: Arc<Counters>,
    ) -> Connection {
        for stream in [&client, &server] {
            // If the system refuses, only latency is lost.
            let _ = stream.set_nodelay(true);
        }
        let client = Some(client.into_split());
        let server = server.into_split();
        let (requests, answers, answers_lost) = (Vec::new(), Vec::new(), false);
        Connection {
            number,
            client,
            server,
            requests,
            answers,
            answers_lost,
            state,
            counters,
        }
    }

    async fn run(&mut self) -> io::Result<()> {
        loop {
            let state = *self.state.borrow_and_update();
            let frozen = self.number < state.frozen_before;
            if frozen {
                self.client = None;
                if self.number < state.thawed_before {
                    self.deliver_requests().await?;
                }
            } else {
                if self.answers_lost && state.mode != Mode::DropAnswers {
                    return Ok(());
                }
                let (hold_requests, hold_answers) = match state.mode {
                    Mode::Hold { requests, answers } => (requests, answers),
                    Mode::Forward | Mode::Cut | Mode::DropAnswers => (false, false),
                };
                if !hold_requests {
                    self.deliver_requests().await?;
                    if self.client.is_none() {
                        return Ok(());
                    }
                }
                if !hold_answers && let Some((_, client)) = &mut self.client {
                    client.write_all(&self.answers).await?;
                    self.answers.clear();
                }
            }
            self.step(state.mode).await?;
        }
    }

    /// Handles the next event: bytes from either side, or another mode.
    async fn step(&mut self, mode: Mode) -> io::Result<()> {
        let (client, requests) = (&mut self.client, &mut self.requests);
        let read_client = async {
            match client {
                Some((client, _)) => client.read_buf(requests).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.state.changed() => changed.map_err(io::Error::other),
            read = read_client => {
                match read {
                    Ok(size) if size > 0 => {
                        self.counters.held_requests.fetch_add(size, Ordering::SeqCst);
                    }
                    // Closed. Bytes that it sent before may still be held.
                    Ok(_) | Err(_) => self.client = None,
                }
                Ok(())
            }
            read = self.server.0.read_buf(&mut self.answers) => {
                if read? == 0 {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                self.answers_lost |= mode == Mode::DropAnswers;
                if self.answers_lost || self.client.is_none() {
                    self.answers.clear();
                }
                Ok(())
            }
        }
    }

    async fn deliver_requests(&mut self) -> io::Result<()> {
        self.server.1.write_all(&self.requests).await?;
        self.counters
            .held_requests
            .fetch_sub(self.requests.len(), Ordering::SeqCst);
        self.requests.clear();
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counters
            .held_requests
            .fetch_sub(self.requests.len(), Ordering::SeqCst);
        self.counters.connections.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::wait::wait_until;
    use std::time::Duration;

    const BOUND: Duration = Duration::from_secs(10);

    /// A server that answers every byte with the same byte, and counts received bytes.
    async fn echo_server() -> io::Result<(SocketAddr, watch::Receiver<usize>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (sender, receiver) = watch::channel(0);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        sender.send_modify(|count| *count += 1);
                        if stream.write_u8(byte).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Ok((address, receiver))
    }

    #[tokio::test]
    async fn a_cut_drops_connections_and_refuses_until_it_ends() -> io::Result<()> {
        let (target, _) = echo_server().await?;
        let proxy = TcpProxy::start(target).await?;
        let mut client = TcpStream::connect(proxy.address()).await?;
        client.write_u8(7).await?;
        assert_eq!(client.read_u8().await?, 7);
        proxy.cut();
        assert!(client.read_u8().await.is_err());
        wait_until("a refusal", BOUND, async || {
            match TcpStream::connect(proxy.address()).await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
                other => Err(other),
            }
        })
        .await;
        proxy.forward();
        let mut client = wait_until("a connection", BOUND, async || {
            TcpStream::connect(proxy.address()).await
        })
        .await;
        client.write_u8(8).await?;
        assert_eq!(client.read_u8().await?, 8);
        Ok(())
    }

    #[tokio::test]
    async fn held_requests_arrive_when_they_are_released() -> io::Result<()> {
        let (target, got) = echo_server().await?;
        let proxy = TcpProxy::start(target).await?;
        proxy.hold_requests();
        let mut client = TcpStream::connect(proxy.address()).await?;
        client.write_u8(7).await?;
        wait_until("the held byte", BOUND, async || {
            match proxy.held_requests() {
                1 => Ok(()),
                other => Err(other),
            }
        })
        .await;
        assert_eq!(*got.borrow(), 0);
        proxy.forward();
        assert_eq!(client.read_u8().await?, 7);
        Ok(())
    }

    #[tokio::test]
    async fn frozen_requests_are_lost_to_their_client_and_arrive_when_thawed() -> io::Result<()> {
        let (target, mut got) = echo_server().await?;
        let proxy = TcpProxy::start(target).await?;
        proxy.hold_requests();
        let mut client = TcpStream::connect(proxy.address()).await?;
        client.write_u8(7).await?;
        wait_until("the held byte", BOUND, async || {
            match proxy.held_requests() {
                1 => Ok(()),
                other => Err(other),
            }
        })
        .await;
        proxy.freeze();
        assert!(client.read_u8().await.is_err(), "its client is cut off");
        let mut other = TcpStream::connect(proxy.address()).await?;
        other.write_u8(8).await?;
        assert_eq!(other.read_u8().await?, 8, "new connections pass");
        assert_eq!(*got.borrow(), 1, "the frozen byte did not arrive");
        proxy.thaw();
        got.wait_for(|count| *count == 2)
            .await
            .expect("the server lives");
        Ok(())
    }

    #[tokio::test]
    async fn dropped_answers_reach_no_client_and_their_connection_ends() -> io::Result<()> {
        let (target, mut got) = echo_server().await?;
        let proxy = TcpProxy::start(target).await?;
        proxy.drop_answers();
        let mut client = TcpStream::connect(proxy.address()).await?;
        client.write_u8(7).await?;
        got.wait_for(|count| *count == 1)
            .await
            .expect("the server lives");
        let silent = tokio::time::timeout(Duration::from_millis(100), client.read_u8()).await;
        assert!(silent.is_err(), "no answer, and no end: {silent:?}");
        proxy.forward();
        assert!(client.read_u8().await.is_err());
        Ok(())
    }
}

//! Tests of the network alone: which hosts reach each other, and that nothing is left of it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::*;

const PORT: u16 = 7000;
const BOUND: Duration = Duration::from_secs(10);
/// Lost packets must stay unanswered for this time.
const SILENCE: Duration = Duration::from_millis(300);

macro_rules! on_networks {
    ($($name:ident),+ $(,)?) => { $(
        #[test]
        fn $name() -> anyhow::Result<()> {
            on_a_network_of_its_own(concat!("network::tests::", stringify!($name)), cases::$name)
        }
    )+ };
}

on_networks! {
    every_host_reaches_every_other,
    a_silent_link_loses_one_direction_alone_and_its_connections_go_on_when_it_heals,
    a_connection_that_is_forgotten_is_silent_and_another_one_can_be_made,
    a_rejecting_link_answers_with_resets,
    nothing_is_left_of_a_network,
}

mod cases {
    use super::*;

    pub(super) async fn every_host_reaches_every_other() -> anyhow::Result<()> {
        let network = Network::create(2, 1)?;
        let hosts: Vec<Host> = network.all().collect();
        ensure!(hosts.len() == 5, "{hosts:?}");
        for to in &hosts {
            echo_on(&network, *to)?;
            for from in hosts.iter().filter(|from| *from != to) {
                let mut stream = network.connect_from(*from, *to)?;
                says(&mut stream, 7).with_context(|| format!("from {from} to {to}"))?;
            }
        }
        Ok(())
    }

    pub(super) async fn a_silent_link_loses_one_direction_alone_and_its_connections_go_on_when_it_heals()
    -> anyhow::Result<()> {
        let network = Network::create(3, 0)?;
        let [a, b, c] = [0, 1, 2].map(Host::JobManager);
        echo_on(&network, b)?;
        echo_on(&network, c)?;
        let (mut broken, mut whole) = (network.connect_from(a, b)?, network.connect_from(a, c)?);
        for stream in [&mut broken, &mut whole] {
            says(stream, 1)?;
        }
        for (from, to) in [(a, b), (b, a)] {
            network.set(from, to, Link::Silent)?;
            ensure!(!network.is_sending(a, b)?, "everything was acknowledged");
            gets_no_answer(&mut broken, 2).with_context(|| format!("{from} reaches {to}"))?;
            ensure!(network.is_sending(a, b)?, "nothing is acknowledged");
            says(&mut whole, 3).context("another link")?;
            let new = network.connect_within(SILENCE, a, b);
            ensure!(
                new.as_ref()
                    .is_err_and(|error| error.kind() == io::ErrorKind::TimedOut),
                "a new connection: {new:?}"
            );
            network.set(from, to, Link::Whole)?;
            // The kernel retransmits the bytes that were sent in the meantime.
            broken.set_read_timeout(Some(BOUND))?;
            let mut answer = [0];
            broken.read_exact(&mut answer)?;
            ensure!(answer == [2], "{answer:?}");
        }
        Ok(())
    }

    pub(super) async fn a_connection_that_is_forgotten_is_silent_and_another_one_can_be_made()
    -> anyhow::Result<()> {
        let network = Network::create(2, 0)?;
        let [a, b] = [0, 1].map(Host::JobManager);
        echo_on(&network, b)?;
        let mut forgotten = network.connect_from(a, b)?;
        says(&mut forgotten, 1)?;
        network.drop_connections(a, b)?;
        gets_no_answer(&mut forgotten, 2)?;
        ensure!(network.is_sending(a, b)?, "neither end gets a reset");
        says(&mut network.connect_from(a, b)?, 3)?;
        Ok(())
    }

    pub(super) async fn a_rejecting_link_answers_with_resets() -> anyhow::Result<()> {
        let network = Network::create(2, 0)?;
        let [a, b] = [0, 1].map(Host::JobManager);
        echo_on(&network, b)?;
        let mut stream = network.connect_from(a, b)?;
        says(&mut stream, 1)?;
        network.set(a, b, Link::Rejecting)?;
        let new = network.connect_from(a, b);
        ensure!(
            new.as_ref()
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused),
            "{new:?}"
        );
        let old = says(&mut stream, 2);
        ensure!(
            old.as_ref()
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset),
            "{old:?}"
        );
        // Links with other hosts work in both directions.
        says(&mut network.connect_from(Host::Test, b)?, 3)?;
        network.heal()?;
        says(&mut network.connect_from(a, b)?, 4)?;
        Ok(())
    }

    pub(super) async fn nothing_is_left_of_a_network() -> anyhow::Result<()> {
        let network = Network::create(1, 1)?;
        network.set(Host::JobManager(0), Host::TaskManager(0), Link::Rejecting)?;
        let mut holders: Vec<u32> = network.hosts.values().map(Namespace::holder).collect();
        let rejecting = network.rejecting.lock();
        holders.extend(rejecting.values().map(Namespace::holder));
        drop(rejecting);
        drop(network);
        for holder in holders {
            ensure!(
                !std::path::Path::new(&format!("/proc/{holder}")).exists(),
                "a holder still runs"
            );
        }
        // Interfaces are removed, too: another network can be created.
        Network::create(1, 1).map(drop)
    }
}

/// Sends a byte and reads it back.
fn says(stream: &mut TcpStream, byte: u8) -> io::Result<()> {
    says_within(BOUND, stream, byte)
}

/// Sends a byte; an error if it is answered within [`SILENCE`].
fn gets_no_answer(stream: &mut TcpStream, byte: u8) -> anyhow::Result<()> {
    let answer = says_within(SILENCE, stream, byte);
    ensure!(answer.is_err(), "{byte} is answered");
    Ok(())
}

fn says_within(timeout: Duration, stream: &mut TcpStream, byte: u8) -> io::Result<()> {
    stream.set_read_timeout(Some(timeout))?;
    stream.write_all(&[byte])?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    if answer == [byte] {
        Ok(())
    } else {
        Err(io::Error::other(format!("{answer:?} for {byte}")))
    }
}

impl Network {
    /// Opens something as a process of that host would.
    fn open_on<T: Send + 'static>(
        &self,
        host: Host,
        open: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        match self.hosts.get(&host) {
            Some(namespace) => Namespace::inside(namespace.holder(), open),
            None => open(),
        }
    }

    fn connect_from(&self, from: Host, to: Host) -> io::Result<TcpStream> {
        self.connect_within(BOUND, from, to)
    }

    fn connect_within(&self, timeout: Duration, from: Host, to: Host) -> io::Result<TcpStream> {
        let address = SocketAddr::from((to.address(), PORT));
        self.open_on(from, move || TcpStream::connect_timeout(&address, timeout))
    }
}

/// Answers every byte with the same byte, until the process ends.
fn echo_on(network: &Network, host: Host) -> io::Result<()> {
    let address = SocketAddr::from((host.address(), PORT));
    let listener = network.open_on(host, move || TcpListener::bind(address))?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || echo(stream));
        }
    });
    Ok(())
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)?;
    }
}

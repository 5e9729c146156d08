//! A small network of hosts for real processes, whose links can be cut in one direction.
//!
//! Each host is a network namespace with the interface `eth0`, connected by a bridge in the namespace of
//! the test itself (see [`on_a_network_of_its_own`]). All neighbour entries are static, so an entry
//! decides where packets to a host go: to that host; to an address that no host has, so that they are
//! lost; or to a namespace with the other's address and no listener, which answers with resets like a
//! firewall that rejects. Only packets from `from` to `to` are affected: the other direction is another
//! entry. Connections survive an interruption that ends before the two ends give up.

mod enter;
mod namespace;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;

use namespace::{Namespace, ip_here};

pub use enter::{is_inside, on_a_network_of_its_own, run_self_inside, small_file_system};

/// The bridge, in the namespace of the test.
const BRIDGE: &str = "br0";
/// An address that no host has.
const NOWHERE: &str = "02:00:00:00:00:01";
/// Largest number of hosts of one kind.
const MOST: usize = 50;

/// A host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// The host of the JobManager with that index.
    JobManager(usize),
    /// The host of the TaskManager with that index.
    TaskManager(usize),
    /// The host with the store's server.
    Store,
    /// The host of the test itself.
    Test,
}

impl Host {
    /// Its address.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 99, 0, self.number())
    }

    fn number(self) -> u8 {
        let number = match self {
            Host::JobManager(index) => 1 + index,
            Host::TaskManager(index) => 101 + index,
            Host::Store => 200,
            Host::Test => 254,
        };
        u8::try_from(number).unwrap_or(u8::MAX)
    }

    fn mac(self) -> String {
        format!("02:00:0a:63:00:{:02x}", self.number())
    }

    /// The address of the namespace that answers in its place with resets.
    fn rejecting_mac(self) -> String {
        format!("02:00:0a:63:01:{:02x}", self.number())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::JobManager(index) => write!(f, "jm-{index}"),
            Host::TaskManager(index) => write!(f, "tm-{index}"),
            Host::Store => f.write_str("store"),
            Host::Test => f.write_str("test"),
        }
    }
}

/// The state of the link from one host to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Packets arrive.
    Whole,
    /// Packets are lost.
    Silent,
    /// Packets are answered with resets.
    Rejecting,
}

/// Hosts and the links between them. Removed when it is dropped.
#[derive(Debug)]
pub struct Network {
    hosts: BTreeMap<Host, Namespace>,
    /// Created on first use, by the host in whose place they answer.
    rejecting: Mutex<BTreeMap<Host, Namespace>>,
}

impl Network {
    /// Creates hosts for this number of processes and for the store.
    pub fn create(jobmanagers: usize, taskmanagers: usize) -> anyhow::Result<Network> {
        ensure!(
            jobmanagers <= MOST && taskmanagers <= MOST,
            "too many hosts"
        );
        let here = Host::Test;
        ip_here(&format!(
            "link add {BRIDGE} address {mac} type bridge\n\
             addr add {address}/24 dev {BRIDGE}\n\
             link set {BRIDGE} up\n",
            mac = here.mac(),
            address = here.address(),
        ))
        .context("cannot make the bridge: is the test in a network of its own?")?;
        let names = (0..jobmanagers)
            .map(Host::JobManager)
            .chain((0..taskmanagers).map(Host::TaskManager))
            .chain([Host::Store]);
        let mut hosts = BTreeMap::new();
        for host in names {
            let namespace = Namespace::create(&host.to_string())?;
            let address = format!("addr add {}/24 dev eth0", host.address());
            connect(&namespace, &host.to_string(), &host.mac(), &address)?;
            hosts.insert(host, namespace);
        }
        let network = Network {
            hosts,
            rejecting: Mutex::default(),
        };
        for from in network.all() {
            network.ip(from, &network.neighbours_of(from))?;
        }
        Ok(network)
    }

    /// Sets the state of the link from `from` to `to`. The other direction is unchanged.
    pub fn set(&self, from: Host, to: Host, link: Link) -> anyhow::Result<()> {
        let mac = match link {
            Link::Whole => to.mac(),
            Link::Silent => NOWHERE.to_owned(),
            Link::Rejecting => {
                self.make_rejecting(to)?;
                to.rejecting_mac()
            }
        };
        self.ip(from, &neighbour(from, to, &mac))
            .with_context(|| format!("cannot make the link from {from} to {to} {link:?}"))
    }

    /// Sets both directions.
    pub fn set_both(&self, one: Host, other: Host, link: Link) -> anyhow::Result<()> {
        self.set(one, other, link)?;
        self.set(other, one, link)
    }

    /// Drops all packets from now on of the existing connections between two hosts, like a firewall that
    /// has lost their state: permanently, and without a reset to either end. New connections work.
    pub fn drop_connections(&self, one: Host, other: Host) -> anyhow::Result<()> {
        for socket in self.sockets(one, other)?.filter(|socket| socket.is_open) {
            let (here, there) = (socket.port, socket.remote_port);
            for (from, from_port, to, to_port) in
                [(one, here, other, there), (other, there, one, here)]
            {
                let (source, target) = (from.address(), to.address());
                self.ip(
                    from,
                    &format!(
                        "rule add pref 10 from {source} to {target} ipproto tcp sport {from_port} dport {to_port} blackhole\n"
                    ),
                )?;
            }
        }
        Ok(())
    }

    /// Restores all links.
    pub fn heal(&self) -> anyhow::Result<()> {
        self.all()
            .try_for_each(|from| self.ip(from, &self.neighbours_of(from)))
    }

    /// Whether a connection of `from` has bytes that `to` has not acknowledged: the kernel retransmits them.
    pub fn is_sending(&self, from: Host, to: Host) -> anyhow::Result<bool> {
        let mut sockets = self.sockets(from, to)?;
        Ok(sockets.any(|socket| socket.has_unacknowledged))
    }

    /// Whether a process of `from` has a connection to `to`, even if the other end has closed it already.
    pub fn is_connected(&self, from: Host, to: Host) -> anyhow::Result<bool> {
        let mut sockets = self.sockets(from, to)?;
        Ok(sockets.any(|socket| socket.is_open))
    }

    fn sockets(&self, of: Host, to: Host) -> anyhow::Result<impl Iterator<Item = Socket>> {
        let holder = self.namespace(of)?.holder();
        let table = std::fs::read_to_string(format!("/proc/{holder}/net/tcp"))?;
        let lines: Vec<String> = table.lines().skip(1).map(str::to_owned).collect();
        let address = to.address();
        Ok(lines
            .into_iter()
            .filter_map(move |line| Socket::read(&line, address)))
    }

    /// The command that enters a host and executes the program that follows.
    pub(crate) fn entrance(&self, host: Host) -> anyhow::Result<Vec<String>> {
        Ok(self.namespace(host)?.entrance())
    }

    /// A listener at the address of a host. Can be called several times.
    pub(crate) fn listen_on(
        &self,
        host: Host,
        port: u16,
    ) -> anyhow::Result<impl Fn() -> io::Result<TcpListener> + Send + Sync + 'static> {
        let holder = self.namespace(host)?.holder();
        let address = SocketAddr::from((host.address(), port));
        Ok(move || Namespace::inside(holder, move || TcpListener::bind(address)))
    }

    fn all(&self) -> impl Iterator<Item = Host> {
        self.hosts.keys().copied().chain([Host::Test])
    }

    /// The namespace of a host. The test itself has none here.
    fn namespace(&self, host: Host) -> anyhow::Result<&Namespace> {
        let namespace = self.hosts.get(&host);
        namespace.with_context(|| format!("there is no host {host}"))
    }

    /// Runs lines of `ip` on a host.
    fn ip(&self, host: Host, lines: &str) -> anyhow::Result<()> {
        match host {
            Host::Test => ip_here(lines),
            Host::JobManager(_) | Host::TaskManager(_) | Host::Store => {
                self.namespace(host)?.ip(lines)
            }
        }
    }

    /// Lines for `ip` that restore every link of `from`.
    fn neighbours_of(&self, from: Host) -> String {
        self.all()
            .filter(|to| *to != from)
            .map(|to| neighbour(from, to, &to.mac()))
            .collect()
    }

    /// Creates the namespace that answers in place of `host` with resets, unless it exists.
    fn make_rejecting(&self, host: Host) -> anyhow::Result<()> {
        let mut rejecting = self.rejecting.lock();
        if rejecting.contains_key(&host) {
            return Ok(());
        }
        let name = format!("no-{host}");
        let namespace = Namespace::create(&name)?;
        // The address is not on the interface, so that this namespace does not announce it.
        let address = format!("addr add {}/32 dev lo", host.address());
        connect(&namespace, &name, &host.rejecting_mac(), &address)?;
        let mut lines = format!("route add 10.99.0.0/24 dev eth0 src {}\n", host.address());
        for to in self.all().filter(|to| *to != host) {
            lines.push_str(&neighbour(host, to, &to.mac()));
        }
        namespace.ip(&lines)?;
        rejecting.insert(host, namespace);
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The kernel removes the interfaces of a deleted namespace with a delay, so they are deleted here.
        let rejecting = self.rejecting.get_mut();
        let mut lines: String = self
            .hosts
            .keys()
            .map(|host| format!("link del v-{host}\n"))
            .collect();
        lines.extend(
            rejecting
                .keys()
                .map(|host| format!("link del v-no-{host}\n")),
        );
        lines.push_str(&format!("link del {BRIDGE}\n"));
        // The rest disappears with the test's own namespace.
        let _ = ip_here(&lines);
    }
}

/// A line of `/proc/net/tcp`.
struct Socket {
    port: u16,
    remote_port: u16,
    has_unacknowledged: bool,
    is_open: bool,
}

impl Socket {
    /// Reads the line if it is about a connection to `to`.
    fn read(line: &str, to: Ipv4Addr) -> Option<Socket> {
        // The kernel prints the address in the byte order of this machine.
        let address = format!("{:08X}:", u32::from_ne_bytes(to.octets()));
        let port = |end: &str| u16::from_str_radix(end.split_once(':')?.1, 16).ok();
        let mut fields = line.split_whitespace().skip(1);
        let (local, remote) = (fields.next()?, fields.next()?);
        let (own_port, remote_port) = (port(local)?, port(remote)?);
        let state = fields.next()?;
        let (to_send, _) = fields.next()?.split_once(':')?;
        remote.starts_with(&address).then(|| Socket {
            port: own_port,
            remote_port,
            has_unacknowledged: to_send.contains(|digit| digit != '0'),
            // ESTABLISHED, CLOSE_WAIT.
            is_open: matches!(state, "01" | "08"),
        })
    }
}

/// Gives a namespace an interface on the bridge, and an address.
fn connect(namespace: &Namespace, name: &str, mac: &str, address: &str) -> anyhow::Result<()> {
    let holder = namespace.holder();
    ip_here(&format!(
        "link add v-{name} type veth peer name eth0 netns {holder}\n\
         link set v-{name} master {BRIDGE} up\n"
    ))?;
    namespace.ip(&format!(
        "link set eth0 address {mac}\n{address}\nlink set eth0 up\n"
    ))
}

fn neighbour(from: Host, to: Host, mac: &str) -> String {
    let interface = match from {
        Host::Test => BRIDGE,
        Host::JobManager(_) | Host::TaskManager(_) | Host::Store => "eth0",
    };
    format!(
        "neigh replace {} lladdr {mac} nud permanent dev {interface}\n",
        to.address()
    )
}

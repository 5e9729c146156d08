//! ZooKeeper servers: one, or an ensemble of several, run from Debian's jars.
//!
//! Ticks are short, so that sessions of one second (two ticks) are granted.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::testing::servers::ports::free_port;
use crate::testing::servers::{ServerError, ServerProcess, ask, io_error};

/// The directory of Debian's jars.
const JARS: &str = "/usr/share/java";
/// The Debian package that contains the server.
const PACKAGE: &str = "zookeeper";

/// Options of a ZooKeeper server.
#[derive(Debug, Clone)]
pub struct ZooKeeperServerOptions {
    /// The server's unit of time; sessions last from 2 to 20 ticks.
    pub tick_time: Duration,
    /// The longest session, if not 20 ticks.
    pub max_session_timeout: Option<Duration>,
    /// The Java heap, which holds all data, in MiB.
    pub heap_mib: u32,
    /// The data directory of a single server, if not in its own directory: for example on a disk that fills
    /// up.
    pub data: Option<PathBuf>,
    /// Additional lines of `zoo.cfg`.
    pub extra: Vec<String>,
}

impl Default for ZooKeeperServerOptions {
    fn default() -> ZooKeeperServerOptions {
        ZooKeeperServerOptions {
            tick_time: Duration::from_millis(500),
            max_session_timeout: None,
            heap_mib: 256,
            data: None,
            extra: Vec::new(),
        }
    }
}

/// One ZooKeeper server: standalone, or a member of a [`ZooKeeperEnsemble`].
#[derive(Debug)]
pub struct ZooKeeperServer {
    options: ZooKeeperServerOptions,
    member: Member,
    /// The lines `server.N=...` of all members; empty for a standalone server.
    ensemble: String,
    process: ServerProcess,
}

#[derive(Debug, Clone)]
struct Member {
    id: usize,
    client_port: u16,
    quorum_port: u16,
    election_port: u16,
}

impl Member {
    fn new(id: usize) -> Member {
        let (client_port, quorum_port, election_port) = (free_port(), free_port(), free_port());
        Member {
            id,
            client_port,
            quorum_port,
            election_port,
        }
    }
}

impl ZooKeeperServer {
    /// Starts a standalone server and waits until it is ready.
    pub async fn start(options: ZooKeeperServerOptions) -> Result<ZooKeeperServer, ServerError> {
        let mut server = ZooKeeperServer::launch(options, Member::new(1), String::new())?;
        server.wait_ready().await?;
        Ok(server)
    }

    fn launch(
        options: ZooKeeperServerOptions,
        member: Member,
        ensemble: String,
    ) -> Result<ZooKeeperServer, ServerError> {
        let process = ServerProcess::new(format!("zookeeper-{}", member.id))?;
        let mut server = ZooKeeperServer {
            options,
            member,
            ensemble,
            process,
        };
        server.spawn()?;
        Ok(server)
    }

    fn spawn(&mut self) -> Result<(), ServerError> {
        self.write_files()
            .map_err(io_error("cannot write ZooKeeper's configuration"))?;
        let mut command = Command::new("java");
        command
            .arg(format!("-Xmx{}m", self.options.heap_mib))
            .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .arg("-Dzookeeper.jmx.log4j.disable=true")
            .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
            .args(["-cp", &class_path()?])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg("./zoo.cfg");
        self.process.start(&mut command, "default-jre-headless")
    }

    fn write_files(&self) -> std::io::Result<()> {
        let directory = self.process.directory();
        let data = self.data();
        std::fs::create_dir_all(&data)?;
        std::fs::write(data.join("myid"), self.member.id.to_string())?;
        std::fs::write(directory.join("zoo.cfg"), self.configuration(&data))
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        let own = || self.process.directory().join("data");
        self.options.data.clone().unwrap_or_else(own)
    }

    fn configuration(&self, data: &Path) -> String {
        let mut text = format!(
            "tickTime={}\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             initLimit=20\nsyncLimit=10\nmaxClientCnxns=0\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\n",
            self.options.tick_time.as_millis(),
            data.display(),
            self.member.client_port,
        );
        if let Some(timeout) = self.options.max_session_timeout {
            writeln!(text, "maxSessionTimeout={}", timeout.as_millis())
                .expect("a string takes what is written");
        }
        for line in self
            .ensemble
            .lines()
            .chain(self.options.extra.iter().map(String::as_str))
        {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    /// `127.0.0.1:port` of the client interface, the target of a proxy.
    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.member.client_port).into()
    }

    /// Its address, in the format of a connect string.
    pub fn endpoint(&self) -> String {
        self.address().to_string()
    }

    /// Its address, as a list.
    pub fn endpoints(&self) -> Vec<String> {
        vec![self.endpoint()]
    }

    /// Waits until it serves requests: alone, or as leader or follower.
    pub async fn wait_ready(&mut self) -> Result<(), ServerError> {
        let port = self.member.client_port;
        self.process
            .wait_ready(async || mode(port).await.map(|_| ()))
            .await
    }

    /// Sends SIGKILL; its data stay.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends SIGSTOP: it is frozen, its connections stay.
    pub fn stop(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Sends SIGCONT after [`ZooKeeperServer::stop`].
    pub fn cont(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Whether its process has ended by itself, or was killed.
    pub fn has_ended(&mut self) -> bool {
        self.process.has_ended()
    }

    /// Starts it again with its data, after killing it if it runs, and waits until it is ready.
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        self.spawn()?;
        self.wait_ready().await
    }

    /// Starts it again on the same port without any data, and waits until it is ready. A member of an
    /// ensemble gets the data from the other members.
    pub async fn restart_wiped(&mut self) -> Result<(), ServerError> {
        self.wipe()?;
        self.restart().await
    }

    fn wipe(&mut self) -> Result<(), ServerError> {
        self.process.kill();
        std::fs::remove_dir_all(self.data()).map_err(io_error("cannot remove ZooKeeper's data"))
    }
}

/// Several ZooKeeper servers that form one ensemble.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    servers: Vec<ZooKeeperServer>,
}

impl ZooKeeperEnsemble {
    /// Starts `size` servers and waits until all are ready.
    pub async fn start(
        size: usize,
        options: ZooKeeperServerOptions,
    ) -> Result<ZooKeeperEnsemble, ServerError> {
        let members: Vec<Member> = (1..=size).map(Member::new).collect();
        let line = |member: &Member| {
            let Member {
                id,
                quorum_port,
                election_port,
                ..
            } = member;
            format!("server.{id}=127.0.0.1:{quorum_port}:{election_port}\n")
        };
        let lines: String = members.iter().map(line).collect();
        let servers = members
            .into_iter()
            .map(|member| ZooKeeperServer::launch(options.clone(), member, lines.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        let mut ensemble = ZooKeeperEnsemble { servers };
        ensemble.wait_ready().await?;
        Ok(ensemble)
    }

    /// The addresses of all members.
    pub fn endpoints(&self) -> Vec<String> {
        self.servers.iter().map(ZooKeeperServer::endpoint).collect()
    }

    /// `127.0.0.1:port` of all members.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(ZooKeeperServer::address).collect()
    }

    /// The members, for killing, stopping and restarting each.
    pub fn servers(&mut self) -> &mut [ZooKeeperServer] {
        &mut self.servers
    }

    /// Waits until every member serves requests.
    pub async fn wait_ready(&mut self) -> Result<(), ServerError> {
        for server in &mut self.servers {
            server.wait_ready().await?;
        }
        Ok(())
    }

    /// The index of the leading member.
    pub async fn leader(&self) -> Result<usize, ServerError> {
        for (index, server) in self.servers.iter().enumerate() {
            if mode(server.member.client_port)
                .await
                .is_ok_and(|mode| mode == "leader")
            {
                return Ok(index);
            }
        }
        let server = "the ZooKeeper ensemble".to_owned();
        Err(ServerError::Setup {
            server,
            reason: "no member leads".to_owned(),
        })
    }

    /// Kills the running members and starts all with their data.
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        for server in &mut self.servers {
            server.spawn()?;
        }
        self.wait_ready().await
    }

    /// Kills the running members and starts all on the same ports without any data.
    pub async fn restart_wiped(&mut self) -> Result<(), ServerError> {
        for server in &mut self.servers {
            server.wipe()?;
        }
        self.restart().await
    }
}

fn class_path() -> Result<String, ServerError> {
    let mut jars = Vec::new();
    for name in ["zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple"] {
        let path = Path::new(JARS).join(name).with_extension("jar");
        let program = path.display().to_string();
        if !path.exists() {
            return Err(ServerError::Missing {
                program,
                package: PACKAGE,
            });
        }
        jars.push(program);
    }
    Ok(jars.join(":"))
}

/// The mode of a server that serves requests: `standalone`, `leader` or `follower`.
async fn mode(port: u16) -> Result<String, String> {
    let answer = ask(port, "srvr").await?;
    let mode = answer
        .lines()
        .find_map(|line| line.strip_prefix("Mode: "))
        .map(str::to_owned);
    mode.ok_or(answer)
}

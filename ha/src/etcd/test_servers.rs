//! etcd servers: one, or a cluster of several.
//!
//! Raft's timeouts are short, so that leases of one second are granted and elections take less than a second.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions, ConnectOptions, Permission,
};
use rustix::process::Signal;

use crate::testing::servers::ports::free_port;
use crate::testing::servers::{ServerError, ServerProcess, ask, io_error};

/// The Debian package that contains the server.
const PACKAGE: &str = "etcd-server";

/// Size in bytes of one value that fills a server.
const BALLAST: usize = 256 * 1024;

/// Options of an etcd server.
#[derive(Debug, Clone)]
pub struct EtcdServerOptions {
    /// Raft's heartbeat interval.
    pub heartbeat: Duration,
    /// Raft's election timeout. The shortest lease is 1.5 times as long, in whole seconds.
    pub election_timeout: Duration,
    /// Enables authentication, with this user, who may read and write everything.
    pub user: Option<(String, String)>,
    /// With authentication: lifetime of a token. `None`: etcd's own simple tokens, which end with the server.
    pub token_ttl: Option<Duration>,
    /// Quota for data in bytes; etcd's default is 2 GiB.
    pub quota_bytes: Option<u64>,
}

impl Default for EtcdServerOptions {
    fn default() -> EtcdServerOptions {
        EtcdServerOptions {
            heartbeat: Duration::from_millis(20),
            election_timeout: Duration::from_millis(200),
            user: None,
            token_ttl: None,
            quota_bytes: None,
        }
    }
}

/// One etcd server: the only one of its cluster, or a member of an [`EtcdCluster`].
#[derive(Debug)]
pub struct EtcdServer {
    options: EtcdServerOptions,
    member: Member,
    /// All members, in the format of etcd's `--initial-cluster`.
    initial_cluster: String,
    process: ServerProcess,
}

#[derive(Debug, Clone)]
struct Member {
    name: String,
    client_port: u16,
    peer_port: u16,
}

impl Member {
    fn new(index: usize) -> Member {
        Member {
            name: format!("etcd-{index}"),
            client_port: free_port(),
            peer_port: free_port(),
        }
    }

    fn initial_cluster(members: &[Member]) -> String {
        let entries: Vec<String> = members
            .iter()
            .map(|member| format!("{}=http://127.0.0.1:{}", member.name, member.peer_port))
            .collect();
        entries.join(",")
    }
}

impl EtcdServer {
    /// Starts a single server and waits until it is ready.
    pub async fn start(options: EtcdServerOptions) -> Result<EtcdServer, ServerError> {
        let member = Member::new(0);
        let initial_cluster = Member::initial_cluster(std::slice::from_ref(&member));
        let mut server = EtcdServer::launch(options, member, initial_cluster)?;
        server.wait_ready().await?;
        set_up_users(&server.options, &server.endpoint()).await?;
        Ok(server)
    }

    /// Writes until the server refuses because its quota is used up, and raises its alarm `NOSPACE`. Needs a
    /// small quota and no user.
    pub async fn fill(&self) -> Result<(), etcd_client::Error> {
        let mut client = Client::connect([self.endpoint()], None).await?;
        // The total size counts, not the keys: all of these but the last are old revisions.
        loop {
            match client.put("ballast", vec![1; BALLAST], None).await {
                Ok(_) => {}
                Err(error) if error.to_string().contains("space exceeded") => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Frees space like an operator: removes old revisions, defragments, and disarms the alarm.
    pub async fn make_room(&self) -> Result<(), etcd_client::Error> {
        let mut client = Client::connect([self.endpoint()], None).await?;
        let newest = client.get("any", None).await?;
        let revision = newest.header().map_or(0, |header| header.revision());
        let physical = CompactionOptions::new().with_physical();
        client.compact(revision, Some(physical)).await?;
        client.defragment().await?;
        let raised = client
            .alarm(AlarmAction::Get, AlarmType::None, None)
            .await?;
        for alarm in raised.alarms() {
            let mut of_member = AlarmOptions::new();
            of_member.with_member(alarm.member_id());
            client
                .alarm(AlarmAction::Deactivate, alarm.alarm(), Some(of_member))
                .await?;
        }
        Ok(())
    }

    /// Starts a server on the data directory of another server, or on a copy of it.
    pub async fn start_with(data: &Path) -> Result<EtcdServer, ServerError> {
        let member = Member::new(0);
        let initial_cluster = Member::initial_cluster(std::slice::from_ref(&member));
        let process = ServerProcess::new(member.name.clone())?;
        let mut server = EtcdServer {
            options: EtcdServerOptions::default(),
            member,
            initial_cluster,
            process,
        };
        std::fs::rename(data, server.data()).map_err(io_error("cannot move etcd's data"))?;
        server.spawn()?;
        server.wait_ready().await?;
        Ok(server)
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.process.directory().join("data")
    }

    fn launch(
        options: EtcdServerOptions,
        member: Member,
        initial_cluster: String,
    ) -> Result<EtcdServer, ServerError> {
        let process = ServerProcess::new(member.name.clone())?;
        let mut server = EtcdServer {
            options,
            member,
            initial_cluster,
            process,
        };
        server.spawn()?;
        Ok(server)
    }

    fn spawn(&mut self) -> Result<(), ServerError> {
        let client_url = format!("http://{}", self.address());
        let peer_url = format!("http://127.0.0.1:{}", self.member.peer_port);
        let mut command = Command::new("etcd");
        command
            .args(["--name", &self.member.name])
            .args(["--data-dir", "data"])
            .args([
                "--listen-client-urls",
                &client_url,
                "--advertise-client-urls",
                &client_url,
            ])
            .args([
                "--listen-peer-urls",
                &peer_url,
                "--initial-advertise-peer-urls",
                &peer_url,
            ])
            .args(["--initial-cluster", &self.initial_cluster])
            .args([
                "--heartbeat-interval",
                &self.options.heartbeat.as_millis().to_string(),
            ])
            .args([
                "--election-timeout",
                &self.options.election_timeout.as_millis().to_string(),
            ])
            .args(["--logger", "zap", "--log-level", "warn"]);
        if let Some(bytes) = self.options.quota_bytes {
            command.args(["--quota-backend-bytes", &bytes.to_string()]);
        }
        if let Some(ttl) = self.options.token_ttl {
            let key = self.process.directory().join("token-key");
            std::fs::write(
                &key,
                "a key for tests alone: tokens signed with it protect nothing",
            )
            .map_err(io_error("cannot write the key of the tokens"))?;
            let key = key.display();
            let value = format!(
                "jwt,priv-key={key},sign-method=HS256,ttl={}s",
                ttl.as_secs()
            );
            command.args(["--auth-token", &value]);
        }
        self.process.start(&mut command, PACKAGE)
    }

    /// `127.0.0.1:port` of the client interface, the target of a proxy.
    pub fn address(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.member.client_port).into()
    }

    /// Its URL for clients.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Its URL, as a list.
    pub fn endpoints(&self) -> Vec<String> {
        vec![self.endpoint()]
    }

    /// Waits until it answers linearizable reads.
    pub async fn wait_ready(&mut self) -> Result<(), ServerError> {
        let port = self.member.client_port;
        self.process
            .wait_ready(async || {
                let request = "GET /health HTTP/1.0\r\n\r\n";
                let answer = ask(port, request).await?;
                if answer.contains(r#""health":"true""#) {
                    Ok(())
                } else {
                    Err(answer)
                }
            })
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

    /// Sends SIGCONT after [`EtcdServer::stop`].
    pub fn cont(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Starts it again with its data, after killing it if it runs, and waits until it is ready.
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        self.spawn()?;
        self.wait_ready().await
    }

    /// Starts it again on the same port without any data, and waits until it is ready. Only for a single
    /// server: a wiped member can't rejoin its cluster.
    pub async fn restart_wiped(&mut self) -> Result<(), ServerError> {
        self.wipe()?;
        self.restart().await?;
        set_up_users(&self.options, &self.endpoint()).await
    }

    fn wipe(&mut self) -> Result<(), ServerError> {
        self.process.kill();
        std::fs::remove_dir_all(self.data()).map_err(io_error("cannot remove etcd's data"))
    }
}

/// Several etcd servers that form one cluster.
#[derive(Debug)]
pub struct EtcdCluster {
    servers: Vec<EtcdServer>,
}

impl EtcdCluster {
    /// Starts `size` servers and waits until all are ready.
    pub async fn start(
        size: usize,
        options: EtcdServerOptions,
    ) -> Result<EtcdCluster, ServerError> {
        let members: Vec<Member> = (0..size).map(Member::new).collect();
        let initial_cluster = Member::initial_cluster(&members);
        let servers = members
            .into_iter()
            .map(|member| EtcdServer::launch(options.clone(), member, initial_cluster.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        let mut cluster = EtcdCluster { servers };
        cluster.wait_ready().await?;
        set_up_users(&options, &cluster.servers[0].endpoint()).await?;
        Ok(cluster)
    }

    /// The URLs of all members.
    pub fn endpoints(&self) -> Vec<String> {
        self.servers.iter().map(EtcdServer::endpoint).collect()
    }

    /// `127.0.0.1:port` of all members.
    pub fn addresses(&self) -> Vec<std::net::SocketAddr> {
        self.servers.iter().map(EtcdServer::address).collect()
    }

    /// The members, for killing, stopping and restarting each.
    pub fn servers(&mut self) -> &mut [EtcdServer] {
        &mut self.servers
    }

    /// Waits until every member answers.
    pub async fn wait_ready(&mut self) -> Result<(), ServerError> {
        for server in &mut self.servers {
            server.wait_ready().await?;
        }
        Ok(())
    }

    /// The index of the member that leads Raft. All must run.
    pub async fn leader(&self) -> Result<usize, ServerError> {
        for (index, server) in self.servers.iter().enumerate() {
            let options = server
                .options
                .user
                .clone()
                .map(|(name, password)| ConnectOptions::new().with_user(name, password));
            let status = async {
                let mut client = Client::connect([server.endpoint()], options).await?;
                client.status().await
            };
            let status = status.await.map_err(refused(&server.endpoint()))?;
            if status
                .header()
                .is_some_and(|header| header.member_id() == status.leader())
            {
                return Ok(index);
            }
        }
        let server = "the etcd cluster".to_owned();
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
        self.restart().await?;
        set_up_users(&self.servers[0].options, &self.servers[0].endpoint()).await
    }
}

fn refused(server: &str) -> impl FnOnce(etcd_client::Error) -> ServerError {
    let server = server.to_owned();
    move |error| ServerError::Setup {
        server,
        reason: error.to_string(),
    }
}

/// Creates the user that `options` names, and enables authentication.
async fn set_up_users(options: &EtcdServerOptions, endpoint: &str) -> Result<(), ServerError> {
    let Some((name, password)) = &options.user else {
        return Ok(());
    };
    let set_up = async {
        let mut client = Client::connect([endpoint], None).await?;
        client.user_add("root", password.as_str(), None).await?;
        client.user_grant_role("root", "root").await?;
        if name != "root" {
            let everything = Permission::read_write("\0").with_all_keys();
            client.role_add("tests").await?;
            client.role_grant_permission("tests", everything).await?;
            client
                .user_add(name.as_str(), password.as_str(), None)
                .await?;
            client.user_grant_role(name.as_str(), "tests").await?;
        }
        client.auth_enable().await?;
        Ok(())
    };
    set_up.await.map_err(refused(endpoint))
}

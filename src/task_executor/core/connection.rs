//! The connection of a TaskExecutor to the ResourceManager or a JobMaster. Pure.
//!
//! It belongs to a registration. Messages under an earlier registration are refused, so that no message sent before
//! a reconnect takes effect after the report of the new registration.

use std::time::Duration;

use tanist_ha::clock::Uptime;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::v1 as pb;

/// State of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionState {
    /// There is no known address to connect to.
    Idle,
    /// Attempts to register run.
    Registering,
    /// The last registration succeeded.
    Registered {
        /// When the last message of the other side arrived.
        last_heard: Uptime,
        /// How long the other side may be silent.
        silence: Silence,
    },
}

/// How long the other side may be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    /// Silence after which it is uncertain whether the other side still exists and still leads.
    pub doubted_after: Duration,
    /// Silence after which the other side is lost.
    pub lost_after: Duration,
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    /// Its state.
    pub state: ConnectionState,
    /// Address of the other side.
    pub address: String,
    /// Distinguishes a run of attempts from earlier ones.
    pub run: u64,
    /// Number of the last registration sent by the present run of attempts. 0: none was sent, or the run was ended.
    registration: u64,
    incarnation: Option<ClusterIncarnation>,
    epoch: Epoch,
}

impl Connection {
    /// Without address.
    pub fn idle() -> Connection {
        Connection {
            state: ConnectionState::Idle,
            address: String::new(),
            run: 0,
            registration: 0,
            incarnation: None,
            epoch: Epoch::ZERO,
        }
    }

    /// Begins a run of attempts. The previous registration is over, even before the next one is sent: delayed
    /// messages under it are refused.
    pub fn begin(&mut self, address: String) {
        self.run += 1;
        self.registration = 0;
        self.address = address;
        self.state = ConnectionState::Registering;
    }

    /// Ends the connection and its registration.
    pub fn end(&mut self) {
        self.run += 1;
        self.registration = 0;
        self.state = ConnectionState::Idle;
    }

    /// Records that a registration is being sent. Returns its sender.
    pub fn send(
        &mut self,
        incarnation: ClusterIncarnation,
        epoch: Epoch,
        registration: u64,
    ) -> pb::Sender {
        self.incarnation = Some(incarnation);
        self.epoch = epoch;
        self.registration = registration;
        self.sender()
    }

    /// Records that the last registration succeeded.
    pub fn succeed(&mut self, now: Uptime, silence: Silence) {
        self.state = ConnectionState::Registered {
            last_heard: now,
            silence,
        };
    }

    /// The sender of messages on this connection.
    pub fn sender(&self) -> pb::Sender {
        let incarnation = self.incarnation.as_ref();
        pb::Sender {
            cluster_incarnation: incarnation.map(ToString::to_string).unwrap_or_default(),
            epoch: self.epoch.get(),
            registration: self.registration,
            ..pb::Sender::default()
        }
    }

    /// Whether a message that names this registration belongs to the connection.
    pub fn is_of(&self, registration: u64) -> bool {
        registration != 0 && self.registration == registration
    }

    /// Whether there is no known address to connect to.
    pub fn is_idle(&self) -> bool {
        self.state == ConnectionState::Idle
    }

    /// Records that a message arrived.
    pub fn heard(&mut self, now: Uptime) {
        if let ConnectionState::Registered { last_heard, .. } = &mut self.state {
            *last_heard = now;
        }
    }

    /// Whether attempts to register run.
    pub fn is_registering(&self) -> bool {
        self.state == ConnectionState::Registering
    }

    /// Whether the last registration succeeded.
    pub fn is_registered(&self) -> bool {
        match self.state {
            ConnectionState::Registered { .. } => true,
            ConnectionState::Idle | ConnectionState::Registering => false,
        }
    }

    /// When the other side is lost.
    pub fn deadline(&self) -> Option<Uptime> {
        match self.state {
            ConnectionState::Registered {
                last_heard,
                silence,
            } => Some(last_heard + silence.lost_after),
            ConnectionState::Idle | ConnectionState::Registering => None,
        }
    }

    /// When doubt about the other side begins. `None`: it is in doubt already, since there is no connection.
    pub fn doubted_at(&self) -> Option<Uptime> {
        match self.state {
            ConnectionState::Registered {
                last_heard,
                silence,
            } => Some(last_heard + silence.doubted_after),
            ConnectionState::Idle | ConnectionState::Registering => None,
        }
    }
}

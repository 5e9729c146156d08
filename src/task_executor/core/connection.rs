//! The connection of a TaskExecutor to the ResourceManager or a JobMaster. Pure.
//!
//! It belongs to a registration. Messages under an earlier registration are refused, so that no message sent before
//! a reconnect takes effect after the report of the new registration.

use std::time::Duration;

use tanist_ha::clock::Uptime;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::v1 as pb;

/// A registration, as its messages name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Registration {
    incarnation: ClusterIncarnation,
    epoch: Epoch,
    number: u64,
}

impl Registration {
    /// The registration with this number, not 0, in the term of a leader.
    pub(super) fn new(incarnation: ClusterIncarnation, epoch: Epoch, number: u64) -> Registration {
        Registration {
            incarnation,
            epoch,
            number,
        }
    }

    fn sender(&self) -> pb::Sender {
        pb::Sender {
            cluster_incarnation: self.incarnation.to_string(),
            epoch: self.epoch.get(),
            registration: self.number,
            ..pb::Sender::default()
        }
    }
}

/// Timeouts for messages of the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SilenceTimeouts {
    /// Silence after which it is uncertain whether the other side still exists and still leads.
    doubted_after: Duration,
    /// Silence after which the other side is lost.
    lost_after: Duration,
}

impl SilenceTimeouts {
    /// Timeouts after a registration. `default`: heartbeat timeout if the leader names none.
    pub(super) fn new(success: &pb::RegistrationSuccess, default: Duration) -> SilenceTimeouts {
        let lost_after = match success.heartbeat_timeout_ms {
            0 => default,
            millis => Duration::from_millis(millis),
        };
        // One heartbeat is overdue by half an interval. The leader counts several failures before it gives up.
        let doubted_after = match success.heartbeat_interval_ms {
            0 => lost_after / 3,
            millis => Duration::from_millis(millis) * 3 / 2,
        };
        SilenceTimeouts {
            doubted_after: doubted_after.min(lost_after),
            lost_after,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ConnectionState {
    /// There is no known address to connect to.
    Idle,
    /// Attempts to register run.
    Registering,
    /// The last registration succeeded.
    Registered {
        /// When the last message of the other side arrived.
        last_contact: Uptime,
        silence: SilenceTimeouts,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Connection {
    state: ConnectionState,
    /// Address of the other side.
    address: String,
    /// Distinguishes a run of attempts from earlier ones.
    run: u64,
    /// The last registration sent by the present run of attempts. `None`: none was sent, or the run was ended.
    registration: Option<Registration>,
}

impl Connection {
    /// Without address. Its runs of attempts are above `run`.
    pub(super) fn idle(run: u64) -> Connection {
        Connection {
            state: ConnectionState::Idle,
            address: String::new(),
            run,
            registration: None,
        }
    }

    /// Begins a run of attempts, and returns it. The previous registration is over, even before the next one is
    /// sent: delayed messages under it are refused.
    pub(super) fn begin(&mut self, address: &str) -> u64 {
        self.end();
        self.address = address.to_owned();
        self.state = ConnectionState::Registering;
        self.run
    }

    /// Ends the connection and its registration.
    pub(super) fn end(&mut self) {
        self.run += 1;
        self.registration = None;
        self.state = ConnectionState::Idle;
    }

    /// Records that a registration is being sent. Returns its sender.
    pub(super) fn send(&mut self, registration: Registration) -> pb::Sender {
        self.registration = Some(registration);
        self.sender()
    }

    /// Records that the last registration succeeded.
    pub(super) fn succeed(&mut self, now: Uptime, silence: SilenceTimeouts) {
        self.state = ConnectionState::Registered {
            last_contact: now,
            silence,
        };
    }

    /// Records that a message arrived.
    pub(super) fn record_contact(&mut self, now: Uptime) {
        if let ConnectionState::Registered { last_contact, .. } = &mut self.state {
            *last_contact = now;
        }
    }

    /// The sender of messages on this connection.
    pub(super) fn sender(&self) -> pb::Sender {
        let registration = self.registration.as_ref();
        registration.map(Registration::sender).unwrap_or_default()
    }

    /// Address of the other side.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The present run of attempts, also after it has succeeded.
    pub(super) fn run(&self) -> u64 {
        self.run
    }

    /// Whether a message that names this registration belongs to the connection.
    pub(super) fn has_registration(&self, number: u64) -> bool {
        let registration = self.registration.as_ref();
        registration.is_some_and(|present| present.number == number)
    }

    /// Whether there is no known address to connect to.
    pub(super) fn is_idle(&self) -> bool {
        self.state == ConnectionState::Idle
    }

    /// Whether attempts to register run.
    pub(super) fn is_registering(&self) -> bool {
        self.state == ConnectionState::Registering
    }

    /// Whether the last registration succeeded.
    pub(super) fn is_registered(&self) -> bool {
        match self.state {
            ConnectionState::Registered { .. } => true,
            ConnectionState::Idle | ConnectionState::Registering => false,
        }
    }

    /// When the other side is lost.
    pub(super) fn lost_at(&self) -> Option<Uptime> {
        self.after_contact(|silence| silence.lost_after)
    }

    /// When doubt about the other side begins. `None`: it is in doubt already, since there is no connection.
    pub(super) fn doubted_at(&self) -> Option<Uptime> {
        self.after_contact(|silence| silence.doubted_after)
    }

    fn after_contact(&self, timeout: impl Fn(&SilenceTimeouts) -> Duration) -> Option<Uptime> {
        match &self.state {
            ConnectionState::Registered {
                last_contact,
                silence,
            } => Some(*last_contact + timeout(silence)),
            ConnectionState::Idle | ConnectionState::Registering => None,
        }
    }
}

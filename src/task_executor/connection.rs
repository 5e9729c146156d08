//! The connection of a TaskExecutor to the ResourceManager or to a JobMaster. Pure.
//!
//! It rests on a registration. What the other side says under an earlier registration is refused, so that nothing it sent
//! before a reconnect comes after the report that went with it.

use std::time::Duration;

use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::v1 as pb;
use tokio::time::Instant;

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionState {
    /// Nobody is known to connect to.
    Idle,
    /// Attempts are being made.
    Registering,
    /// The last registration succeeded.
    Registered {
        /// When the other side was last heard.
        last_heard: Instant,
        /// How long it may be silent.
        silence: Silence,
    },
}

/// How long the other side may be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    /// After this long it is not certain any more that it is still there, or still the one to listen to.
    pub doubted_after: Duration,
    /// After this long it counts as lost.
    pub lost_after: Duration,
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    /// How far it is.
    pub state: ConnectionState,
    /// Where the other side is.
    pub address: String,
    /// Tells a run of attempts from earlier ones.
    pub run: u64,
    /// The number of the registration that the last run of attempts has sent last; 0: it has sent none, or was ended.
    registration: u64,
    incarnation: Option<ClusterIncarnation>,
    epoch: Epoch,
}

impl Connection {
    /// To nobody yet.
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

    /// Begins a run of attempts. The registration of before is over, also while none of the next is sent: what had waited on its way
    /// is refused.
    pub fn begin(&mut self, address: String) {
        self.run += 1;
        self.registration = 0;
        self.address = address;
        self.state = ConnectionState::Registering;
    }

    /// Gives it up, and its registration.
    pub fn end(&mut self) {
        self.run += 1;
        self.registration = 0;
        self.state = ConnectionState::Idle;
    }

    /// A registration is being sent.
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

    /// The last registration succeeded.
    pub fn succeed(&mut self, now: Instant, silence: Silence) {
        self.state = ConnectionState::Registered {
            last_heard: now,
            silence,
        };
    }

    /// How this process names itself on it.
    pub fn sender(&self) -> pb::Sender {
        let incarnation = self.incarnation.as_ref();
        pb::Sender {
            cluster_incarnation: incarnation.map(ToString::to_string).unwrap_or_default(),
            epoch: self.epoch.get(),
            registration: self.registration,
            ..pb::Sender::default()
        }
    }

    /// Whether a message that names this registration belongs to it.
    pub fn is_of(&self, registration: u64) -> bool {
        registration != 0 && self.registration == registration
    }

    /// Whether nobody is known to connect to.
    pub fn is_idle(&self) -> bool {
        self.state == ConnectionState::Idle
    }

    /// The other side was heard.
    pub fn heard(&mut self, now: Instant) {
        if let ConnectionState::Registered { last_heard, .. } = &mut self.state {
            *last_heard = now;
        }
    }

    /// Whether attempts are being made.
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

    /// When the other side counts as lost.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            ConnectionState::Registered {
                last_heard,
                silence,
            } => Some(last_heard + silence.lost_after),
            ConnectionState::Idle | ConnectionState::Registering => None,
        }
    }

    /// From when on it is doubted; `None`: it is, since there is no connection.
    pub fn doubted_at(&self) -> Option<Instant> {
        match self.state {
            ConnectionState::Registered {
                last_heard,
                silence,
            } => Some(last_heard + silence.doubted_after),
            ConnectionState::Idle | ConnectionState::Registering => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_is_over_when_another_run_of_attempts_begins_and_when_the_connection_is_given_up()
     {
        let mut connection = Connection::idle();
        let send = |connection: &mut Connection, number| {
            let sender = connection.send(ClusterIncarnation::new("c1"), Epoch::new(1), number);
            assert_eq!(sender.registration, number);
            assert!(connection.is_of(number));
        };
        connection.begin("jm1:1".to_owned());
        send(&mut connection, 1);
        // One after the other in a run: the last one counts.
        send(&mut connection, 2);
        assert!(!connection.is_of(1));
        connection.begin("jm1:1".to_owned());
        assert!(!connection.is_of(2) && !connection.is_of(0));
        send(&mut connection, 3);
        connection.end();
        assert!(!connection.is_of(3) && !connection.is_of(0));
    }
}

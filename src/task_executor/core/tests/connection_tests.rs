//! The registrations of a connection.

use tanist_ha::election::{ClusterIncarnation, Epoch};

use crate::core::connection::*;

#[test]
fn a_registration_is_over_when_another_run_of_attempts_begins_and_when_the_connection_is_given_up()
{
    let mut connection = Connection::idle(0);
    let send = |connection: &mut Connection, number| {
        let registration = Registration::new(ClusterIncarnation::new("c1"), Epoch::new(1), number);
        let sender = connection.send(registration);
        assert_eq!(sender.registration, number);
        assert!(connection.has_registration(number));
    };
    connection.begin("jm1:1");
    send(&mut connection, 1);
    // Of several registrations in a run the last one counts.
    send(&mut connection, 2);
    assert!(!connection.has_registration(1));
    connection.begin("jm1:1");
    assert!(!connection.has_registration(2) && !connection.has_registration(0));
    send(&mut connection, 3);
    connection.end();
    assert!(!connection.has_registration(3) && !connection.has_registration(0));
}

//! The registrations of a connection.

use tanist_ha::election::{ClusterIncarnation, Epoch};

use crate::core::connection::*;

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
    // Of several registrations in a run the last one counts.
    send(&mut connection, 2);
    assert!(!connection.is_of(1));
    connection.begin("jm1:1".to_owned());
    assert!(!connection.is_of(2) && !connection.is_of(0));
    send(&mut connection, 3);
    connection.end();
    assert!(!connection.is_of(3) && !connection.is_of(0));
}

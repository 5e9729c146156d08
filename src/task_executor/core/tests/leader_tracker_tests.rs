//! Which leader is followed, and which numbers its registrations get.

use tanist_gateway::fencing::HighestEpoch;
use tanist_ha::clock::Uptime;
use tanist_ha::election::Epoch;

use super::core_world::shown;
use crate::core::leader_tracker::*;
use crate::core::output::Output;

fn leader(epoch: u64, address: &str) -> Leader {
    Leader::new(Epoch::new(epoch), address.to_owned())
}

fn follow(tracker: &mut LeaderTracker, leader: Leader) -> Followed {
    tracker.follow(Uptime::START, leader, &mut Output::default())
}

#[test]
fn the_leader_of_an_older_term_is_not_followed() {
    let mut tracker = LeaderTracker::new(Uptime::START, HighestEpoch::default(), 0);
    assert_eq!(follow(&mut tracker, leader(2, "jm2:1")), Followed::Other);
    assert_eq!(follow(&mut tracker, leader(1, "jm1:1")), Followed::Older);
    assert_eq!(follow(&mut tracker, leader(2, "jm2:1")), Followed::Same);
    assert_eq!(tracker.address(), Some("jm2:1"));
    assert_eq!(follow(&mut tracker, leader(3, "jm1:1")), Followed::Other);
    assert_eq!(tracker.address(), Some("jm1:1"));
}

#[test]
fn a_leader_is_named_until_the_store_shows_none() {
    let terms = HighestEpoch::default();
    let mut tracker = LeaderTracker::new(Uptime::START, terms, 0);
    follow(&mut tracker, leader(1, "jm1:1"));
    let named = tracker.record_view(shown(1), &mut Output::default());
    assert_eq!(named, None);
    assert!(!tracker.is_named());
    assert_eq!(tracker.address(), Some("jm1:1"), "it is followed on");
    follow(&mut tracker, leader(1, "jm1:1"));
    assert!(tracker.is_named());
}

#[test]
fn registrations_are_sent_only_in_the_followed_leaders_term() {
    let terms = HighestEpoch::default();
    let mut tracker = LeaderTracker::new(Uptime::START, terms.clone(), 7);
    assert!(tracker.next_registration().is_err(), "there is no leader");
    follow(&mut tracker, leader(1, "jm1:1"));
    assert!(
        tracker.next_registration().is_err(),
        "its term is not shown"
    );
    terms.follow(&shown(1)).expect("the first");
    tracker.next_registration().expect("it is shown");
    terms.follow(&shown(2)).expect("a younger term");
    assert!(tracker.next_registration().is_err(), "it leads no more");
}

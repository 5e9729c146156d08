//! When a TaskExecutor without ResourceManager is reported.

use std::time::Duration;

use tanist_ha::clock::Uptime;

use crate::core::leaderless_timer::*;

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn it_is_reported_once_in_each_period_without_a_resource_manager() {
    let start = Uptime::START;
    let mut timer = LeaderlessTimer::new(TIMEOUT, start);
    assert_eq!(timer.review(start + TIMEOUT / 2, false), None);
    assert_eq!(timer.deadline(), Some(start + TIMEOUT));
    assert_eq!(timer.review(start + TIMEOUT, false), Some(TIMEOUT));
    assert_eq!(timer.review(start + TIMEOUT, false), None);
    assert_eq!(timer.review(start + TIMEOUT * 2, false), Some(TIMEOUT * 2));
    assert_eq!(timer.review(start + TIMEOUT * 4, true), None);
    assert_eq!(timer.deadline(), None);
    assert_eq!(timer.review(start + TIMEOUT * 5, false), None);
    assert_eq!(timer.review(start + TIMEOUT * 6, false), Some(TIMEOUT));
}

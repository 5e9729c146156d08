//! The order in which the wait for slots serves regions, without the regions.

use crate::core::slot_wait::SlotWait;

#[test]
fn the_rounds_of_a_head_begin_when_it_becomes_the_head() {
    let mut wait = SlotWait::new(2_000);
    assert_eq!(wait.round_ms(), 100);
    wait.set_heads(Some(3), None, 50);
    assert_eq!(wait.short(149), Some((3, 0)));
    assert_eq!(wait.short(150), Some((3, 1)));
    wait.set_heads(Some(3), None, 200);
    assert_eq!(wait.short(250), Some((3, 2)), "it is still the same one");
    assert_eq!(wait.next_round_ms(250), Some(350));
    wait.set_heads(Some(1), Some(2), 260);
    assert_eq!(
        (wait.short(260), wait.waiting(260)),
        (Some((1, 0)), Some((2, 0)))
    );
    wait.put_off(1_000);
    assert_eq!(wait.short(1_300), Some((1, 0)));
}

#[test]
fn the_timeout_does_not_run_while_there_is_room_and_begins_with_the_last_slot_that_is_left() {
    let mut wait = SlotWait::new(2_000);
    wait.set_room(true);
    wait.begin_event(false, 7);
    assert_eq!(wait.fails_from_ms(), None);
    wait.set_room(false);
    assert_eq!(wait.fails_from_ms(), Some(7));
    wait.begin_event(true, 9);
    assert_eq!(wait.fails_from_ms(), Some(9));
}

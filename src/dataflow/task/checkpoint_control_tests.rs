//! Which numbers a task takes up, saves, declines and forgets.

use super::*;

fn barrier(number: u64) -> CheckpointBarrier {
    CheckpointBarrier {
        number,
        ..CheckpointBarrier::default()
    }
}

fn source() -> CheckpointControl {
    let control = CheckpointControl::above(4);
    control.begin(true);
    control
}

fn is_refused(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused(_))
}

fn progress(control: &CheckpointControl) -> (u64, CheckpointProgress) {
    let status = control.status.borrow();
    (status.highest, status.progress.clone())
}

#[test]
fn a_trigger_is_accepted_while_the_source_runs_and_as_often_as_it_comes() {
    let injected = Answer::Injected(Ack {});
    let control = CheckpointControl::above(4);
    assert!(is_refused(&control.trigger(barrier(5))));
    control.begin(true);
    assert!(is_refused(&control.trigger(barrier(4))), "restored from it");
    for _ in 0..2 {
        assert_eq!(control.trigger(barrier(5)), injected);
    }
    assert_eq!(control.take_trigger(), Some(barrier(5)));
    assert_eq!(control.trigger(barrier(5)), injected);
    control.save(5, SubtaskSnapshot::default());
    assert_eq!(control.trigger(barrier(5)), injected);
    assert_eq!(control.take_trigger(), None);
    assert_eq!(control.trigger(barrier(7)), injected);
    assert!(is_refused(&control.trigger(barrier(6))));
    control.end_input();
    assert_eq!(control.take_trigger(), None);
    assert_eq!(control.trigger(barrier(8)), Answer::SourceEnded(Ack {}));
    assert!(control.status.borrow().input_ended);
    assert_eq!(progress(&control).0, 5);
}

#[test]
fn a_task_without_a_source_and_one_that_failed_refuse() {
    let control = CheckpointControl::above(0);
    control.begin(false);
    assert!(is_refused(&control.trigger(barrier(1))));
    let control = source();
    control.close();
    assert!(is_refused(&control.trigger(barrier(5))));
}

#[test]
fn what_is_aborted_is_not_taken_up_and_not_saved() {
    let control = source();
    control.trigger(barrier(5));
    control.abort(5);
    assert_eq!(control.take_trigger(), None);
    assert_eq!(progress(&control), (5, CheckpointProgress::Aborted));
    assert!(is_refused(&control.trigger(barrier(5))));

    control.trigger(barrier(6));
    control.take_trigger();
    assert!(control.is_wanted(6));
    control.abort(6);
    assert!(!control.is_wanted(6));
    control.save(6, SubtaskSnapshot::default());
    assert_eq!(progress(&control), (6, CheckpointProgress::Aborted));

    control.trigger(barrier(7));
    control.take_trigger();
    control.save(7, SubtaskSnapshot::default());
    control.abort(7);
    control.abort(6);
    let saved = CheckpointProgress::Saved(Arc::default());
    assert_eq!(progress(&control), (7, saved), "it is kept");
}

#[test]
fn a_number_whose_state_is_encoded_is_under_way_until_it_is_saved_or_aborted() {
    let control = source();
    control.trigger(barrier(5));
    control.take_trigger();
    control.freeze(5);
    assert_eq!(progress(&control), (5, CheckpointProgress::Encoding));
    assert_eq!(control.trigger(barrier(5)), Answer::Injected(Ack {}));
    assert!(control.is_wanted(5));
    control.save(5, SubtaskSnapshot::default());
    let saved = CheckpointProgress::Saved(Arc::default());
    assert_eq!(progress(&control), (5, saved));

    control.trigger(barrier(6));
    control.take_trigger();
    control.freeze(6);
    control.abort(6);
    control.save(6, SubtaskSnapshot::default());
    assert_eq!(progress(&control), (6, CheckpointProgress::Aborted));

    control.trigger(barrier(7));
    control.take_trigger();
    control.freeze(7);
    control.decline(7, "damaged".to_owned());
    let declined = CheckpointProgress::Declined("damaged".to_owned());
    assert_eq!(progress(&control), (7, declined));
}

#[test]
fn a_source_that_has_ended_is_still_saving_what_it_took_up_before() {
    let control = source();
    control.trigger(barrier(5));
    control.take_trigger();
    control.freeze(5);
    control.end_input();
    assert_eq!(control.trigger(barrier(5)), Answer::Injected(Ack {}));
    assert_eq!(control.trigger(barrier(6)), Answer::SourceEnded(Ack {}));
}

#[test]
fn what_is_written_is_not_kept_and_counts_as_saved() {
    let control = source();
    control.trigger(barrier(5));
    control.take_trigger();
    control.save(5, SubtaskSnapshot::default());
    let mut status = control.status();
    status.mark_unchanged();
    control.release(4, None);
    assert!(matches!(progress(&control).1, CheckpointProgress::Saved(_)));
    control.release(5, None);
    assert_eq!(progress(&control), (5, CheckpointProgress::Written));
    assert!(!status.has_changed().expect("it lives"));
    assert_eq!(control.trigger(barrier(5)), Answer::Injected(Ack {}));
    control.trigger(barrier(6));
    control.release(6, None);
    control.abort(6);
    assert_eq!(progress(&control), (6, CheckpointProgress::Aborted));
}

#[test]
fn only_a_number_for_which_channels_are_blocked_is_declined() {
    let control = CheckpointControl::above(0);
    control.begin(false);
    control.open(2);
    control.decline_blocked("no JobMaster");
    assert_eq!(progress(&control), (0, CheckpointProgress::Unheard));
    assert_eq!(control.arrive(0, barrier(1)), None);
    assert_eq!(progress(&control), (1, CheckpointProgress::Blocked));
    assert!(control.reading(|is_blocked| is_blocked(0)));
    control.decline_blocked("no JobMaster");
    let declined = CheckpointProgress::Declined("no JobMaster".to_owned());
    assert_eq!(progress(&control), (1, declined));
    assert!(!control.reading(|is_blocked| is_blocked(0)));
    assert_eq!(control.arrive(1, barrier(1)), None);
}

#[test]
fn what_is_saved_late_leaves_the_channels_of_a_higher_number_blocked_and_known() {
    for encodes in [false, true] {
        let control = CheckpointControl::above(0);
        control.begin(false);
        control.open(2);
        assert_eq!(control.arrive(0, barrier(3)), None);
        assert_eq!(control.arrive(1, barrier(3)), Some(barrier(3)));
        if encodes {
            control.freeze(3);
        }
        // The JobMaster has aborted 3, which this task does not know, and triggered 4.
        assert_eq!(control.arrive(0, barrier(4)), None);
        assert!(!control.is_wanted(3));
        control.freeze(3);
        control.save(3, SubtaskSnapshot::default());
        control.decline(3, "damaged".to_owned());
        assert_eq!(progress(&control), (4, CheckpointProgress::Blocked));
        assert!(control.reading(|is_blocked| is_blocked(0)));
        control.decline_blocked("no JobMaster");
        let declined = CheckpointProgress::Declined("no JobMaster".to_owned());
        assert_eq!(progress(&control), (4, declined));
        assert!(!control.reading(|is_blocked| is_blocked(0)));
    }
}

#[test]
fn an_abort_of_a_lower_number_leaves_the_channels_of_a_higher_one_blocked() {
    let control = CheckpointControl::above(0);
    control.open(2);
    control.arrive(0, barrier(3));
    control.abort(2);
    assert_eq!(progress(&control), (3, CheckpointProgress::Blocked));
    control.abort(3);
    assert_eq!(progress(&control), (3, CheckpointProgress::Aborted));
    assert!(!control.reading(|is_blocked| is_blocked(0)));
}

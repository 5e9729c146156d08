//! Checkpoints of two sources and a task that aligns their barriers, on the real exchange: what is saved, what releases
//! a blocked channel, and what a restored task continues with.

use std::time::Duration;

use tanist_proto::v1::{CheckpointCommittable, Committable, SubtaskSnapshot};

use super::region::*;
use super::scripted::{Feed, Waiting, position_in, records_in};
use super::*;

fn injected() -> Answer {
    Answer::Injected(Ack {})
}

#[tokio::test]
async fn a_snapshot_covers_exactly_the_records_before_the_barriers() {
    for at in BOTH {
        let region = Region::start(at).await;
        region.feeds[0].feed(10);
        region.feeds[1].feed(7);
        region.collector.has(17).await;
        assert_eq!(position_in(&*region.cut(0, 1).await), 10);
        region.feeds[0].feed(5);
        blocked(&region.sink, 1).await;
        region.feeds[1].feed(2);
        region.collector.has(19).await;
        assert_eq!(
            region.collector.records(),
            region.records([10, 9]),
            "{at:?}"
        );
        assert_eq!(position_in(&*region.cut(1, 1).await), 9);
        let snapshot = saved(&region.sink, 1).await;
        assert_eq!(records_in(&snapshot), region.records([10, 9]));
        assert_eq!(snapshot.vertex_id, JobVertexId::from_bits(2).to_string());
        region.collector.has(24).await;
        assert_eq!(region.collector.records(), region.records([15, 9]));
    }
}

#[tokio::test]
async fn under_full_load_each_snapshot_equals_what_the_sources_had_read() {
    const RECORDS: i64 = 2_000;
    for at in BOTH {
        let region = Region::start(at).await;
        region.feeds.iter().for_each(|feed| feed.feed(RECORDS));
        let mut number = 0;
        while region.collector.records().len() < 2 * RECORDS as usize {
            number += 1;
            let mut positions = [0; 2];
            for (source, position) in positions.iter_mut().enumerate() {
                *position = position_in(&*region.cut(source, number).await);
            }
            let snapshot = saved(&region.sink, number).await;
            assert_eq!(records_in(&snapshot), region.records(positions), "{at:?}");
        }
        assert!(number > 1, "it was over too soon");
    }
}

#[tokio::test]
async fn an_abort_releases_the_channels_and_the_late_barrier_is_ignored() {
    for at in BOTH {
        let region = Region::start(at).await;
        region.cut(0, 1).await;
        region.feeds[0].feed(3);
        blocked(&region.sink, 1).await;
        region.sink.abort_checkpoint(1);
        region.collector.has(3).await;
        region.cut(1, 1).await;
        region.feeds[1].feed(1);
        region.collector.has(4).await;
        let status = region.sink.checkpoints().borrow().clone();
        assert_eq!(status.highest, 1);
        assert_eq!(status.progress, CheckpointProgress::Aborted);
        region.cut(0, 2).await;
        region.cut(1, 2).await;
        saved(&region.sink, 2).await;
    }
}

#[tokio::test]
async fn a_blocked_number_is_declined_on_demand() {
    let region = Region::start(At::SameTaskManager).await;
    region.sink.decline_blocked("there is none");
    region.cut(0, 1).await;
    region.feeds[0].feed(3);
    blocked(&region.sink, 1).await;
    region.sink.decline_blocked("no JobMaster");
    region.collector.has(3).await;
    let progress = region.sink.checkpoints().borrow().progress.clone();
    assert_eq!(
        progress,
        CheckpointProgress::Declined("no JobMaster".to_owned())
    );
}

#[tokio::test]
async fn an_ended_channel_counts_before_and_after_the_barrier_of_another() {
    for at in BOTH {
        let region = Region::start(at).await;
        region.feeds[1].feed(4);
        region.collector.has(4).await;
        region.cut(1, 1).await;
        blocked(&region.sink, 1).await;
        region.feeds[0].feed(2);
        region.feeds[0].end();
        let snapshot = saved(&region.sink, 1).await;
        assert_eq!(records_in(&snapshot), region.records([2, 4]), "{at:?}");
        reached(&region.sources[0], |it| it.input_ended).await;
        assert_eq!(region.trigger(0, 2), Answer::SourceEnded(Ack {}));
        region.feeds[1].feed(1);
        region.collector.has(7).await;
        region.cut(1, 2).await;
        let snapshot = saved(&region.sink, 2).await;
        assert_eq!(records_in(&snapshot), region.records([2, 5]));
        region.feeds[1].end();
        assert!(matches!(
            region.sink.ended().await,
            TaskStatus::Finished { .. }
        ));
        let last = region.sink.checkpoints().borrow().clone();
        assert!(last.input_ended && last.highest == 2, "it stays: {last:?}");
        assert!(matches!(last.progress, CheckpointProgress::Saved(_)));
    }
}

#[tokio::test]
async fn a_higher_number_makes_a_task_give_a_lower_one_up() {
    for at in BOTH {
        let region = Region::start(at).await;
        region.cut(0, 1).await;
        region.feeds[0].feed(3);
        blocked(&region.sink, 1).await;
        region.cut(1, 2).await;
        region.collector.has(3).await;
        blocked(&region.sink, 2).await;
        region.cut(0, 2).await;
        let snapshot = saved(&region.sink, 2).await;
        assert_eq!(records_in(&snapshot), region.records([3, 0]), "{at:?}");
        let answer = region.trigger(1, 1);
        assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
    }
}

#[tokio::test]
async fn restored_tasks_continue_behind_the_snapshot_and_equal_a_run_without_a_failure() {
    for at in BOTH {
        let region = Region::start(at).await;
        region.feeds[0].feed(10);
        region.feeds[1].feed(7);
        let sources = [region.cut(0, 5).await, region.cut(1, 5).await];
        region.feeds.iter().for_each(|feed| feed.feed(1));
        let sink = saved(&region.sink, 5).await;
        let expected = region.records(sources.each_ref().map(|it| position_in(it)));
        assert_eq!(records_in(&sink), expected);
        let [first, second] = sources.map(|it| (*it).clone());
        drop(region);

        let from = (5, [first, second, (*sink).clone()]);
        let region = Region::restore(at, Waiting::default(), Some(from)).await;
        assert_eq!(region.sink.checkpoints().borrow().highest, 5);
        let answer = region.trigger(0, 5);
        assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
        assert_eq!(region.collector.records(), expected);
        region.feeds.iter().for_each(|feed| feed.feed(20));
        region.collector.has(expected.len() + 40).await;
        region.cut(0, 6).await;
        region.cut(1, 6).await;
        let snapshot = saved(&region.sink, 6).await;
        assert_eq!(snapshot.operators.len(), 1);
        assert_eq!(records_in(&snapshot), region.collector.records());
    }
}

#[tokio::test]
async fn a_subtask_that_had_ended_opens_nothing_and_its_channel_ends() {
    for at in BOTH {
        let region = Region::start(at).await;
        region.feeds[0].feed(2);
        region.feeds[0].end();
        region.collector.has(2).await;
        let running = region.cut(1, 3).await;
        let sink = saved(&region.sink, 3).await;
        let ended = SubtaskSnapshot {
            vertex_id: running.vertex_id.clone(),
            ended: true,
            output: vec![Committable {
                pending_path: "pending".to_owned(),
                final_path: "final".to_owned(),
            }],
            committables: vec![CheckpointCommittable {
                uid: "sink".to_owned(),
                ..CheckpointCommittable::default()
            }],
            ..SubtaskSnapshot::default()
        };
        let output = SinkOutput {
            committables: ended.output.clone(),
            checkpoint_committables: ended.committables.clone(),
        };
        drop(region);

        let from = (3, [ended, (*running).clone(), (*sink).clone()]);
        let region = Region::restore(at, Waiting::default(), Some(from)).await;
        let ended = region.sources[0].ended().await;
        assert_eq!(ended, TaskStatus::Finished { output });
        assert!(!region.feeds[0].is_open() && region.feeds[1].is_open());
        assert_eq!(region.trigger(0, 4), Answer::SourceEnded(Ack {}));
        region.feeds[1].feed(3);
        region.collector.has(5).await;
        region.cut(1, 4).await;
        let snapshot = saved(&region.sink, 4).await;
        assert_eq!(records_in(&snapshot), region.records([2, 3]), "{at:?}");
    }
}

#[tokio::test]
async fn of_a_region_that_had_ended_no_partition_is_left() {
    for at in BOTH {
        let region = Region::start(at).await;
        let running = [region.cut(0, 3).await, region.cut(1, 3).await];
        let sink = saved(&region.sink, 3).await;
        drop(region);
        let ended = [&running[0], &running[1], &sink].map(|it| SubtaskSnapshot {
            vertex_id: it.vertex_id.clone(),
            subtask: it.subtask,
            ended: true,
            ..SubtaskSnapshot::default()
        });
        let region = Region::restore(at, Waiting::default(), Some((3, ended))).await;
        for task in region.sources.iter().chain([&region.sink]) {
            let ended = task.ended().await;
            assert!(matches!(ended, TaskStatus::Finished { .. }), "{ended:?}");
        }
        wait_until("no partition", || region.partitions() == 0).await;
    }
}

#[tokio::test]
async fn a_trigger_interrupts_a_source_that_waits() {
    for waiting in [Waiting::Notified, Waiting::ForAnHour, Waiting::Pending] {
        let region = Region::restore(At::SameTaskManager, waiting, None).await;
        // Without this they may not wait yet.
        tokio::time::sleep(Duration::from_millis(20)).await;
        for number in 1..4 {
            region.cut(0, number).await;
            region.cut(1, number).await;
            saved(&region.sink, number).await;
        }
    }
}

#[tokio::test]
async fn a_task_whose_operator_can_not_be_saved_declines_and_goes_on() {
    let region = Region::start(At::SameTaskManager).await;
    region.collector.fail_to_save(true);
    region.cut(0, 1).await;
    region.cut(1, 1).await;
    let is_declined = |it: &CheckpointStatus| {
        let declined = matches!(&it.progress, CheckpointProgress::Declined(reason)
            if reason.contains("collect") && reason.contains("the disk is full"));
        declined && it.highest == 1
    };
    reached(&region.sink, is_declined).await;
    region.feeds[0].feed(1);
    region.collector.has(1).await;
    region.collector.fail_to_save(false);
    region.cut(0, 2).await;
    region.cut(1, 2).await;
    saved(&region.sink, 2).await;
}

#[tokio::test]
async fn an_abort_is_heard_while_the_task_waits_for_room_in_a_channel() {
    let region = Region::start(At::OtherTaskManager).await;
    // The sink takes nothing from the first source while it waits for the second.
    region.cut(0, 1).await;
    blocked(&region.sink, 1).await;
    const RECORDS: usize = 40 * 4096;
    region.feeds[0].in_batches_of(4096);
    region.feeds[0].feed(RECORDS as i64);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(region.trigger(0, 2), injected());
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(
        region.sources[0].checkpoints().borrow().highest,
        1,
        "it waits"
    );
    region.sources[0].abort_checkpoint(2);
    let status = region.sources[0].checkpoints().borrow().clone();
    assert_eq!(status.highest, 2);
    assert_eq!(status.progress, CheckpointProgress::Aborted);
    region.sink.abort_checkpoint(1);
    region.collector.has(RECORDS).await;
    region.cut(1, 2).await;
    blocked(&region.sink, 2).await;
    assert_eq!(region.sink.checkpoints().borrow().highest, 2);
}

#[tokio::test]
async fn a_task_without_a_source_refuses_triggers_and_ended_inputs_end_the_region() {
    let region = Region::start(At::SameTaskManager).await;
    let answer = region.sink.trigger(barrier(1));
    assert!(matches!(answer, Answer::Refused(_)), "it has no source");
    region.feeds.iter().for_each(Feed::end);
    assert!(matches!(
        region.sink.ended().await,
        TaskStatus::Finished { .. }
    ));
    wait_until("all is read", || region.partitions() == 0).await;
}

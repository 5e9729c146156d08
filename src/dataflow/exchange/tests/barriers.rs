//! Barriers over real channels: their order among records, and channels that are blocked for a checkpoint.

use super::*;

fn barrier(number: u64) -> CheckpointBarrier {
    CheckpointBarrier {
        number,
        newest: number - 1,
        floor: 1,
        ..CheckpointBarrier::default()
    }
}

/// Returns what a gate delivers next, as text; channels with these numbers are blocked.
async fn next(gate: &mut InputGate, blocked: &[usize]) -> String {
    let reading = async {
        loop {
            match gate.poll(|channel| blocked.contains(&channel)) {
                Ok(Input::Idle) => gate.readable().await,
                Ok(Input::Batch(batch)) => {
                    let mut line = Vec::new();
                    crate::record::write_lines(&batch, "", &mut line);
                    return String::from_utf8_lossy(&line).trim().to_owned();
                }
                Ok(Input::Barrier(channel, it)) => {
                    assert_eq!(it, barrier(it.number));
                    return format!("barrier {} of channel {channel}", it.number);
                }
                Ok(other) => return format!("{other:?}"),
                Err(error) => return error.cause,
            }
        }
    };
    let reading = tokio::time::timeout(Duration::from_secs(60), reading);
    reading.await.expect("something comes")
}

/// One partition for each of two channels, both read by the same gate.
async fn two_channels(
    producer: &TaskManager,
    consumer: &TaskManager,
) -> ([PartitionWriter; 2], InputGate) {
    let requests = [0, 1].map(|subtask| {
        let mut request = request(&producer.location, attempt(1));
        request.partition.subtask = subtask;
        request
    });
    let writers = [0, 1].map(|subtask| {
        let partition = PartitionId {
            subtask,
            ..partition()
        };
        let exchange = producer.runtime.exchange();
        let registered = exchange.register(partition, attempt(1), [0]);
        registered.expect("nothing newer is there")
    });
    let exchange = consumer.runtime.exchange();
    let gate = exchange.open(requests.into(), &(cluster(), Epoch::new(1)));
    (writers, gate)
}

#[tokio::test]
async fn a_barrier_stays_between_the_records_around_it_in_memory_and_over_tcp() {
    let managers = TaskManager::start_many::<2>().await;
    for consumer in &managers {
        let writer = register(&managers[0], attempt(1));
        let mut gate = open(consumer, request(&managers[0].location, attempt(1)), 1);
        let writing = async {
            writer.barrier(barrier(1));
            for n in 0..100 {
                writer.push(0, numbers(n)).await.expect("taken");
                if n % 10 == 9 {
                    writer.signal(TimeSignal::Watermark(n));
                    writer.barrier(barrier(2 + n as u64 / 10));
                }
            }
            writer.finish();
        };
        let reading = async {
            assert_eq!(next(&mut gate, &[]).await, "barrier 1 of channel 0");
            for n in 0..100 {
                assert_eq!(next(&mut gate, &[]).await, n.to_string());
                if n % 10 == 9 {
                    let time = format!("Time(Watermark({n}))");
                    assert_eq!(next(&mut gate, &[]).await, time);
                    let expected = format!("barrier {} of channel 0", 2 + n / 10);
                    assert_eq!(next(&mut gate, &[]).await, expected);
                }
            }
            assert_eq!(next(&mut gate, &[]).await, "ChannelEnded(0)");
            assert_eq!(next(&mut gate, &[]).await, "Ended");
        };
        tokio::join!(writing, reading);
        drop(gate);
        let exchange = managers[0].runtime.exchange();
        exchange.release(partition().job, Generation::new(1));
    }
}

#[tokio::test]
async fn a_barrier_arrives_without_credit_and_before_the_first_record() {
    let managers = TaskManager::start_many::<2>().await;
    let writer = register(&managers[0], attempt(1));
    let mut gate = open(&managers[1], request(&managers[0].location, attempt(1)), 1);
    writer.barrier(barrier(1));
    assert_eq!(next(&mut gate, &[]).await, "barrier 1 of channel 0");
}

#[tokio::test]
async fn nothing_is_taken_from_a_blocked_channel_but_its_failure_is_found() {
    let managers = TaskManager::start_many::<2>().await;
    for consumer in &managers {
        let ([one, other], mut gate) = two_channels(&managers[0], consumer).await;
        one.push(0, numbers(1)).await.expect("there is a place");
        wait_until("both channels are open", || {
            let idle = gate.poll(|_| true);
            one.is_read() && other.is_read() && matches!(idle, Ok(Input::Idle))
        })
        .await;
        other.push(0, numbers(2)).await.expect("there is a place");
        assert_eq!(next(&mut gate, &[0]).await, "2");
        assert_eq!(next(&mut gate, &[]).await, "1");
        one.fail("it overflowed");
        assert_eq!(next(&mut gate, &[0]).await, "it overflowed");
        let exchange = managers[0].runtime.exchange();
        exchange.release(partition().job, Generation::new(1));
    }
}

#[tokio::test]
async fn a_barrier_that_is_not_above_the_last_one_fails_a_channel_over_tcp() {
    let managers = TaskManager::start_many::<2>().await;
    let writer = register(&managers[0], attempt(1));
    let mut gate = open(&managers[1], request(&managers[0].location, attempt(1)), 1);
    writer.barrier(barrier(2));
    writer.barrier(barrier(2));
    let failed = loop {
        match next(&mut gate, &[]).await {
            said if said.starts_with("barrier") => {}
            other => break other,
        }
    };
    assert!(
        failed.contains("the barrier of 2 after that of 2"),
        "{failed}"
    );
}

#[tokio::test]
async fn time_that_a_channel_held_back_comes_before_its_end() {
    let managers = TaskManager::start_many::<2>().await;
    for consumer in &managers {
        let ([one, other], mut gate) = two_channels(&managers[0], consumer).await;
        one.signal(TimeSignal::Watermark(100));
        other.signal(TimeSignal::Watermark(50));
        assert_eq!(next(&mut gate, &[]).await, "Time(Watermark(50))");
        one.barrier(barrier(3));
        assert_eq!(next(&mut gate, &[]).await, "barrier 3 of channel 0");
        // Its end completes the checkpoint.
        other.finish();
        assert_eq!(next(&mut gate, &[0]).await, "Time(Watermark(100))");
        assert_eq!(next(&mut gate, &[0]).await, "ChannelEnded(1)");
        let exchange = managers[0].runtime.exchange();
        exchange.release(partition().job, Generation::new(1));
    }
}

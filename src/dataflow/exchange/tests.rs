//! The exchange over real sockets: which consumers are served, which are refused, and what a lost connection
//! causes.

mod barriers;

use std::time::Duration;

use tanist_proto::v1::{CheckpointBarrier, TaskManagerLocation};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::testing::{TaskManager, batch, cluster, ints, wait_until};
use crate::time::TimeSignal;

fn partition() -> PartitionId {
    PartitionId {
        job: JobId::from_bits(1),
        vertex: JobVertexId::from_bits(2),
        subtask: 0,
        edge: 0,
    }
}

fn attempt(generation: u64) -> Attempt {
    Attempt {
        job_incarnation: 1,
        generation: Generation::new(generation),
    }
}

fn numbers(n: i64) -> arrow_array::RecordBatch {
    batch([("n", ints(&[n]))])
}

fn request(location: &TaskManagerLocation, attempt: Attempt) -> ChannelRequest {
    ChannelRequest {
        producer: "the producer".to_owned(),
        partition: partition(),
        attempt,
        target_subtask: 0,
        location: location.clone(),
        schema: numbers(0).schema(),
        is_kept: false,
    }
}

fn open(consumer: &TaskManager, request: ChannelRequest, epoch: u64) -> InputGate {
    consumer
        .runtime
        .exchange()
        .open(vec![request], &(cluster(), Epoch::new(epoch)))
}

fn register(producer: &TaskManager, attempt: Attempt) -> PartitionWriter {
    let registered = producer
        .runtime
        .exchange()
        .register(partition(), attempt, [0]);
    registered.expect("nothing newer is there")
}

/// Returns the numbers of all batches until the end, or the error that ended the input early.
async fn read(gate: &mut InputGate) -> Result<Vec<i64>, InputError> {
    let mut numbers = Vec::new();
    let reading = async {
        loop {
            match gate.poll(|_| false)? {
                Input::Batch(batch) => {
                    let mut line = Vec::new();
                    crate::record::write_lines(&batch, "", &mut line);
                    let line = String::from_utf8_lossy(&line);
                    numbers.extend(line.lines().filter_map(|line| line.parse::<i64>().ok()));
                }
                Input::Time(_) | Input::Barrier(..) | Input::ChannelEnded(_) => {}
                Input::Idle => gate.readable().await,
                Input::Ended => return Ok(numbers),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reading)
        .await
        .expect("ends in time")
}

async fn refusal(consumer: &TaskManager, request: ChannelRequest, epoch: u64) -> String {
    read(&mut open(consumer, request, epoch))
        .await
        .expect_err("refused")
        .cause
}

#[tokio::test]
async fn records_arrive_in_order_in_memory_and_over_tcp() {
    let managers = TaskManager::start_many::<2>().await;
    for consumer in &managers {
        let writer = register(&managers[0], attempt(1));
        let mut gate = open(consumer, request(&managers[0].location, attempt(1)), 1);
        let writing = async {
            for n in 0..200 {
                writer.push(0, numbers(n)).await.expect("taken");
            }
            writer.finish();
        };
        let (read, ()) = tokio::join!(read(&mut gate), writing);
        assert_eq!(read.expect("to the end"), (0..200).collect::<Vec<_>>());
        drop(gate);
        let exchange = managers[0].runtime.exchange();
        wait_until("the partition is consumed", || {
            exchange.partition_count() == 0
        })
        .await;
    }
}

#[tokio::test]
async fn a_partition_waits_for_its_consumer_after_its_task_has_finished() {
    let managers = TaskManager::start_many::<2>().await;
    let writer = register(&managers[0], attempt(1));
    writer.push(0, numbers(7)).await.expect("there is a place");
    writer.finish();
    let mut unread = managers[0].runtime.exchange().unread_partitions();
    assert_eq!(*unread.borrow(), 1);
    let mut gate = open(&managers[1], request(&managers[0].location, attempt(1)), 1);
    assert_eq!(read(&mut gate).await, Ok(vec![7]));
    let is_read = unread.wait_for(|unread| *unread == 0);
    let taken = tokio::time::timeout(Duration::from_secs(60), is_read);
    taken
        .await
        .expect("it was read")
        .expect("the exchange lives");
}

#[tokio::test]
async fn a_released_partition_is_gone_and_a_younger_one_stays() {
    let manager = TaskManager::start("tm").await;
    let exchange = manager.runtime.exchange();
    let mut unread = exchange.unread_partitions();
    register(&manager, attempt(3)).finish();
    assert_eq!(*unread.borrow_and_update(), 1);
    exchange.release(partition().job, Generation::new(2));
    exchange.release_task(partition().job, partition().vertex, 1, Generation::new(9));
    assert_eq!(exchange.partition_count(), 1);
    exchange.release(partition().job, Generation::new(3));
    assert_eq!(exchange.partition_count(), 0);
    assert_eq!(*unread.borrow_and_update(), 0);
}

#[tokio::test]
async fn a_consumer_waits_for_a_producer_that_is_not_there_yet_and_is_not_served_an_older_one() {
    let managers = TaskManager::start_many::<2>().await;
    for (consumer, generation) in managers.iter().zip([1, 3]) {
        let older = register(&managers[0], attempt(generation));
        older.push(0, numbers(1)).await.expect("there is a place");
        let wanted = request(&managers[0].location, attempt(generation + 1));
        let mut gate = open(consumer, wanted, 1);
        let waiting = tokio::time::timeout(Duration::from_millis(700), read(&mut gate));
        assert!(waiting.await.is_err(), "an older generation was served");

        let younger = register(&managers[0], attempt(generation + 1));
        let cause = older
            .push(0, numbers(1))
            .await
            .expect_err("superseded")
            .to_string();
        assert!(cause.contains("superseded by generation"), "{cause}");
        younger.push(0, numbers(2)).await.expect("there is a place");
        younger.finish();
        assert_eq!(read(&mut gate).await, Ok(vec![2]));
    }
}

#[tokio::test]
async fn a_consumer_of_an_older_generation_is_refused() {
    let managers = TaskManager::start_many::<2>().await;
    let _younger = register(&managers[0], attempt(2));
    for consumer in &managers {
        let cause = refusal(consumer, request(&managers[0].location, attempt(1)), 1).await;
        assert!(
            cause.contains("generation 1 was superseded by 2"),
            "{cause}"
        );
    }
    let exchange = managers[0].runtime.exchange();
    let older = exchange
        .register(partition(), attempt(1), [0])
        .expect_err("refused");
    assert!(
        older.to_string().contains("generation 2 is there"),
        "{older}"
    );
}

#[tokio::test]
async fn a_second_consumer_another_job_incarnation_and_another_task_manager_are_refused() {
    let managers = TaskManager::start_many::<2>().await;
    let _writer = register(&managers[0], attempt(1));
    let location = &managers[0].location;

    let mut wrong = request(location, attempt(1));
    wrong.attempt.job_incarnation = 2;
    let cause = refusal(&managers[1], wrong, 1).await;
    assert!(cause.contains("job incarnation 1, not 2"), "{cause}");

    let mut wrong = request(location, attempt(1));
    wrong.location.incarnation = "second".to_owned();
    let cause = refusal(&managers[1], wrong, 1).await;
    assert!(cause.contains("tm0 in incarnation first"), "{cause}");

    let mut wrong = request(location, attempt(1));
    wrong.target_subtask = 5;
    let cause = refusal(&managers[1], wrong, 1).await;
    assert!(cause.contains("no channel for subtask 5"), "{cause}");

    let mut first = open(&managers[0], request(location, attempt(1)), 1);
    wait_until("the first consumer is there", || {
        matches!(first.poll(|_| false), Ok(Input::Idle)) && first.opened()
    })
    .await;
    for consumer in &managers {
        let cause = refusal(consumer, request(location, attempt(1)), 1).await;
        assert!(cause.contains("already has a consumer"), "{cause}");
    }
}

#[tokio::test]
async fn a_term_that_is_over_is_not_served_until_the_consumer_hears_of_the_next() {
    let managers = TaskManager::start_many::<2>().await;
    managers[0]
        .gate
        .observe(&cluster(), Epoch::new(2))
        .expect("a first term");
    let writer = register(&managers[0], attempt(1));
    writer.push(0, numbers(5)).await.expect("there is a place");
    writer.finish();

    let mut gate = open(&managers[1], request(&managers[0].location, attempt(1)), 1);
    let waiting = tokio::time::timeout(Duration::from_millis(300), read(&mut gate));
    assert!(
        waiting.await.is_err(),
        "epoch 1 was served after epoch 2 had been heard"
    );

    managers[1]
        .gate
        .observe(&cluster(), Epoch::new(3))
        .expect("a younger term");
    let waiting = tokio::time::timeout(Duration::from_millis(300), read(&mut gate));
    assert!(
        waiting.await.is_err(),
        "epoch 3 was served though the producer's store does not show it"
    );
    assert_eq!(managers[0].gate.highest(), Some((cluster(), Epoch::new(2))));

    managers[0]
        .gate
        .observe(&cluster(), Epoch::new(3))
        .expect("its store shows it now");
    assert_eq!(read(&mut gate).await, Ok(vec![5]));
}

#[tokio::test]
async fn another_cluster_is_refused() {
    let managers = TaskManager::start_many::<2>().await;
    let other = ClusterIncarnation::new("other");
    managers[0]
        .gate
        .observe(&other, Epoch::new(1))
        .expect("a first term");
    let cause = refusal(&managers[1], request(&managers[0].location, attempt(1)), 1).await;
    assert!(cause.contains("this process belongs to other"), "{cause}");
}

#[tokio::test]
async fn records_of_another_shape_are_refused() {
    let managers = TaskManager::start_many::<2>().await;
    let writer = register(&managers[0], attempt(1));
    writer
        .push(0, batch([("m", ints(&[1]))]))
        .await
        .expect("there is a place");
    let cause = refusal(&managers[1], request(&managers[0].location, attempt(1)), 1).await;
    assert!(cause.contains("(m: int64) where (n: int64)"), "{cause}");
}

#[tokio::test]
async fn a_failed_or_stopped_producer_breaks_its_consumers_off_with_its_reason() {
    let managers = TaskManager::start_many::<2>().await;
    for consumer in &managers {
        let writer = register(&managers[0], attempt(1));
        let mut gate = open(consumer, request(&managers[0].location, attempt(1)), 1);
        let (read, ()) = tokio::join!(read(&mut gate), async { writer.fail("it overflowed") });
        let error = read.expect_err("ended early");
        assert_eq!(
            error.to_string(),
            "input from the producer ended early: it overflowed"
        );
        managers[0]
            .runtime
            .exchange()
            .release(partition().job, Generation::new(1));

        let writer = register(&managers[0], attempt(1));
        let mut gate = open(consumer, request(&managers[0].location, attempt(1)), 1);
        wait_until("the channel is open", || {
            writer.is_read() && matches!(gate.poll(|_| false), Ok(Input::Idle))
        })
        .await;
        drop(writer);
        let error = read_error(&mut gate).await;
        assert!(error.contains("its producer was stopped"), "{error}");
    }
}

async fn read_error(gate: &mut InputGate) -> String {
    read(gate).await.expect_err("ended early").cause
}

/// Starts a relay to the producer and returns its location. The first connection is the consumer's. Cutting it
/// leaves both ends alive.
async fn relay_to(
    producer: &TaskManager,
) -> (
    TaskManagerLocation,
    impl Future<Output = (TcpStream, TcpStream)> + Send + 'static,
) {
    let relay = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let mut location = producer.location.clone();
    let behind = std::mem::replace(
        &mut location.data_address,
        relay.local_addr().expect("bound").to_string(),
    );
    let connections = async move {
        let (near, _) = relay.accept().await.expect("accepted");
        let far = TcpStream::connect(behind).await.expect("connected");
        (near, far)
    };
    (location, connections)
}

#[tokio::test]
async fn a_connection_that_is_cut_breaks_the_consumer_off_naming_the_producer() {
    let [producer, consumer] = TaskManager::start_many::<2>().await;
    let writer = register(&producer, attempt(1));
    let (location, connections) = relay_to(&producer).await;
    let relaying = tokio::spawn(async move {
        let (mut near, mut far) = connections.await;
        let copying = tokio::io::copy_bidirectional(&mut near, &mut far);
        copying.await.ok();
    });
    let mut gate = open(&consumer, request(&location, attempt(1)), 1);
    writer.push(0, numbers(1)).await.expect("there is a place");
    wait_until("the batch arrives", || {
        matches!(gate.poll(|_| false), Ok(Input::Batch(_)))
    })
    .await;
    relaying.abort();
    let error = read(&mut gate).await.expect_err("cut");
    assert_eq!(error.producer, "the producer");
    assert!(
        error.cause.contains("connection to") && error.cause.contains("lost"),
        "{error}"
    );
    // The rest of the channel is never served again.
    let again = refusal(&consumer, request(&producer.location, attempt(1)), 1).await;
    assert!(again.contains("already has a consumer"), "{again}");
}

#[tokio::test]
async fn a_connection_of_which_the_consumer_does_not_know_that_it_is_lost_ends_the_producer() {
    let [producer, consumer] = TaskManager::start_many::<2>().await;
    let writer = register(&producer, attempt(1));
    let (location, connections) = relay_to(&producer).await;
    let (cut, is_cut) = tokio::sync::oneshot::channel::<()>();
    let relaying = tokio::spawn(async move {
        let (mut near, mut far) = connections.await;
        tokio::select! {
            ended = tokio::io::copy_bidirectional(&mut near, &mut far) => panic!("{ended:?}"),
            cut = is_cut => cut.expect("the test lives"),
        }
        far.set_zero_linger().expect("a socket of TCP");
        drop(far);
        near
    });
    let mut gate = open(&consumer, request(&location, attempt(1)), 1);
    writer.push(0, numbers(1)).await.expect("there is a place");
    wait_until("the batch arrives", || {
        matches!(gate.poll(|_| false), Ok(Input::Batch(_)))
    })
    .await;
    cut.send(()).expect("the relay lives");
    let _near = relaying.await.expect("no panic");
    let pushing = async {
        loop {
            if let Err(closed) = writer.push(0, numbers(2)).await {
                return closed.to_string();
            }
        }
    };
    let pushing = tokio::time::timeout(Duration::from_secs(60), pushing);
    let cause = pushing.await.expect("it does not wait forever");
    assert!(cause.contains("connection to its consumer at"), "{cause}");
    assert!(
        matches!(gate.poll(|_| false), Ok(Input::Idle)),
        "it knows nothing"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_that_cannot_be_reached_is_an_error() {
    let [producer, consumer] = TaskManager::start_many::<2>().await;
    let location = producer.location.clone();
    drop(producer);
    wait_until("the port is closed", || {
        std::net::TcpStream::connect(&location.data_address).is_err()
    })
    .await;
    let cause = refusal(&consumer, request(&location, attempt(1)), 1).await;
    assert!(cause.contains("can't connect to 127.0.0.1"), "{cause}");
}

#[tokio::test]
async fn a_remote_consumer_that_does_not_read_bounds_what_is_sent() {
    let managers = TaskManager::start_many::<2>().await;
    let writer = register(&managers[0], attempt(1));
    let mut gate = open(&managers[1], request(&managers[0].location, attempt(1)), 1);
    // Both ends, and the server may hold one batch.
    let most = 2 * channel::PLACES as i64;
    let filling = async {
        for pushed in 0..most {
            writer.push(0, numbers(pushed)).await.expect("open");
        }
    };
    let filled = tokio::time::timeout(Duration::from_secs(60), filling).await;
    filled.expect("there is room");
    // No further batch fits, however long the producer waits.
    let further = writer.push(0, numbers(most));
    let further = tokio::time::timeout(Duration::from_millis(500), further).await;
    assert!(further.is_err(), "{further:?}");
    writer.finish();
    assert_eq!(read(&mut gate).await, Ok((0..most).collect()));
}

#[tokio::test]
async fn garbage_on_the_port_harms_nobody() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let managers = TaskManager::start_many::<2>().await;
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 64],
        &[3, 0, 0, 0, 1, 9, 9, 9],
    ] {
        let address = &managers[0].location.data_address;
        let mut stream = tokio::net::TcpStream::connect(address)
            .await
            .expect("connected");
        stream.write_all(garbage).await.expect("written");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok();
        assert!(answer.is_empty());
    }
    register(&managers[0], attempt(1)).finish();
    let mut gate = open(&managers[1], request(&managers[0].location, attempt(1)), 1);
    assert_eq!(read(&mut gate).await, Ok(vec![]));
}

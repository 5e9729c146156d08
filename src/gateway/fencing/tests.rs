//! The gate in front of a process's components, over a store that answers, is late, or does not answer. On
//! paused time.

use super::*;
use crate::NoAnswer;

/// A process, and its store as controlled by the test.
struct Process {
    gate: HighestEpoch,
    watch: watch::Sender<LeaderView>,
    reads: watch::Sender<Option<LeaderView>>,
}

fn holder(name: &str) -> TermHolder {
    TermHolder {
        process: ProcessId::new(name),
        start: "1".to_owned(),
    }
}

fn view(epoch: u64, leader: &str, store: Option<&str>) -> LeaderView {
    LeaderView {
        incarnation: Some(ClusterIncarnation::new("c1")),
        epoch: Epoch::new(epoch),
        holder: Some(holder(leader)),
        store: store.map(StoreIdentity::new),
        leader: None,
    }
}

fn sender(epoch: u64, leader: &str, store: Option<&str>) -> Option<pb::Sender> {
    let store = store.map(StoreIdentity::new);
    let incarnation = ClusterIncarnation::new("c1");
    Some(sender_of(
        &incarnation,
        Epoch::new(epoch),
        &holder(leader),
        store.as_ref(),
    ))
}

impl Process {
    /// Starts a process whose store has shown epoch 1 of `a`. Reads return the value in `reads`; `None`: they fail.
    fn start(store: Option<&str>) -> Process {
        let watch = watch::Sender::new(view(1, "a", store));
        let reads = watch::Sender::new(Some(view(1, "a", store)));
        let read = reads.clone();
        let own = OwnStore::start(watch.clone(), move || {
            let answer = read.borrow().clone();
            std::future::ready(answer.ok_or_else(|| NoAnswer("it is down".to_owned())))
        });
        let gate = HighestEpoch::default();
        gate.proven_by(own);
        gate.follow(&watch.borrow()).expect("the first");
        Process { gate, watch, reads }
    }

    fn epoch(&self) -> u64 {
        self.gate.accepted().epoch.get()
    }
}

fn is_unproven<T>(answer: &GatewayResult<T>) -> bool {
    matches!(answer, Err(GatewayError::NotYet(reason)) if reason.contains("is not proven"))
}

#[test]
fn a_lower_epoch_is_refused_after_a_higher_one_was_shown() {
    let highest = HighestEpoch::default();
    let cluster = ClusterIncarnation::new("c1");
    assert_eq!(highest.observe(&cluster, Epoch::new(3)), Ok(()));
    let refusal = highest.observe(&cluster, Epoch::new(2)).expect_err("older");
    assert_eq!(
        refusal.to_string(),
        "outdated: epoch 2 is over: this process knows epoch 3"
    );
    assert_eq!(highest.observe(&cluster, Epoch::new(3)), Ok(()));
}

#[test]
fn another_incarnation_of_the_cluster_is_refused_whatever_its_epoch() {
    let highest = HighestEpoch::default();
    assert_eq!(
        highest.observe(&ClusterIncarnation::new("c1"), Epoch::new(3)),
        Ok(())
    );
    let refusal = highest.observe(&ClusterIncarnation::new("c2"), Epoch::new(2));
    let names_no_epoch = matches!(refusal, Err(GatewayError::Outdated { epoch: 0, .. }));
    assert!(names_no_epoch, "{refusal:?}");
    assert_eq!(highest.accepted().epoch, Epoch::new(3));
}

#[tokio::test(start_paused = true)]
async fn the_exchange_receives_the_reason_of_a_refusal() {
    let process = Process::start(None);
    process.watch.send_replace(view(4, "a", None));
    let (ours, other) = (ClusterIncarnation::new("c1"), ClusterIncarnation::new("b"));
    let admit = async |cluster, epoch| {
        let gate: &dyn EpochGate = &process.gate;
        gate.admit(cluster, Epoch::new(epoch)).await
    };
    assert_eq!(admit(&ours, 4).await, Ok(()));
    let stale = admit(&ours, 3).await;
    assert!(matches!(stale, Err(Refused::Stale { .. })), "{stale:?}");
    let foreign = admit(&other, 9).await;
    assert!(
        matches!(foreign, Err(Refused::OtherCluster { .. })),
        "{foreign:?}"
    );
    // No claim is accepted provisionally over the exchange, even while the store does not answer.
    process.reads.send_replace(None);
    let unproven = admit(&ours, 5).await;
    assert!(
        matches!(unproven, Err(Refused::Unproven(_))),
        "{unproven:?}"
    );
    assert_eq!(process.gate.highest(), Some((ours, Epoch::new(4))));
}

#[tokio::test(start_paused = true)]
async fn an_epoch_that_the_store_does_not_show_changes_nothing() {
    let process = Process::start(Some("s1"));
    for (epoch, store) in [(1001, Some("s1")), (u64::MAX, None), (2, Some("copy"))] {
        let forged = sender(epoch, "b", store);
        let answer = process.gate.prove(forged.as_ref()).await;
        assert!(is_unproven(&answer), "{answer:?}");
        assert!(process.gate.admit(forged.as_ref()).is_err());
        assert_eq!(process.epoch(), 1);
    }
    let leader = sender(1, "a", Some("s1"));
    assert_eq!(process.gate.admit(leader.as_ref()), Ok(Epoch::new(1)));
}

#[tokio::test(start_paused = true)]
async fn the_same_epoch_of_another_process_is_refused_and_names_no_epoch() {
    let process = Process::start(Some("s1"));
    let answer = process
        .gate
        .prove(sender(1, "b", Some("s1")).as_ref())
        .await;
    assert!(
        matches!(answer, Err(GatewayError::Outdated { epoch: 0, .. })),
        "{answer:?}"
    );
    let nameless = pb::Sender {
        process: String::new(),
        ..sender(1, "a", None).expect("a sender")
    };
    let answer = process.gate.prove(Some(&nameless)).await;
    assert!(
        matches!(answer, Err(GatewayError::Invalid(_))),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_read_proves_what_the_watch_does_not_show_yet_and_the_watch_what_no_read_shows() {
    let process = Process::start(Some("s1"));
    let start = Instant::now();
    process.reads.send_replace(Some(view(2, "b", Some("s1"))));
    let next = sender(2, "b", Some("s1"));
    assert_eq!(process.gate.prove(next.as_ref()).await, Ok(()));
    assert_eq!(process.epoch(), 2);

    process.reads.send_replace(None);
    let third = sender(3, "c", Some("s1"));
    let proving = process.gate.prove(third.as_ref());
    let showing = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        process.watch.send_replace(view(3, "c", Some("s1")));
    };
    let (proven, ()) = tokio::join!(proving, showing);
    assert_eq!(proven, Ok(()));
    assert!(start.elapsed() <= Duration::from_millis(20));
    assert!(!process.gate.subscribe().borrow().is_provisional());
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_silent_a_leader_of_the_same_store_is_accepted_and_one_of_a_copy_is_not()
{
    let process = Process::start(Some("s1"));
    process.reads.send_replace(None);
    let of_copy = sender(2, "b", Some("copy"));
    assert!(is_unproven(&process.gate.prove(of_copy.as_ref()).await));
    assert_eq!(process.epoch(), 1);
    let start = Instant::now();
    let leader = sender(2, "b", Some("s1"));
    assert_eq!(process.gate.prove(leader.as_ref()).await, Ok(()));
    assert!(
        start.elapsed() < Duration::from_millis(500),
        "a dial would not wait for it"
    );
    assert_eq!(process.epoch(), 2);
    // Its next message waits for nothing.
    let start = Instant::now();
    assert_eq!(process.gate.prove(leader.as_ref()).await, Ok(()));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_of_the_store_takes_back_a_belief_that_it_does_not_confirm() {
    let process = Process::start(Some("s1"));
    process.reads.send_replace(None);
    let liar = sender(7, "b", Some("s1"));
    assert_eq!(process.gate.prove(liar.as_ref()).await, Ok(()));
    let gate = process.gate.clone();
    let rechecking = tokio::spawn(async move { gate.recheck().await });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(process.epoch(), 7);
    process.reads.send_replace(Some(view(1, "a", Some("s1"))));
    let mut proofs = process.gate.subscribe();
    let dropped = proofs.wait_for(|proof| !proof.is_provisional()).await;
    dropped.expect("the gate is there");
    assert_eq!(process.epoch(), 1);
    let leader = sender(1, "a", Some("s1"));
    assert_eq!(process.gate.admit(leader.as_ref()), Ok(Epoch::new(1)));
    rechecking.abort();
}

#[tokio::test(start_paused = true)]
async fn a_store_without_an_identity_has_to_be_silent_for_longer_than_the_first_dial_waits() {
    let process = Process::start(None);
    process.reads.send_replace(None);
    let start = Instant::now();
    assert_eq!(
        process.gate.prove(sender(2, "b", None).as_ref()).await,
        Ok(())
    );
    assert!(start.elapsed() > Duration::from_millis(500));
}

#[tokio::test(start_paused = true)]
async fn many_messages_of_an_epoch_that_is_not_shown_yet_cost_two_reads() {
    let watch = watch::Sender::new(view(1, "a", None));
    let count = watch::Sender::new(0);
    let counted = count.clone();
    let own = OwnStore::start(watch.clone(), move || {
        counted.send_modify(|count| *count += 1);
        async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(view(2, "b", None))
        }
    });
    let processes: Vec<HighestEpoch> = (0..500)
        .map(|_| {
            let gate = HighestEpoch::default();
            gate.proven_by(own.clone());
            gate.follow(&view(1, "a", None)).expect("the first");
            gate
        })
        .collect();
    let next = sender(2, "b", None);
    let proving = processes.iter().map(|gate| gate.prove(next.as_ref()));
    let proven = futures::future::join_all(proving).await;
    assert!(proven.iter().all(Result::is_ok), "{proven:?}");
    assert!(*count.borrow() <= 2, "{} reads", *count.borrow());
}

#[tokio::test(start_paused = true)]
async fn many_hellos_that_wait_for_proof_do_not_block_a_message_of_a_leader() {
    let process = Process::start(None);
    process.reads.send_replace(None);
    let ours = ClusterIncarnation::new("c1");
    let mut hellos = tokio::task::JoinSet::new();
    for _ in 0..=WAITING {
        let (gate, ours) = (process.gate.clone(), ours.clone());
        hellos.spawn(async move { EpochGate::admit(&gate, &ours, Epoch::new(9)).await });
    }
    let refused = hellos.join_next().await.expect("one too many");
    let refused = refused.expect("it does not panic");
    assert!(
        matches!(&refused, Err(Refused::Unproven(why)) if why.contains("too many")),
        "{refused:?}"
    );
    assert_eq!(hellos.len(), WAITING, "the others wait");
    process.reads.send_replace(Some(view(2, "b", None)));
    let leader = sender(2, "b", None);
    assert_eq!(process.gate.prove(leader.as_ref()).await, Ok(()));
    assert_eq!(process.epoch(), 2);
}

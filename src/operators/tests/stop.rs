//! Tasks whose source is stopped: they finish with what was read, whenever the stop arrives.

use std::time::Duration;

use tanist_dataflow::TaskStatus;
use tanist_model::{Emit, OperatorSpec, operators};
use tanist_proto::v1::Partitioning;

use super::{GraphBuilder, TaskManager, deploy, spec, wait_until};

fn datagen(rate: Option<u64>) -> OperatorSpec {
    OperatorSpec::Datagen(operators::Datagen {
        rate,
        count: None,
        seed: 7,
        keys: 100,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_an_endless_source_has_made_is_worked_off() {
    // At full speed, and so slowly that the source mostly waits.
    for rate in [None, Some(1)] {
        let directory = tempfile::tempdir().expect("a directory");
        let count = OperatorSpec::Count(operators::Count {
            keys: vec!["key".to_owned()],
            emit: Some(Emit::Final),
        });
        let sink = OperatorSpec::FileSink(operators::FileSink::new(
            directory.path().to_string_lossy().into_owned(),
        ));
        let graph = GraphBuilder::new()
            .vertex(1, &[datagen(rate)], None)
            .vertex(1, &[count, sink], Some((0, Partitioning::Hash, &["key"])))
            .build();
        let managers = TaskManager::start_many::<1>().await;
        let tasks = deploy(&graph, &managers, |_, _| 0);
        let source = &tasks[&(0, 0)];
        wait_until("a record is made", || source.metrics().records_out > 0).await;
        for task in tasks.values() {
            task.stop();
            task.stop();
        }
        let ended = tokio::time::timeout(Duration::from_secs(60), tasks[&(1, 0)].ended());
        let TaskStatus::Finished { output } = ended.await.expect("it ends") else {
            panic!("it did not finish");
        };
        let written =
            std::fs::read_to_string(&output.committables[0].pending_path).expect("written");
        let counted: u64 = written
            .lines()
            .filter_map(|line| line.split(' ').nth(1)?.parse::<u64>().ok())
            .sum();
        assert_eq!(counted, source.metrics().records_out);
        assert!(matches!(source.ended().await, TaskStatus::Finished { .. }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_hears_it_before_it_begins_ends_with_nothing() {
    let graph = GraphBuilder::new()
        .vertex(
            1,
            &[datagen(None), OperatorSpec::Discard(operators::Discard {})],
            None,
        )
        .build();
    let managers = TaskManager::start_many::<1>().await;
    let task = managers[0]
        .runtime
        .start(spec(&graph, &managers, |_, _| 0, (0, 0), 1));
    task.stop();
    let ended = tokio::time::timeout(Duration::from_secs(60), task.ended()).await;
    assert!(matches!(
        ended.expect("it ends"),
        TaskStatus::Finished { .. }
    ));
}

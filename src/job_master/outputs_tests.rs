//! When outputs that are kept are let go, and where those run who read them.

use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;

use super::recovered::{Recovered, report, slot};
use super::testing::{graph_of, submitted};

const MAKER: u32 = 1;
const BESIDE: u32 = 2;
const AFTER: u32 = 3;

/// One vertex that is read by another of its region, and by one that comes after it.
fn read_by_two() -> pb::JobGraph {
    let vertices = [("maker", 2), ("beside", 2), ("after", 2)];
    let mut graph = graph_of(&vertices, &[(0, 1), (0, 2)]);
    graph.edges[1].set_exchange(pb::Exchange::Blocking);
    graph
}

fn finish(job: &mut Recovered, vertex: u32) {
    for (subtask, name) in (0..).zip(["tm0", "tm1"]) {
        job.reports(name, vec![report(vertex, subtask, 1, S::Finished)]);
    }
}

#[test]
fn an_output_is_kept_until_also_those_have_read_who_run_beside_its_maker() {
    let graph = read_by_two();
    let mut job = Recovered::in_term(&graph, submitted(&graph), 1);
    for name in ["tm0", "tm1"] {
        job.register(name, "1", vec![]);
    }
    for (subtask, name) in (0..).zip(["tm0", "tm1"]) {
        let running = [MAKER, BESIDE].map(|vertex| report(vertex, subtask, 1, S::Running));
        job.reports(name, running.to_vec());
    }
    finish(&mut job, MAKER);
    assert_eq!(
        job.deployed().len(),
        6,
        "the one that comes after may begin"
    );
    finish(&mut job, AFTER);
    assert_eq!(job.cancelled(), [], "the one beside reads on");
    finish(&mut job, BESIDE);
    let released = [("tm0".to_owned(), 0, 1), ("tm1".to_owned(), 1, 1)];
    assert_eq!(job.cancelled(), released);
}

/// Where a subtask runs that reads another one's output, which is on `tm1`, when `tm0` has a slot as well.
fn reader_runs_on(partitioning: pb::Partitioning) -> String {
    let mut graph = graph_of(&[("maker", 1), ("reader", 1)], &[(0, 1)]);
    graph.edges[0].set_exchange(pb::Exchange::Blocking);
    graph.edges[0].set_partitioning(partitioning);
    let mut job = Recovered::in_term(&graph, submitted(&graph), 1);
    job.register("tm1", "1", vec![]);
    job.register("tm0", "1", vec![]);
    for state in [S::Running, S::Finished] {
        let maker = pb::ExecutionReport {
            allocation_id: slot(1).to_string(),
            ..report(MAKER, 0, 1, state)
        };
        job.reports("tm1", vec![maker]);
    }
    let deployed: Vec<String> = job.deployed().into_iter().map(|(to, _)| to).collect();
    assert_eq!((deployed.len(), deployed[0].as_str()), (2, "tm1"));
    deployed[1].clone()
}

#[test]
fn who_reads_one_subtask_runs_where_its_output_is_and_who_reads_all_where_least_runs() {
    assert_eq!(reader_runs_on(pb::Partitioning::Forward), "tm1");
    assert_eq!(reader_runs_on(pb::Partitioning::Rebalance), "tm0");
}

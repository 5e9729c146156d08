//! Which vertices of a graph have an input that ends.

use tanist_model::input_ends;

use crate::{CompileOptions, JobBuilder};

#[test]
fn what_an_endless_source_feeds_over_whatever_edges_does_not_end() {
    let ends = |count| {
        let job = JobBuilder::new("job").parallelism(2);
        let job = job.datagen("numbers", None, count, 1, 10);
        let job = job.key_by("by-key", ["key"]).count("counted");
        let graph = job.discard("out").build();
        let graph = graph.compile(&CompileOptions::default());
        let graph = graph.expect("the job is valid");
        assert!(graph.vertices.len() > 1, "the last one has an edge");
        let vertices = graph.vertices.iter();
        let ids = vertices.map(|vertex| vertex.id.parse().expect("it is an id"));
        ids.map(|id| input_ends(&graph, id)).collect::<Vec<bool>>()
    };
    assert!(ends(Some(5)).into_iter().all(|ends| ends));
    assert!(!ends(None).into_iter().any(|ends| ends));
}

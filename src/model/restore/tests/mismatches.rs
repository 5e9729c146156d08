//! What does not fit is refused with both sides named.

use super::*;

#[test]
fn what_does_not_fit_is_refused_with_both_sides_named() {
    let before = counting(2, 4);
    let intact = manifest(&before);
    let case = |graph: &JobGraph, words: &[&str]| {
        let problem = refused(&intact, graph);
        words
            .iter()
            .for_each(|word| assert!(problem.contains(word), "{problem}"));
    };
    let mut other = counting(2, 2);
    other.vertices[1].max_parallelism = 64;
    case(
        &other,
        &["step `counts` has maximum parallelism 64, and its state has 128"],
    );
    let mut other = counting(2, 4);
    other.vertices[1].operators[0].spec = print().to_json();
    case(
        &other,
        &["step `counts` is `print`, and its state is that of `count`"],
    );
    for (keys, of) in [("value", "value: int64"), ("key", "key: string")] {
        let mut other = counting(2, 4);
        let counts = &mut other.vertices[1].operators[0];
        let spec = operators::Count {
            keys: vec![keys.to_owned()],
            emit: Some(Emit::Final),
        };
        counts.spec = OperatorSpec::from(spec).to_json();
        if keys == "key" {
            counts.output = Schema::of([("key", ColumnType::String)]).to_proto();
        }
        let here = format!("here the step is `count by {of}`");
        case(
            &other,
            &["the state of step `counts` is `count by key: int64`", &here],
        );
    }
    let mut other = counting(2, 4);
    other.vertices[1].operators[0].name = "counted".to_owned();
    case(&other, &["no step of the job has the state of `counts`"]);
    check(&intact, &other, Unclaimed::Ignored).expect("allowed");
    // A uid keeps the state of a step that was renamed.
    other.vertices[1].operators[0].uid = "counts".to_owned();
    check(&intact, &other, Unclaimed::Refused).expect("it finds its state");

    let mut channels = intact.clone();
    channels.regions[0].subtasks[0]
        .channels
        .push(StateSegment::default());
    let problem = refused(&channels, &before);
    assert!(problem.contains("batches of its channels"), "{problem}");
    let mut of_origin = intact.clone();
    of_origin.regions.push(RegionSnapshot {
        kind: RegionSnapshotKind::FromOrigin.into(),
        ..RegionSnapshot::default()
    });
    let problem = refused(&of_origin, &before);
    assert!(problem.contains("had not yet saved all"), "{problem}");
    let mut unnamed = intact.clone();
    unnamed.steps.clear();
    let problem = refused(&unnamed, &before);
    assert!(
        problem.contains("does not say which step `counts` is"),
        "{problem}"
    );
    let mut short = intact.clone();
    short.regions[0].subtasks.pop();
    let problem = refused(&short, &before);
    assert!(
        problem.contains("a subtask of `counts` is missing"),
        "{problem}"
    );
}

#[test]
fn an_operator_that_can_t_divide_its_state_keeps_its_parallelism() {
    let step = CustomSpec::operator("enrich", [("a", ColumnType::Int64)]).saving_state();
    let custom = |parallelism| {
        let vertices = vec![vertex("v", &[("step", step.clone().into())], parallelism)];
        graph(vertices, Partitioning::Hash)
    };
    let saved = manifest(&custom(2));
    check(&saved, &custom(2), Unclaimed::Refused).expect("the same");
    let problem = refused(&saved, &custom(3));
    assert!(
        problem.contains(
            "step `step` has parallelism 3, and its state, of parallelism 2, can't be divided"
        ),
        "{problem}"
    );
    // A step may declare that what it saves can be divided.
    let divided = |rule: operators::CustomRedistribution, parallelism| {
        let step = step.clone().redistributed(rule);
        let vertices = vec![vertex("v", &[("step", step.into())], parallelism)];
        let tasks = tasks(&saved, &graph(vertices, Partitioning::Hash), "v");
        let states = tasks.iter().map(|task| task.operators.len());
        states.collect::<Vec<_>>()
    };
    assert_eq!(divided(operators::CustomRedistribution::List, 3), [1, 1, 0]);
    assert_eq!(
        divided(operators::CustomRedistribution::Union, 3),
        [2, 2, 2]
    );
    // Keyed state alone can be.
    let mut keyed = saved;
    for subtask in &mut keyed.regions[0].subtasks {
        let groups = key_groups(subtask.subtask, 2, MAX);
        subtask.operators.clear();
        subtask.segments.push(StateSegment {
            uid: "step".to_owned(),
            length: 1,
            first_key_group: groups.start,
            end_key_group: groups.end,
            ..StateSegment::default()
        });
    }
    assert_eq!(
        coverage(&tasks(&keyed, &custom(3), "v")).len(),
        MAX as usize
    );
}

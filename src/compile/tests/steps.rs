//! The declarations of the operators against the compiler: their examples, the format of their specifications.

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_model::operators::{Aggregate, Aggregation, Count, Sum, Trigger, Windows, steps};
use tanist_model::problem::InvalidJob;
use tanist_model::{OperatorSpec, Transformation, unsupported};
use tanist_proto::v1::JobGraph;

use super::{graph_of, message_of, options, with_steps};
use crate::yaml;
use crate::{JobBuilder, JobFile, compile};

#[test]
fn the_examples_of_the_reference_are_valid_and_show_their_step() {
    for step in steps() {
        let file = JobFile::new("job.yaml", with_steps(step.example));
        let compiled = compile(&file, &options());
        // Without the feature `sql` some are refused, and say so.
        let needs = |error: &dyn std::fmt::Display| error.to_string().contains("the feature `sql`");
        match compiled {
            Ok(graph) => assert_eq!(unsupported(&graph), None),
            Err(error) => assert!(!cfg!(feature = "sql") && needs(&error), "{error}"),
        }
        let shows = format!("- {}:", step.name);
        assert!(step.example.contains(&shows), "{}", step.example);
    }
}

#[test]
fn each_step_has_the_name_of_what_it_is_read_as() {
    // Steps that are read as another operator than the example of their name.
    let others = [
        "- filter: { where: a > 1 }\n",
        "- count: { window: { tumbling: { size: 1 s } } }\n",
        "- sum: { column: a, window: { tumbling: { size: 1 s } } }\n",
    ];
    let mut shown = Vec::new();
    for steps in steps().map(|step| step.example).chain(others) {
        let file = JobFile::new("job.yaml", with_steps(steps));
        let (graph, problems) = yaml::read(&file, &BTreeMap::new()).expect("valid YAML");
        assert_eq!(problems, [], "{steps}");
        for node in &graph.nodes {
            let kind = node.transformation.as_ref().map(Transformation::kind);
            // A step without a name is called as it is written.
            if steps.contains(&format!("- {}:", node.name)) {
                assert_eq!(kind, Some(node.name.as_str()), "{steps}");
                shown.push(node.name.clone());
            }
        }
    }
    for step in steps() {
        assert!(shown.iter().any(|name| name == step.name), "{}", step.name);
    }
}

/// Compiles a job with this aggregation behind watermarks by `seq` and a key-by `key`.
fn aggregated(spec: impl Into<OperatorSpec>) -> Result<JobGraph, InvalidJob> {
    let job = JobBuilder::new("test")
        .datagen("numbers", None, Some(10), 0, 100)
        .watermarks("in-time", "seq", Duration::ZERO)
        .key_by("by-key", ["key"])
        .step("results", spec.into())
        .discard("out");
    job.build().compile(&options())
}

#[test]
fn keys_that_an_aggregation_states_must_be_those_of_the_key_by() {
    let with_keys = |keys: &[&str]| -> [OperatorSpec; 3] {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let count = Count {
            keys: keys.clone(),
            ..Count::default()
        };
        let sum = Sum {
            keys: keys.clone(),
            ..Sum::of("value")
        };
        let aggregate = Aggregate {
            keys,
            ..Aggregate::of([Aggregation::count("all")])
        };
        [count.into(), sum.into(), aggregate.into()]
    };
    for (stated, left_out) in with_keys(&["key"]).into_iter().zip(with_keys(&[])) {
        let stated = aggregated(stated).expect("the same keys");
        assert_eq!(Ok(stated), aggregated(left_out));
    }
    for spec in with_keys(&["seq"]) {
        let message = aggregated(spec).expect_err("other keys").to_string();
        let expected = "its input is not partitioned by its keys";
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn the_time_that_windows_state_must_be_that_of_the_watermarks() {
    let by = |time: &str| Aggregate {
        trigger: Some(Trigger::Window(Windows {
            time: time.into(),
            ..Windows::tumbling(Duration::from_secs(1))
        })),
        ..Aggregate::of([Aggregation::count("all")])
    };
    let stated = aggregated(by("seq")).expect("the same column");
    assert_eq!(Ok(stated), aggregated(by("")));
    let message = aggregated(by("value")).expect_err("another").to_string();
    let expected = "its windows go by column `value`, but the watermarks before it by `seq`";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn what_a_job_graph_must_state_can_not_be_left_out() {
    for incomplete in [
        r#"{"type":"count","keys":["a"]}"#,
        r#"{"type":"count","keys":["a"],"emit":null}"#,
        r#"{"type":"sum","keys":["a"],"column":"b"}"#,
        r#"{"type":"aggregate","keys":["a"],"aggregations":[]}"#,
        r#"{"type":"key-by","columns":["a"]}"#,
    ] {
        assert!(OperatorSpec::from_json(incomplete).is_err(), "{incomplete}");
    }
}

/// Vertex ids are hashes of these texts.
#[test]
fn specifications_keep_their_format() {
    for json in [
        r#"{"type":"file-source","paths":["/a"]}"#,
        r#"{"type":"file-source","paths":[]}"#,
        r#"{"type":"follow-files","paths":["/a"],"discovery_interval_ms":1000}"#,
        r#"{"type":"datagen","seed":1,"keys":2}"#,
        r#"{"type":"datagen","rate":3,"count":4,"seed":1,"keys":2}"#,
        r#"{"type":"split-words","column":"a"}"#,
        r#"{"type":"filter","column":"a","op":"starts-with","value":"b"}"#,
        r#"{"type":"where","condition":"a > 1"}"#,
        r#"{"type":"sample","fraction":0.1,"seed":7}"#,
        r#"{"type":"map","columns":[{"name":"a","expression":"b"}]}"#,
        r#"{"type":"project","columns":[{"name":"a","expression":"b"}]}"#,
        r#"{"type":"count","keys":["a"],"emit":"final"}"#,
        r#"{"type":"sum","keys":["a"],"column":"b","emit":"updates"}"#,
        r#"{"type":"print","prefix":""}"#,
        r#"{"type":"file-sink","path":"/a"}"#,
        r#"{"type":"file-sink","path":"/a","commit":"checkpoint","roll":{"size":1,"interval_ms":0}}"#,
        r#"{"type":"discard"}"#,
        r#"{"type":"stdin-source"}"#,
        r#"{"type":"socket-source","address":"a:1","reconnect":true}"#,
        r#"{"type":"parse-json","column":"a","reading":{"columns":[{"name":"b","type":"int64"}],"on_error":"fail"}}"#,
        r#"{"type":"parse-csv","column":"a","reading":{"columns":[],"on_error":"skip"},"separator":",","header":false}"#,
        r#"{"type":"format-json"}"#,
        r#"{"type":"format-csv","separator":","}"#,
        r#"{"type":"flat-map-regex","column":"a","pattern":"b","reading":{"columns":[],"on_error":"fail"}}"#,
        r#"{"type":"watermarks","column":"a","out_of_orderness_ms":5}"#,
        r#"{"type":"aggregate","keys":["a"],"aggregations":[{"name":"n","function":"count"}],"trigger":"final"}"#,
        r#"{"type":"aggregate","keys":["a"],"aggregations":[],"trigger":{"window":{"size_ms":1,"slide_ms":1,"time":"t","allowed_lateness_ms":0}}}"#,
        r#"{"type":"socket-sink","address":"a:1"}"#,
        r#"{"type":"exec","command":["a"],"input":"lines","output":"lines","columns":[{"name":"line","type":"string"}],"limits":{},"grace_ms":5000}"#,
        r#"{"type":"exec-source","command":["a"],"input":"lines","output":"lines","unbounded":true,"limits":{},"grace_ms":5000}"#,
        r#"{"type":"exec-sink","command":["a"],"input":"lines","output":"lines","limits":{},"grace_ms":5000}"#,
        r#"{"type":"custom","name":"a","role":"source","output":[["b","int64"]],"unbounded":false}"#,
    ] {
        let spec = OperatorSpec::from_json(json).expect(json);
        assert_eq!(spec.to_json(), json);
        let unknown = json.replace("{\"type\"", "{\"unknown\":1,\"type\"");
        assert!(OperatorSpec::from_json(&unknown).is_err(), "{unknown}");
    }
}

#[test]
fn a_sample_is_the_same_from_a_job_file_and_from_the_builder() {
    let file = with_steps(
        "  - name: numbers\n    datagen: { count: 10 }\n  - name: few\n    sample: { fraction: 0.1, seed: 7 }\n  - name: out\n    \
         discard: {}\n",
    );
    let built = JobBuilder::new("test")
        .datagen("numbers", None, Some(10), 0, 100)
        .sample("few", 0.1, 7)
        .discard("out")
        .build();
    assert_eq!(built.compile(&options()), Ok(graph_of(&file, &options())));
}

#[test]
fn a_sample_of_nothing_or_of_more_than_all_is_refused() {
    for fraction in ["0", "-0.5", "1.5", "NaN"] {
        let steps = format!(
            "  - datagen: {{ count: 10 }}\n  - sample: {{ fraction: {fraction} }}\n  - print: {{}}\n"
        );
        let message = message_of(&with_steps(&steps), &options());
        let expected = format!("`fraction` is {fraction}: write a number above 0 and at most 1");
        assert!(message.contains(&expected), "{message}");
    }
}

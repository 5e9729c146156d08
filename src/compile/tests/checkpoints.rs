//! Checkpoints in job files and in the builder: what is compiled, and the exact messages for what is wrong.

use std::time::Duration;

use tanist_model::ExecSpec;
use tanist_proto::v1;

use super::{graph_of, message_of, options};
use crate::{Checkpoints, JobBuilder, Plan, warnings};

const STEPS: &str = "  - name: numbers
    datagen: {count: 9}
  - name: out
    discard: {}
";
const EXEC: &str = "  - name: numbers
    datagen: {count: 9}
  - name: program
    exec: {command: [cat]}
  - name: out
    discard: {}
";

/// A job with this section and these steps.
fn job(checkpoints: &str, steps: &str) -> String {
    format!("version: 1\nname: test\ncheckpoints: {checkpoints}\nsteps:\n{steps}")
}

fn says(checkpoints: &str, steps: &str, message: &str) {
    let text = job(checkpoints, steps);
    assert_eq!(message_of(&text, &options()), message, "\n{text}");
}

fn settings(graph: &v1::JobGraph) -> Option<v1::CheckpointSettings> {
    graph.options.as_ref().expect("options").checkpoints
}

#[test]
fn a_job_file_says_the_same_as_the_builder() {
    let text = "
version: 1
name: job
checkpoints:
  interval: 1 s
  min-pause: 500 ms
  timeout: 1 min
  tolerable-failed: 3
  retained: 2
  retention: retain-on-cancellation
  mode: exactly-once
steps:
  - name: numbers
    uid: source-1
    datagen: {count: 9}
  - name: out
    discard: {}
";
    let checkpoints = Checkpoints::every(Duration::from_secs(1))
        .min_pause(Duration::from_millis(500))
        .timeout(Duration::from_secs(60))
        .tolerable_failed(Some(3))
        .retained(2)
        .retention(v1::CheckpointRetention::RetainOnCancellation);
    let built = JobBuilder::new("job")
        .checkpoints(checkpoints)
        .datagen("numbers", None, Some(9), 0, 100)
        .with_uid("source-1")
        .discard("out")
        .build()
        .compile(&options())
        .expect("a valid job");
    let graph = graph_of(text, &options());
    assert_eq!(built, graph);
    let expected = v1::CheckpointSettings {
        interval_ms: Some(1_000),
        min_pause_ms: Some(500),
        timeout_ms: Some(60_000),
        tolerable_failures: Some(3),
        retained: Some(2),
        retention: Some(v1::CheckpointRetention::RetainOnCancellation.into()),
    };
    assert_eq!(settings(&graph), Some(expected));
    let uids: Vec<&str> = graph.vertices[0]
        .operators
        .iter()
        .map(|operator| operator.uid.as_str())
        .collect();
    assert_eq!(uids, ["source-1", ""]);
    let plan = Plan(&graph).to_string();
    let line = "checkpoints: every 1000 ms, at least 500 ms apart, timeout 60000 ms, 3 failures tolerated, 2 retained, retained on cancellation\n";
    assert!(plan.contains(line), "{plan}");
}

#[test]
fn a_field_that_is_not_there_is_left_to_the_configuration() {
    let without = graph_of(
        &format!("version: 1\nname: test\nsteps:\n{STEPS}"),
        &options(),
    );
    assert_eq!(settings(&without), None);
    let only = graph_of(&job("{tolerable-failed: -1}", STEPS), &options());
    let expected = v1::CheckpointSettings {
        tolerable_failures: Some(-1),
        ..v1::CheckpointSettings::default()
    };
    assert_eq!(settings(&only), Some(expected));
    let off = graph_of(&job("{interval: 0}", STEPS), &options());
    assert_eq!(settings(&off), Some(Checkpoints::none().0));
}

#[test]
fn settings_that_are_wrong() {
    says(
        "{interval: 9 ms}",
        STEPS,
        "job.yaml: line 3, column 25: checkpoints: `interval` is 9 ms: write at least 10 ms, or 0 for no checkpoints",
    );
    says(
        "{interval: often}",
        STEPS,
        "job.yaml: line 3, column 25: `checkpoints.interval` is `often`: write a number and a unit, such as `500 ms`, `10 s`, `5 min` or `1 h`",
    );
    says(
        "{interval: 1 s, timeout: 0, retained: 0}",
        STEPS,
        "job.yaml has 2 problems:
  line 3, column 39: checkpoints: `timeout` is 0: write a time longer than zero, such as `10 min`
  line 3, column 52: checkpoints: `retained` is 0: write at least 1",
    );
    says(
        "{interval: 1 s, tolerable-failed: -2}",
        STEPS,
        "job.yaml: line 3, column 48: `checkpoints.tolerable-failed` is `-2`: write a whole number from 0, or -1, which tolerates any number",
    );
    says(
        "{interval: 1 s, mode: AT_LEAST_ONCE}",
        STEPS,
        "job.yaml: line 3, column 36: `checkpoints.mode` is `AT_LEAST_ONCE`, which is not supported: barriers are always aligned, so that no record counts twice; write `EXACTLY_ONCE` or leave it out",
    );
    says(
        "{interval: 1 s, max-concurrent-checkpoints: 2}",
        STEPS,
        "job.yaml: line 3, column 58: `checkpoints.max-concurrent-checkpoints` is `2`, which is not supported: a region has one checkpoint in progress at most; write 1 or leave it out",
    );
    graph_of(
        &job("{interval: 1 s, max-concurrent-checkpoints: 1}", STEPS),
        &options(),
    );
    says(
        "{interval: 1 s, num-retained: 3, unaligned: true}",
        STEPS,
        "job.yaml has 2 problems:
  line 3, column 44: `checkpoints.num-retained`: write `retained`
  line 3, column 58: `checkpoints.unaligned`: barriers are always aligned: leave it out",
    );
    says(
        "{interval: 1 s, retention: NO_EXTERNALIZED_CHECKPOINTS}",
        STEPS,
        "job.yaml: line 3, column 41: `checkpoints.retention` is `NO_EXTERNALIZED_CHECKPOINTS`, which is not supported: the newest checkpoint of a job that FAILED is always kept; write `DELETE_ON_CANCELLATION` to have that of a cancelled job removed",
    );
    says(
        "{interval: 1 s, retention: never}",
        STEPS,
        "job.yaml: line 3, column 41: `checkpoints.retention` is `never`: write `DELETE_ON_CANCELLATION` or `RETAIN_ON_CANCELLATION`",
    );
    says(
        "{interval: 1 s, mode: some}",
        STEPS,
        "job.yaml: line 3, column 36: `checkpoints.mode` can't be `some`: write `EXACTLY_ONCE` or leave it out",
    );
    says(
        "{intervall: 1 s}",
        STEPS,
        "job.yaml: line 3, column 15: checkpoints has no field `intervall`; did you mean `interval`?",
    );
}

#[test]
fn state_of_two_steps_with_one_name() {
    let two = "  - name: numbers
    uid: a
    datagen: {count: 9}
  - name: out
    uid: a
    discard: {}
";
    says(
        "{interval: 1 s}",
        two,
        "job.yaml: line 8, column 5: step `out`: another step has the `uid` `a` already: give each step one of its own",
    );
    let of_another = "  - name: numbers
    datagen: {count: 9}
  - name: out
    uid: numbers
    discard: {}
";
    says(
        "{interval: 1 s}",
        of_another,
        "job.yaml: line 7, column 5: step `out`: its `uid` `numbers` is the name of another step: write another one",
    );
    let own = of_another.replace("uid: numbers", "uid: out");
    let graph = graph_of(&job("{interval: 1 s}", &own), &options());
    assert_eq!(graph.vertices[0].operators[1].uid, "out");
    says(
        "{interval: 1 s}",
        &of_another.replace("uid: numbers", "uid: ''"),
        "job.yaml: line 7, column 5: step `out`: its `uid` is empty: write one",
    );
}

#[test]
fn a_program_takes_part_in_no_checkpoint_and_its_step_says_so() {
    says(
        "{interval: 1 s}",
        EXEC,
        "job.yaml: line 7, column 5: step `program`: the job has `checkpoints`, but no checkpoint can save what is inside a program: write `checkpoint: false` for this step (then no checkpoint is taken of its region), or leave out `checkpoints`",
    );
    says(
        "{interval: 1 s}",
        &EXEC.replace(
            "  - name: program\n",
            "  - name: program\n    checkpoint: true\n",
        ),
        "job.yaml: line 7, column 5: step `program`: no checkpoint can save what is inside a program: write `checkpoint: false`",
    );
    says(
        "{interval: 1 s}",
        &STEPS.replace("  - name: out\n", "  - name: out\n    checkpoint: false\n"),
        "job.yaml: line 7, column 5: step `out`: `checkpoint: false` is for steps that run a program: checkpoints are taken of a region as a whole, so leave it out",
    );
    let accepted = EXEC.replace(
        "  - name: program\n",
        "  - name: program\n    checkpoint: false\n",
    );
    graph_of(&job("{interval: 1 s}", &accepted), &options());
    // Without checkpoints there is nothing to accept.
    graph_of(&job("{interval: 0}", EXEC), &options());
    let built = JobBuilder::new("test")
        .checkpoints(Checkpoints::every(Duration::from_secs(1)))
        .datagen("numbers", None, Some(9), 0, 100)
        .exec("program", ExecSpec::new(vec!["cat".to_owned()]))
        .without_checkpoints()
        .discard("out")
        .build()
        .compile(&options());
    assert!(built.is_ok(), "{built:?}");
}

#[test]
fn a_step_with_state_and_without_a_name_of_its_own_is_a_warning() {
    let unnamed = "  - datagen: {count: 9}
  - discard: {}
";
    let graph = |checkpoints: &str| graph_of(&job(checkpoints, unnamed), &options());
    assert_eq!(
        warnings(&graph("{interval: 1 s}")),
        [
            "job `test`: these steps have state that only the name of their operator identifies in checkpoints: `datagen`; give each a `name` or a `uid`"
        ]
    );
    assert_eq!(warnings(&graph("{interval: 0}")), [""; 0]);
    let named = graph_of(&job("{interval: 1 s}", STEPS), &options());
    assert_eq!(warnings(&named), [""; 0]);
    let with_uid = unnamed.replace("- datagen", "- uid: d\n    datagen");
    let with_uid = graph_of(&job("{interval: 1 s}", &with_uid), &options());
    assert_eq!(warnings(&with_uid), [""; 0]);
}

//! Parameters: the sources of their values, and where they can be used.

use super::{graph_of, message_of, options, options_with, with_steps};

fn source_of(text: &str, parameters: &super::CompileOptions) -> String {
    graph_of(text, parameters).vertices[0].operators[0]
        .spec
        .clone()
}

const END: &str = "  - discard: {}\n";

#[test]
fn a_value_goes_before_the_default_in_place_and_that_before_the_declared_one() {
    let inline = with_steps(&format!(
        "  - file-source: {{paths: \"${{in:-a}}\"}}\n{END}"
    ));
    assert_eq!(
        source_of(&inline, &options()),
        r#"{"type":"file-source","paths":["a"]}"#
    );
    let given = options_with([("in", "b")]);
    assert_eq!(
        source_of(&inline, &given),
        r#"{"type":"file-source","paths":["b"]}"#
    );
    let declared = inline.replace("steps:", "parameters: {in: c}\nsteps:");
    assert_eq!(
        source_of(&declared, &options()),
        r#"{"type":"file-source","paths":["a"]}"#
    );
    let declared = declared.replace(":-a", "");
    assert_eq!(
        source_of(&declared, &options()),
        r#"{"type":"file-source","paths":["c"]}"#
    );
}

#[test]
fn a_parameter_may_stand_for_a_number_and_switch_a_field_off() {
    let text = with_steps(&format!(
        "  - datagen:\n      rate: ${{rate:-1000}}\n      count: ${{count:-}}\n      keys: '5'\n{END}"
    ));
    let spec = source_of(&text, &options());
    assert_eq!(spec, r#"{"type":"datagen","rate":1000,"seed":0,"keys":5}"#);
    let spec = source_of(&text, &options_with([("rate", ""), ("count", "7")]));
    assert_eq!(spec, r#"{"type":"datagen","count":7,"seed":0,"keys":5}"#);
}

#[test]
fn a_value_is_text_and_never_structure() {
    let text = with_steps("  - datagen:\n  - print:\n      prefix: x${in}y$${z}\n");
    let graph = graph_of(&text, &options_with([("in", "${in}\n- b: [")]));
    let spec = &graph.vertices[0].operators[1].spec;
    assert_eq!(spec, r#"{"type":"print","prefix":"x${in}\n- b: [y${z}"}"#);
}

#[test]
fn plain_scalars_keep_the_text_that_stands_in_the_file() {
    let text = with_steps("  - datagen:\n  - print: {prefix: 007}\n");
    let spec = &graph_of(&text, &options()).vertices[0].operators[1].spec;
    assert_eq!(spec, r#"{"type":"print","prefix":"007"}"#);
    let text =
        with_steps("  - datagen:\n  - filter: {column: key, op: lt, value: 0x10}\n  - discard:\n");
    assert!(message_of(&text, &options()).contains("`value` is \"0x10\""));
}

#[test]
fn what_is_wrong_with_parameters_is_said_with_the_ones_that_there_are() {
    let text = with_steps(&format!(
        "  - name: n\n    datagen:\n      rate: ${{rate:-fast}}\n      keys: ${{keys}}\n      seed: ${{}}\n      count: ${{count\n{END}"
    ));
    assert_eq!(
        message_of(&text, &options_with([("kyes", "1")])),
        "job.yaml has 5 problems:
  there is no parameter `kyes`; did you mean `keys`? (parameters: keys, rate)
  line 6, column 13: step `n`: `rate` is `fast` (from `${rate:-fast}`): write a whole number of at least 0
  line 7, column 13: step `n`: parameter `keys` has no value: set it with `--param keys=...` (parameters: keys, rate)
  line 8, column 13: step `n`: `${}` is no parameter: write `${name}` or `${name:-default}`, or `$${` for the characters themselves
  line 9, column 14: step `n`: `${count` has no end: write `${name}`, or `$${` for the characters themselves"
    );
    let none = with_steps(&format!("  - datagen:\n{END}"));
    assert_eq!(
        message_of(&none, &options_with([("x", "1")])),
        "job.yaml: there is no parameter `x` (this job has no parameters)"
    );
}

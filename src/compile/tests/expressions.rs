//! Steps with SQL expressions, from the job file to the JobGraph or the message.

use tanist_model::{NamedExpression, OperatorSpec, operators, unsupported};

use super::{graph_of, options, with_steps};
use crate::validate_job_graph;
#[cfg(feature = "sql")]
use crate::{JobBuilder, Plan};

const STEPS: &str = "  - name: numbers
    datagen: {count: 9}
  - name: odd
    filter:
      where: value % 2 = 1
  - name: more
    map:
      columns:
        key: key + ${offset:-1}
        label: \"'k' || key\"
  - name: few
    project:
      columns: [seq, {name: key, expression: label}]
  - name: all
    project:
      columns: {twice: seq * 2.0, odd: seq % 2 = 1}
  - name: out
    discard: {}
";

#[cfg(feature = "sql")]
#[test]
fn every_way_of_writing_expressions_is_the_same_in_rust() {
    let built = JobBuilder::new("test")
        .datagen("numbers", None, Some(9), 0, 100)
        .filter_where("odd", "value % 2 = 1")
        .map("more", [("key", "key + 1"), ("label", "'k' || key")])
        .project(
            "few",
            [NamedExpression::column("seq"), ("key", "label").into()],
        )
        .project("all", [("twice", "seq * 2.0"), ("odd", "seq % 2 = 1")])
        .discard("out")
        .build();
    let graph = graph_of(&with_steps(STEPS), &options());
    assert_eq!(built.compile(&options()), Ok(graph.clone()));
    assert_eq!(validate_job_graph(&graph), Ok(()));
    assert_eq!(unsupported(&graph), None);
    let plan = Plan(&graph).to_string();
    for line in [
        "odd: filter emits (seq: int64, key: int64, value: int64)",
        "more: map emits (seq: int64, key: int64, value: int64, label: string)",
        "few: project emits (seq: int64, key: string)",
        "all: project emits (twice: float64, odd: bool)",
    ] {
        assert!(plan.contains(line), "{plan}");
    }
}

#[cfg(feature = "sql")]
#[test]
fn everything_that_is_wrong_is_said_at_once_with_step_and_column() {
    let steps = "  - name: lines
    file-source: {paths: a.txt}
  - name: f
    filter: {where: lin = 'x'}
  - name: m
    input: lines
    map: {columns: {a: upper(lines), b: line * 2, c: char_length(line)}}
  - name: p
    input: lines
    project: {columns: [line, line, other]}
  - name: q
    input: lines
    project: {columns: [{name: a}]}
  - name: e
    input: lines
    map: {columns: {}}
  - name: w
    input: lines
    filter: {where: line = 'x', column: line}
  - name: out
    inputs: [f, m, p, q, e, w]
    discard: {}
";
    assert_eq!(
        super::message_of(&with_steps(steps), &options()),
        "job.yaml has 8 problems:
  line 6, column 5: step `f`: `where`: `lin = 'x'`, character 1: column `lin` is not in its input (line: string); did you mean `line`?
  line 8, column 5: step `m`: column `a`: `upper(lines)`, character 7: column `lines` is not in its input (line: string); did you mean `line`?
  line 8, column 5: step `m`: column `b`: `line * 2`: Cannot coerce arithmetic expression string * int64 to valid types
  line 11, column 5: step `p`: column `line` is given twice: write it once
  line 11, column 5: step `p`: column `other`: `\"other\"`, character 1: column `other` is not in its input (line: string); there is: line
  line 16, column 25: step `q`: `expression` is missing: write `expression: price * amount`
  line 17, column 5: step `e`: `columns` is empty: write at least one column
  line 22, column 33: step `w`: filter has no field `column`; there is: where"
    );
}

#[cfg(feature = "sql")]
#[test]
fn a_graph_that_says_another_type_than_its_expressions_is_refused() {
    let mut graph = graph_of(&with_steps(STEPS), &options());
    let operators = &mut graph.vertices[0].operators;
    let project = operators
        .iter_mut()
        .find(|it| it.name == "all")
        .expect("there");
    project.output[0].r#type = tanist_proto::v1::ColumnType::Int64.into();
    let refused = validate_job_graph(&graph).expect_err("refused").to_string();
    assert_eq!(
        refused,
        "the job graph: step `all`: its output must be (twice: float64, odd: bool)"
    );
}

#[cfg(feature = "sql")]
#[test]
fn a_column_that_is_kept_may_be_without_a_value_and_one_that_is_computed_not() {
    let steps = "  - stdin-source: {}
  - parse-json: {column: line, columns: {id: int64, note: string?}}
  - name: kept
    project: {columns: [note, id]}
  - name: copied
    map: {columns: {copy: note}}
  - discard: {}
";
    let graph = graph_of(&with_steps(steps), &options());
    let plan = Plan(&graph).to_string();
    for line in [
        "kept: project emits (note: string?, id: int64)",
        "copied: map emits (note: string?, id: int64, copy: string)",
    ] {
        assert!(plan.contains(line), "{plan}");
    }
    for (column, nullable) in [(0, false), (1, true)] {
        let mut wrong = graph.clone();
        wrong.vertices[0].operators[2].output[column].nullable = nullable;
        assert!(validate_job_graph(&wrong).is_err());
    }
}

#[cfg(not(feature = "sql"))]
#[test]
fn a_program_without_the_feature_says_what_it_lacks() {
    let said = super::message_of(&with_steps(STEPS), &options());
    assert!(
        said.contains("step `odd`: it needs the feature `sql`"),
        "{said}"
    );
    let mut graph = graph_of(&with_steps("  - datagen:\n  - discard:\n"), &options());
    let columns = vec![NamedExpression::new("a", "1")];
    graph.vertices[0].operators[0].spec = OperatorSpec::Map(operators::Map { columns }).to_json();
    let said = unsupported(&graph).expect("it needs the feature");
    assert!(
        said.contains("step `datagen`: it needs the feature `sql`"),
        "{said}"
    );
    let refused = validate_job_graph(&graph).expect_err("refused").to_string();
    assert!(refused.contains("it needs the feature `sql`"), "{refused}");
}

#[test]
fn an_operator_that_is_not_known_is_no_operator_of_this_program() {
    let mut graph = graph_of(&with_steps("  - datagen:\n  - discard:\n"), &options());
    assert_eq!(unsupported(&graph), None);
    graph.vertices[0].operators[1].spec = r#"{"type":"of-tomorrow"}"#.into();
    let said = unsupported(&graph).expect("unknown");
    assert!(
        said.starts_with(
            "step `discard`: its specification is not known: unknown variant `of-tomorrow`"
        ),
        "{said}"
    );
    assert_eq!(
        OperatorSpec::Where(operators::Where {
            condition: "a".into()
        })
        .to_json(),
        r#"{"type":"where","condition":"a"}"#
    );
    let columns = vec![NamedExpression::new("a", "b")];
    assert_eq!(
        OperatorSpec::Map(operators::Map { columns }).to_json(),
        r#"{"type":"map","columns":[{"name":"a","expression":"b"}]}"#
    );
}

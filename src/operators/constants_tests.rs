//! Errors of constants that are reported when a task starts, and those that depend on records.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use tanist_model::{OperatorSpec, operators};

use crate::testing::{Harness, batch, ints, not_opened};

fn input() -> RecordBatch {
    batch([
        (
            "s",
            Arc::new(StringArray::from(vec!["ab", "", "7"])) as ArrayRef,
        ),
        ("n", ints(&[1, 2, -3])),
        ("f", Arc::new(Float64Array::from(vec![0.5, 1.0, -2.0]))),
    ])
}

/// A spec that computes the expression as column `q`.
fn computed(expression: &str) -> OperatorSpec {
    OperatorSpec::Map(operators::Map {
        columns: vec![("q", expression).into()],
    })
}

fn filter(condition: &str) -> OperatorSpec {
    let condition = condition.to_owned();
    OperatorSpec::Where(operators::Where { condition })
}

#[test]
fn constants_that_do_for_no_record_are_said_whatever_the_other_arguments_are() {
    for (expression, problem) in [
        ("s ~ '('", "\"(\" is no regular expression: unclosed group"),
        (
            "s !~* '['",
            "is no regular expression: unclosed character class",
        ),
        (
            "regexp_like(s, '(')",
            "\"(\" is no regular expression: unclosed group",
        ),
        ("regexp_like(s, 'a', 'zz')", "unrecognized flag"),
        (
            "regexp_replace(s, '(', 'x')",
            "\"(\" is no regular expression: unclosed group",
        ),
        ("regexp_replace(s, '(', s, 'g')", "no regular expression"),
        ("regexp_count(s, '(')", "did not compile: ("),
        ("date_trunc('foo', to_timestamp(n))", "'foo'"),
        ("date_part('foo', to_timestamp(n))", "'foo'"),
        (
            "date_bin(interval '0 day', to_timestamp(n))",
            "stride must be non-zero",
        ),
        (
            "to_char(to_timestamp(n), '%Q')",
            "\"%Q\" is no format of times",
        ),
        ("to_timestamp(s, '%!')", "\"%!\" is no format of times"),
        ("split_part(s, ',', 0)", "field position must not be zero"),
        (
            "to_timestamp_millis(9223372036854775807)",
            "is the time 9223372036854775807, which can't be milliseconds since 1970",
        ),
    ] {
        let said = not_opened(&computed(expression), &input()).expect(expression);
        let begins = format!("column `q`: `{expression}`");
        assert!(said.starts_with(&begins), "{said}");
        assert!(said.contains(problem) && !said.contains('\n'), "{said}");
    }
    let said = not_opened(&filter("s ~ '('"), &input()).expect("it fails");
    assert_eq!(
        said,
        "`where`: `s ~ '('`: \"(\" is no regular expression: unclosed group"
    );
    let rare = computed("case when n > 1 then s ~ '(' else false end");
    let mut harness = Harness::new(&rare, &input());
    let failed = harness.try_process(input()).expect_err("it fails");
    let problem = "\"(\" is no regular expression: unclosed group, at record [ 2 1.0]";
    assert!(failed.to_string().ends_with(problem), "{failed}");
}

#[test]
fn constants_that_do_for_some_records_are_left_to_them() {
    for expression in [
        "case when n > 9 then s ~ '(' else false end",
        "s ~ '^a' or s ~ '('",
        "s ~ s",
        "regexp_like(s, s, 'i')",
        "regexp_instr(s, 'a', 99)",
        "date_part('day', to_timestamp(n))",
        "date_bin(interval '1 day', to_timestamp(n))",
        "date_bin(interval '1 month', to_timestamp(n))",
        "to_char(to_timestamp(n), '%Y-%m')",
        "to_char(to_timestamp(n), '')",
        "to_timestamp(s, '%Q', '%Y')",
        "substr(s, n)",
        "split_part(s, s, n)",
        "s ~ cast(null as varchar)",
        "f in (1.0, 2.0)",
    ] {
        let condition = format!("({expression}) is null");
        assert_eq!(
            not_opened(&filter(&condition), &input()),
            None,
            "{expression}"
        );
    }
}

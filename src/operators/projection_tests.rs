//! Results of `map`, `project` and `filter: { where: ... }`, compared with a small reference for arithmetic and
//! comparisons.

use arrow_array::{ArrayRef, BooleanArray, Float64Array, StringArray};
use proptest::prelude::*;
use tanist_model::{OperatorSpec, operators};

use super::*;
use crate::testing::{Harness, batch, ints, not_opened, texts};

fn input() -> RecordBatch {
    batch([
        (
            "s",
            Arc::new(StringArray::from(vec!["ab", "", "7"])) as ArrayRef,
        ),
        ("n", ints(&[1, 2, -3])),
        ("f", Arc::new(Float64Array::from(vec![0.5, 1.0, -2.0]))),
        ("t", Arc::new(BooleanArray::from(vec![true, false, true]))),
    ])
}

fn map(columns: &[(&str, &str)]) -> OperatorSpec {
    let columns = columns.iter().map(|&column| column.into()).collect();
    OperatorSpec::Map(operators::Map { columns })
}

fn project(columns: &[(&str, &str)]) -> OperatorSpec {
    let columns = columns.iter().map(|&column| column.into()).collect();
    OperatorSpec::Project(operators::Project { columns })
}

fn filter(condition: &str) -> OperatorSpec {
    let condition = condition.to_owned();
    OperatorSpec::Where(operators::Where { condition })
}

fn lines(spec: &OperatorSpec, input: &RecordBatch) -> Vec<String> {
    let mut harness = Harness::new(spec, input);
    harness.process(input.clone());
    harness.lines()
}

fn error(spec: &OperatorSpec, input: &RecordBatch) -> String {
    let mut harness = Harness::new(spec, input);
    let failed = harness.try_process(input.clone());
    failed.expect_err("it fails").to_string()
}

/// Returns the values of one expression.
fn values(expression: &str) -> Vec<String> {
    lines(&project(&[("x", expression)]), &input())
}

#[test]
fn map_adds_and_replaces_columns_and_keeps_the_others() {
    let spec = map(&[("n", "n * 10"), ("u", "upper(s) || cast(n as varchar)")]);
    assert_eq!(
        lines(&spec, &input()),
        [
            "ab 10 0.5 true AB1",
            " 20 1.0 false 2",
            "7 -30 -2.0 true 7-3"
        ]
    );
}

#[test]
fn project_emits_only_its_columns_in_their_order() {
    let spec = project(&[("twice", "n + n"), ("t", "not t")]);
    assert_eq!(lines(&spec, &input()), ["2 false", "4 true", "-6 false"]);
}

#[test]
fn where_passes_what_is_true_and_neither_false_nor_null() {
    let passed = |condition: &str| lines(&filter(condition), &input()).len();
    assert_eq!(passed("n > 0 and (t or f >= 1)"), 2);
    assert_eq!(passed("true"), 3);
    assert_eq!(passed("false"), 0);
    assert_eq!(passed("nullif(n, 2) > 0"), 1);
    assert_eq!(passed("nullif(n, 2) is null"), 1);
    assert_eq!(passed("try_cast(s as bigint) = 7"), 1);
    assert_eq!(passed("n > null"), 0);
}

#[test]
fn functions_give_what_they_are_documented_to_give() {
    assert_eq!(
        values("coalesce(try_cast(s as bigint), -1)"),
        ["-1", "-1", "7"]
    );
    assert_eq!(
        values("case when n > 1 then 'many' else 'few' end"),
        ["few", "many", "few"]
    );
    assert_eq!(values("substring(s from 1 for 1)"), ["a", "", "7"]);
    assert_eq!(values("char_length(s)"), ["2", "0", "1"]);
    assert_eq!(
        values("regexp_replace(s, '[a-z]', 'x', 'g')"),
        ["xx", "", "7"]
    );
    assert_eq!(values("s like 'a%'"), ["true", "false", "false"]);
    assert_eq!(values("abs(n) % 2"), ["1", "0", "1"]);
    assert_eq!(values("n / 2"), ["0", "1", "-1"]);
    assert_eq!(values("n / 2.0"), ["0.5", "1.0", "-1.5"]);
    assert_eq!(values("-n"), ["-1", "-2", "3"]);
    assert_eq!(
        values("extract(year from to_timestamp(n))"),
        ["1970", "1970", "1969"]
    );
    assert_eq!(
        values("cast(to_timestamp(0) as varchar)")[0],
        "1970-01-01T00:00:00"
    );
    assert_eq!(
        values("to_timestamp(n + 0.5)"),
        [
            "1970-01-01T00:00:01.500Z",
            "1970-01-01T00:00:02.500Z",
            "1969-12-31T23:59:57.500Z"
        ]
    );
    assert_eq!(
        values("date_trunc('day', cast('2026-01-02T03:04:05' as timestamp))")[0],
        "2026-01-02T00:00:00.000Z"
    );
    assert_eq!(values("5"), ["5", "5", "5"]);
    assert_eq!(
        values("cast(n as int) + cast(1 as smallint)"),
        ["2", "3", "-2"]
    );
}

#[test]
fn a_record_that_cannot_be_computed_is_named_with_column_and_expression() {
    let failed = error(&map(&[("q", "10 / (n - 2)")]), &input());
    assert_eq!(
        failed,
        "column `q`: `10 / (n - 2)`: Divide by zero error, at record [ 2 1.0 false]"
    );
    let failed = error(&map(&[("q", "cast(s as bigint)")]), &input());
    assert!(
        failed.starts_with("column `q`: `cast(s as bigint)`: "),
        "{failed}"
    );
    assert!(failed.ends_with("at record [ab 1 0.5 true]"), "{failed}");
    let failed = error(&filter("1 / (n + 3) > 0"), &input());
    assert_eq!(
        failed,
        "`where`: `1 / (n + 3) > 0`: Divide by zero error, at record [7 -3 -2.0 true]"
    );
    let overflows = error(&map(&[("q", "n + 9223372036854775807")]), &input());
    assert!(
        overflows.contains("verflow") && overflows.ends_with("[ab 1 0.5 true]"),
        "{overflows}"
    );
}

#[test]
fn what_can_be_computed_of_no_record_is_said_before_any_comes() {
    for (expression, problem) in [
        ("1 / 0", "Divide by zero error"),
        ("n / 0", "Divide by zero error"),
        ("n % (2 - 2)", "Divide by zero error"),
        ("n + 9223372036854775807 * 2", "verflow"),
        ("cast('x' as int)", "'x'"),
        (
            "case when 1 / 0 > n then 1 else 2 end",
            "Divide by zero error",
        ),
        ("cast(null as bigint)", "is null, and no column can be null"),
        (
            "lpad('a', 2147483647)",
            "lpad makes a text of 2147483647 bytes",
        ),
        (
            "rpad(s, 2147483647, '.')",
            "rpad makes a text of 2147483647 bytes",
        ),
        (
            "char_length(repeat(repeat('ab', 1000000), 100000))",
            "repeat makes a text of 200000000000 bytes",
        ),
    ] {
        let said = not_opened(&map(&[("q", expression)]), &input()).expect(expression);
        let begins = format!("column `q`: `{expression}`");
        assert!(said.starts_with(&begins), "{said}");
        assert!(said.contains(problem), "{said}");
    }
    let said = not_opened(&filter("n > 1 / 0"), &input()).expect("it fails");
    assert_eq!(said, "`where`: `n > 1 / 0`: Divide by zero error");
}

#[test]
fn a_time_that_no_column_can_hold_and_a_panic_in_a_function_are_errors_of_the_record() {
    let input = batch([("n", ints(&[1, i64::MIN, 2]))]);
    let failed = error(&map(&[("g", "to_timestamp_millis(n)")]), &input);
    assert_eq!(
        failed,
        "column `g`: `to_timestamp_millis(n)` is the time -9223372036854775808, which can't be milliseconds since 1970, at record [-9223372036854775808]"
    );
    let day = "date_trunc('day', to_timestamp_millis(n))";
    let failed = error(&project(&[("day", day)]), &input);
    assert_eq!(
        failed,
        format!(
            "column `day`: `{day}`: DataFusion panicked: attempt to subtract with overflow, at record [-9223372036854775808]"
        )
    );
    let nulls = "coalesce(nullif(to_timestamp_millis(n), to_timestamp_millis(n)), to_timestamp(0))";
    assert_eq!(
        lines(&project(&[("t", nulls)]), &input),
        ["1970-01-01T00:00:00.000Z"; 3]
    );
}

#[test]
fn what_is_evaluated_for_some_records_only_is_left_to_them() {
    for expression in [
        "case when n = 0 then 1 / 0 else n end",
        "case when n > 9 then char_length(repeat('a', 2147483647)) else n end",
        "coalesce(n, 1 / 0)",
        "nullif(n, 1) / nullif(0, 0)",
        "nullif(n, 1) / 0",
        "f / 0.0",
        "char_length(lpad(s, 2147483647, ''))",
        "char_length(replace(repeat('a', 10000), 'b', repeat('b', 10000)))",
    ] {
        assert_eq!(
            not_opened(&map(&[("q", expression)]), &input()),
            None,
            "{expression}"
        );
    }
    assert_eq!(not_opened(&filter("n > 9 and 1 / 0 = 1"), &input()), None);
    let rare = "case when n > 9 then char_length(repeat('a', 2147483647)) else n end";
    assert_eq!(values(rare), ["1", "2", "-3"]);
}

#[test]
fn a_null_has_no_place_in_a_column() {
    assert_eq!(
        error(&map(&[("q", "try_cast(s as bigint)")]), &input()),
        "column `q`: `try_cast(s as bigint)` is null, and no column can be null: write `coalesce(..., instead)`, at record [ab 1 0.5 true]"
    );
}

#[test]
fn records_that_grow_travel_in_smaller_batches() {
    let all: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let input = texts("s", &all);
    let spec = project(&[("s", "rpad(s, 10000, '.')")]);
    let mut operator = crate::testing::operator(&spec, input.schema()).expect("built");
    operator.open().expect("opened");
    let mut output = Output::default();
    operator.process(input, &mut output).expect("processed");
    let batches = output.into_batches();
    assert!(batches.iter().all(|batch| size_of(batch) <= BATCH_BYTES));
    let mut lines = Vec::new();
    for batch in &batches {
        tanist_dataflow::record::write_lines(batch, "", &mut lines);
    }
    let text = String::from_utf8(lines).expect("text");
    let begins: Vec<&str> = text
        .lines()
        .map(|line| line.trim_end_matches('.'))
        .collect();
    assert_eq!(begins, all);
}

#[test]
fn the_deepest_expression_is_evaluated_on_an_ordinary_stack() {
    let sum = vec!["n"; 128].join(" + ");
    assert_eq!(values(&sum), ["128", "256", "-384"]);
    let condition = vec!["n = 5"; 120].join(" or ");
    assert_eq!(lines(&filter(&condition), &input()).len(), 0);
    let not = format!("{}t", "not ".repeat(40));
    assert_eq!(values(&not), ["true", "false", "true"]);
}

/// An expression of integers over the columns `a` and `b`.
#[derive(Debug, Clone)]
enum Number {
    A,
    B,
    Constant(i64),
    Negative(Box<Number>),
    Of(Box<Number>, char, Box<Number>),
}

impl Number {
    fn text(&self) -> String {
        match self {
            Number::A => "a".into(),
            Number::B => "b".into(),
            Number::Constant(value) => format!("({value})"),
            Number::Negative(of) => format!("(- {})", of.text()),
            Number::Of(left, op, right) => format!("({} {op} {})", left.text(), right.text()),
        }
    }

    /// `None`: there is no such number.
    fn value(&self, a: i64, b: i64) -> Option<i64> {
        Some(match self {
            Number::A => a,
            Number::B => b,
            Number::Constant(value) => *value,
            Number::Negative(of) => of.value(a, b)?.checked_neg()?,
            Number::Of(left, op, right) => {
                let (left, right) = (left.value(a, b)?, right.value(a, b)?);
                match op {
                    '+' => left.checked_add(right)?,
                    '-' => left.checked_sub(right)?,
                    '*' => left.checked_mul(right)?,
                    '/' => left.checked_div(right)?,
                    // The remainder exists even where the quotient overflows.
                    _ if right == 0 => return None,
                    _ => left.wrapping_rem(right),
                }
            }
        })
    }
}

fn whole() -> impl Strategy<Value = i64> + Clone {
    prop_oneof![
        6 => -4..5_i64,
        1 => Just(i64::MAX),
        1 => Just(i64::MIN + 1),
        2 => any::<i32>().prop_map(i64::from),
    ]
}

fn number() -> impl Strategy<Value = Number> {
    let leaf = prop_oneof![
        Just(Number::A),
        Just(Number::B),
        whole().prop_map(Number::Constant)
    ];
    leaf.prop_recursive(4, 24, 2, |inner| {
        let ops = prop::sample::select(vec!['+', '-', '*', '/', '%']);
        prop_oneof![
            1 => inner.clone().prop_map(|of| Number::Negative(Box::new(of))),
            4 => (inner.clone(), ops, inner)
                .prop_map(|(left, op, right)| Number::Of(Box::new(left), op, Box::new(right))),
        ]
    })
}

fn compare(op: &str, left: i64, right: i64) -> bool {
    match op {
        "=" => left == right,
        "<>" => left != right,
        "<" => left < right,
        "<=" => left <= right,
        ">" => left > right,
        _ => left >= right,
    }
}

fn rows_of(rows: &[(i64, i64)]) -> RecordBatch {
    let a: Vec<i64> = rows.iter().map(|(a, _)| *a).collect();
    let b: Vec<i64> = rows.iter().map(|(_, b)| *b).collect();
    batch([("a", ints(&a)), ("b", ints(&b))])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn arithmetic_is_that_of_whole_numbers_up_to_the_first_record_that_has_none(
        number in number(), rows in prop::collection::vec((whole(), whole()), 1..9),
    ) {
        let input = rows_of(&rows);
        let text = number.text();
        let expected: Vec<Option<i64>> = rows.iter().map(|(a, b)| number.value(*a, *b)).collect();
        let spec = project(&[("x", &text)]);
        if let Some(said) = not_opened(&spec, &input) {
            prop_assert!(expected.iter().all(Option::is_none), "{text}: {said}");
            return Ok(());
        }
        let mut harness = Harness::new(&spec, &input);
        let processed = harness.try_process(input);
        match expected.iter().position(Option::is_none) {
            None => {
                prop_assert!(processed.is_ok(), "{text}: {processed:?}");
                let expected: Vec<String> = expected.iter().flatten().map(i64::to_string).collect();
                prop_assert_eq!(harness.lines(), expected);
            }
            Some(first) => {
                let failed = processed.map_or_else(|error| error.to_string(), |()| String::new());
                let record = format!("at record [{} {}]", rows[first].0, rows[first].1);
                prop_assert!(failed.ends_with(&record), "{text}: {failed}, not {record}");
            }
        }
    }

    #[test]
    fn comparisons_are_those_of_whole_numbers(
        left in number(), right in number(),
        op in prop::sample::select(vec!["=", "<>", "<", "<=", ">", ">="]),
        negated in any::<bool>(),
        rows in prop::collection::vec((whole(), whole()), 1..9),
    ) {
        // Another test covers records that can't be computed.
        let values = |(a, b): &(i64, i64)| left.value(*a, *b).zip(right.value(*a, *b));
        let rows: Vec<(i64, i64)> = rows.into_iter().filter(|row| values(row).is_some()).collect();
        let passes = |row: &&(i64, i64)| {
            values(row).is_some_and(|(left, right)| compare(op, left, right) != negated)
        };
        let expected: Vec<String> = rows.iter().filter(passes).map(|(a, b)| format!("{a} {b}")).collect();
        let not = if negated { "not " } else { "" };
        let condition = format!("{not}({} {op} {})", left.text(), right.text());
        prop_assume!(!rows.is_empty());
        prop_assert_eq!(lines(&filter(&condition), &rows_of(&rows)), expected, "{}", condition);
    }
}

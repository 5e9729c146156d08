//! Types of expressions, and messages for those that don't fit.

use super::*;

fn input() -> Schema {
    Schema::of([
        ("level", ColumnType::String),
        ("amount", ColumnType::Int64),
        ("share", ColumnType::Float64),
        ("seen", ColumnType::Bool),
        ("userId", ColumnType::Int64),
    ])
}

fn type_of(text: &str) -> Result<ColumnType, String> {
    let typed = on_deep_stack(|| column(text, &input()).map(|typed| typed.column_type));
    typed.expect("no panic")
}

fn says(text: &str, message: &str) {
    assert_eq!(type_of(text), Err(message.to_owned()), "\n{text}");
}

const INPUT: &str = "(level: string, amount: int64, share: float64, seen: bool, userId: int64)";

#[test]
fn expressions_have_the_type_of_the_column_that_holds_them() {
    use ColumnType::*;
    let typed = [
        ("amount", Int64),
        ("amount * 2", Int64),
        ("amount / 2", Int64),
        ("amount * 1.5", Float64),
        ("amount + share", Float64),
        ("cast(amount as double)", Float64),
        ("cast(amount as int)", Int64),
        ("try_cast(level as bigint)", Int64),
        ("upper(level) || '!'", String),
        ("level || amount", String),
        ("substring(level from 1 for 2)", String),
        ("char_length(level)", Int64),
        ("position('b' in level)", Int64),
        ("coalesce(nullif(level, ''), 'none')", String),
        ("amount > 10 and level = 'ERROR'", Bool),
        ("not seen or share is null", Bool),
        ("level like 'E%'", Bool),
        ("level ~ '^E'", Bool),
        ("regexp_like(level, '^E')", Bool),
        ("level in ('a', 'b')", Bool),
        ("amount between 1 and 10", Bool),
        ("case when amount > 0 then 'some' else 'none' end", String),
        ("date_part('year', to_timestamp(amount))", Int64),
        ("extract(hour from to_timestamp(amount))", Int64),
        ("to_char(to_timestamp(amount), '%Y')", String),
        ("cast(to_timestamp(amount) as varchar)", String),
        (
            "to_unixtime(date_trunc('hour', to_timestamp(amount)))",
            Int64,
        ),
        ("userId % 10", Int64),
        ("\"userId\" + 1", Int64),
        ("UPPER(level)", String),
        ("greatest(amount, 3)", Int64),
        ("to_timestamp(amount)", Timestamp),
        ("cast(level as timestamp)", Timestamp),
        ("date_trunc('hour', to_timestamp_millis(amount))", Timestamp),
        ("round(share, 2)", Float64),
        ("1", Int64),
        ("'a'", String),
    ];
    for (text, expected) in typed {
        assert_eq!(type_of(text), Ok(expected), "{text}");
    }
}

#[test]
fn names_that_are_not_there_are_said_with_their_place_and_what_there_is() {
    says(
        "amount > 10 and lvel = 'x'",
        &format!(
            "`amount > 10 and lvel = 'x'`, character 17: column `lvel` is not in its input {INPUT}; did you mean `level`?"
        ),
    );
    says(
        "userid + 1",
        &format!(
            "`userid + 1`, character 1: column `userid` is not in its input {INPUT}; did you mean `userId`?"
        ),
    );
    says(
        "level = \"ERROR\"",
        &format!(
            "`level = \"ERROR\"`, character 9: column `ERROR` is not in its input {INPUT}; there is: level, amount, share, seen, userId (texts stand in single quotes)"
        ),
    );
    says(
        "uper(level)",
        "`uper(level)`, character 1: there is no function `uper`; did you mean `upper`?",
    );
    says(
        "amount +\n  nothing_like_it(1)",
        "`amount + nothing_like_it(1)`, line 2, character 3: there is no function `nothing_like_it`; docs/reference/expressions.md lists them",
    );
    says(
        "t.amount",
        "`t.amount`, character 1: there are no tables here: write `amount` alone",
    );
}

#[test]
fn what_looks_beyond_the_record_is_refused() {
    let refused = [
        ("sum(amount)", "`sum` looks at many records"),
        ("count(*)", "`count` looks at many records"),
        ("row_number() over ()", "`row_number` looks at many records"),
        ("upper(level) over ()", "leave out what stands behind it"),
        ("now()", "`now` gives another value at each call"),
        (
            "current_date",
            "`current_date` gives another value at each call",
        ),
        (
            "random() < 0.5",
            "`random` gives another value at each call",
        ),
        ("uuid()", "`uuid` gives another value at each call"),
        ("(select 1)", "an expression has no subqueries"),
        ("exists (select 1)", "an expression has no subqueries"),
        ("amount in (select 1)", "an expression has no subqueries"),
        ("*", "character 1"),
        ("amount > $1", "`$1` stands for nothing"),
        ("@@version", "is not in its input"),
    ];
    for (text, message) in refused {
        let said = type_of(text).expect_err(text);
        assert!(said.contains(message), "{text}: {said}");
    }
}

#[test]
fn types_that_do_not_fit_are_said_with_the_part_that_does_not() {
    says(
        "amount > 10 and level",
        "`amount > 10 and level`: Cannot infer common argument type for logical boolean operation bool AND string",
    );
    says(
        "1 + (seen * 2)",
        "`1 + (seen * 2)`, character 6: in `seen * 2`: Cannot coerce arithmetic expression bool * int64 to valid types",
    );
    says(
        "null",
        "`null`: it is always null, and no column can be null",
    );
    says(
        "cast(level as date)",
        "`cast(level as date)`: it is date32, which no column can be: write `cast(... as varchar)`, or a function that gives a number or a text",
    );
    says(
        "cast(amount as decimal(10, 2))",
        "`cast(amount as decimal(10, 2))`: it is decimal128(10, 2), which no column can be: write `cast(... as double)`",
    );
    let said = type_of("upper(level, amount)").expect_err("two arguments");
    assert!(said.contains("upper"), "{said}");
    assert!(!said.contains('\n'), "{said}");
}

#[test]
fn what_is_no_expression_is_said_with_its_place() {
    says("", "it is empty: write an expression such as `amount * 2`");
    says(
        "amount >",
        "`amount >`: expected: an expression, found: EOF",
    );
    says(
        "amount 5",
        "`amount 5`, character 8: the expression ends before `5`: is an operator missing?",
    );
    says(
        "amount as a",
        "`amount as a`, character 8: an expression has no `as`: its name stands before it",
    );
    says(
        "level = 'x",
        "`level = 'x`, character 9: unterminated string literal",
    );
    says(
        "amount; drop table x",
        "`amount; drop table x`, character 7: the expression ends before `;`: is an operator missing?",
    );
}

#[test]
fn a_condition_is_true_or_false() {
    let said = |text: &str| {
        let typed = on_deep_stack(|| condition(text, &input()).map(drop));
        typed.expect("no panic")
    };
    assert_eq!(said("seen"), Ok(()));
    assert_eq!(said("amount > null"), Ok(()));
    assert_eq!(
        said("amount + 1"),
        Err("`amount + 1`: it is int64, but a condition is needed, such as `amount > 10`".into())
    );
}

#[test]
fn expressions_of_any_size_are_accepted_or_refused_but_end_nothing() {
    let chain = |length: usize| vec!["amount"; length].join(" + ");
    assert_eq!(type_of(&chain(100)), Ok(ColumnType::Int64));
    let list: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    let list = format!("amount in ({})", list.join(", "));
    assert_eq!(type_of(&list), Ok(ColumnType::Bool));
    let sizes = [130, 1_000, 1_500, 10_000];
    for length in sizes {
        let said = type_of(&chain(length)).expect_err("too long");
        assert!(
            said.contains("nested too deeply")
                || said.contains("longer than")
                || said.contains("words and signs"),
            "{said}"
        );
        for nested in [
            format!("{}1{}", "(".repeat(length), ")".repeat(length)),
            format!("{}seen", "not ".repeat(length)),
            format!("{}1", "-".repeat(length)),
            format!("{}1", "- ".repeat(length)),
            format!("amount{}", "::bigint".repeat(length)),
            format!("amount{}", "[1]".repeat(length)),
            "case when ".repeat(length),
            "(".repeat(length),
        ] {
            let said = type_of(&nested);
            assert!(said.is_err() || nested.starts_with("--"), "{nested}");
        }
    }
}

#[test]
fn nothing_is_evaluated_while_a_graph_is_checked() {
    // Evaluating any of these would take gigabytes.
    assert_eq!(
        type_of("repeat(repeat('x', 2000000000), 2000000000)"),
        Ok(ColumnType::String)
    );
    assert_eq!(type_of("lpad('x', 2000000000)"), Ok(ColumnType::String));
    // It fails when it is evaluated, since it may be in a branch that is never taken.
    assert_eq!(type_of("1 / 0"), Ok(ColumnType::Int64));
}

#[test]
fn a_column_is_named_whatever_it_is_called() {
    let odd = Schema::of([("select", ColumnType::Int64), ("a\"b", ColumnType::Bool)]);
    for name in ["select", "a\"b"] {
        let expression = NamedExpression::column(name).expression;
        let typed = on_deep_stack(|| column(&expression, &odd).map(|typed| typed.column_type));
        assert_eq!(
            typed.expect("no panic"),
            Ok(odd.column_type(name).expect("there"))
        );
    }
}

//! Generates `docs/reference/steps.md` from the declarations. A test compares the two; `cargo xtask fix` writes the
//! file.

use std::fmt::Write as _;

use super::{Section, Step, steps};

const INTRODUCTION: &str = "\
# Steps

<!-- Generated from the declarations in src/model/operators by `cargo xtask fix`. -->

The steps of a job file, with their fields. A field without a default is required. What a step can have besides its
operator (`name`, `input`, `parallelism`, ...) is in [the job file](job-file.md#steps).

| values | written as |
|---|---|
| a duration | a whole number with `ms`, `s`, `min`, `h` or `d`, such as `500 ms` |
| a size | a whole number with `b`, `kb`, `mb`, `gb` or `tb` (powers of 1024), such as `512 mb` |
| a type | `string`, `int64`, `float64`, `bool` or `timestamp`; with a `?`, as in `int64?`, a record may have no value |
| a column | the name of a column of the step's input, of a type without `?`; `project` also keeps columns of a type with `?` |

The examples are complete lists of `steps`.
";

/// The reference of all steps, in Markdown.
pub fn reference() -> String {
    let mut text = INTRODUCTION.to_owned();
    for (section, title) in [
        (Section::Sources, "Sources"),
        (Section::Transformations, "Transformations"),
        (Section::Sinks, "Sinks"),
    ] {
        write!(text, "\n## {title}\n").expect("writing to a string succeeds");
        for step in steps().filter(|step| step.section == section) {
            describe(&mut text, step);
        }
    }
    text
}

fn describe(text: &mut String, step: &Step) {
    write!(text, "\n### `{}`\n\n{}\n", step.name, step.text).expect("writing to a string succeeds");
    text.push_str(match step.fields {
        [] => "\nNo fields.\n",
        _ => "\n| Field | Values | Default | |\n|---|---|---|---|\n",
    });
    for field in step.fields.iter().copied().flatten() {
        writeln!(text, "| {field} |").expect("writing to a string succeeds");
    }
    write!(text, "\nCheckpoints: {}\n", step.checkpoints).expect("writing to a string succeeds");
    write!(text, "\n```yaml\n{}```\n", step.example).expect("writing to a string succeeds");
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::Position;
    use crate::Transformation;
    use crate::job_file::{Fields, Key, Node, Reader, Value};

    #[test]
    fn the_reference_in_docs_is_the_one_that_the_declarations_give() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/steps.md");
        if std::env::var_os("TANIST_TEST_WRITE_DOCS").is_some() {
            std::fs::write(path, reference()).expect("docs/reference/ can be written");
        }
        let written = std::fs::read_to_string(path).expect("docs/reference/steps.md is there");
        assert!(
            written == reference(),
            "docs/reference/steps.md is out of date: run `cargo xtask fix`"
        );
    }

    #[test]
    fn no_cell_of_the_reference_breaks_its_table() {
        for line in reference().lines().filter(|line| line.starts_with("| `")) {
            assert_eq!(line.matches('|').count(), 5, "{line}");
        }
    }

    #[test]
    fn no_two_steps_have_one_name() {
        let mut seen = HashSet::new();
        assert!(steps().all(|step| seen.insert(step.name)));
    }

    /// Reads a step that has only this field, with a text.
    fn with_field(step: &Step, name: &str) -> Option<Transformation> {
        let position = Position { line: 1, column: 1 };
        let key = Key {
            text: name.to_owned(),
            position,
        };
        let value = Value::Scalar {
            text: "1".to_owned(),
            written: None,
        };
        let fields = Value::Map(vec![(key, Node { position, value })]);
        let node = Node {
            position,
            value: fields,
        };
        let mut reader = Reader::default();
        (step.read)(&mut Fields::of(&node, &mut reader), &mut reader)
    }

    #[test]
    fn the_reference_has_the_fields_that_are_read() {
        for step in steps() {
            let nothing = Node {
                position: Position { line: 1, column: 1 },
                value: Value::Map(Vec::new()),
            };
            let mut reader = Reader::default();
            let mut fields = Fields::of(&nothing, &mut reader);
            let read = (step.read)(&mut fields, &mut reader);
            let rows = step.fields.iter().copied().flatten();
            let described: Vec<(&str, &str)> = rows
                .map(|row| {
                    let cells: Vec<&str> = row.split(" | ").collect();
                    assert_eq!(cells.len(), 4, "{row}");
                    (cells[0].trim_matches('`'), cells[2])
                })
                .filter(|(name, _)| !name.contains('.') && *name != "NAME")
                .collect();
            let names: HashSet<&str> = described.iter().map(|(name, _)| *name).collect();
            let requested: HashSet<&str> = fields.requested().into_iter().collect();
            assert_eq!(names, requested, "fields of `{}`", step.name);
            // Without any field a step is read if none is required.
            let is_required = |default: &str| default.starts_with("required");
            let has_required = described.iter().any(|(_, default)| is_required(default));
            assert_eq!(read.is_none(), has_required, "`{}`: {read:?}", step.name);
            // A field that is required whatever the others are can't be replaced by an optional one.
            let always = described.iter().any(|(_, default)| *default == "required");
            for (name, _) in described.iter().filter(|(_, it)| !is_required(it)) {
                let read = with_field(step, name);
                let message = format!("`{}` with `{name}`: {read:?}", step.name);
                assert!(read.is_none() || !always, "{message}");
            }
        }
    }
}

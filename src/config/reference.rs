//! Generates `docs/reference/configuration.md` from the table. A test compares the two; `cargo xtask fix` writes the
//! file.

use std::fmt::Write as _;

use super::table::{DefaultValue, OptionSpec, options};

const INTRODUCTION: &str = "\
# Configuration

<!-- Generated from the table in src/config/table.rs by `cargo xtask fix`. -->

This page lists every option, and says how options are set. `tanist config` shows the value of each, and where it comes
from. Options have Flink's names where they mean the same.

Values come from one YAML file (`--config FILE`, or `tanist.yaml` in the directory that `TANIST_CONF_DIR` names), from
environment variables, and from `-D key=value`; each source overrides the ones before. In the file, nested maps and
dotted keys mean the same:

```yaml
high-availability:
  type: etcd
high-availability.etcd.endpoints: [etcd-1:2379, etcd-2:2379]
```

The environment variable of a key is `TANIST_` and the key in capitals, with `_` for `.` and `-`: `rest.port` is
`TANIST_REST_PORT`. A key or `TANIST_` variable that is not listed here is an error, except `TANIST_CONF_DIR`,
`TANIST_LOG` (a log filter such as `info,tanist_rpc=debug`), `TANIST_FAILPOINTS` and `TANIST_TEST_...` (both for
tests).

Durations are whole numbers with `ms`, `s`, `min`, `h` or `d` (a bare number is in milliseconds). Sizes are numbers
with `b`, `kb`, `mb`, `gb` or `tb` (powers of 1024; a bare number is in bytes). Lists are YAML lists or separated by
commas. A port is a number, 0 for any free port, a range (`50100-50200`) or a list of these. Files in `deploy/` show
one complete configuration for each store.
";

/// The reference of all options, in Markdown.
pub fn reference() -> String {
    let mut text = INTRODUCTION.to_owned();
    let mut section = "";
    for spec in options() {
        if spec.section != section {
            section = spec.section;
            let header = "| Key | Type | Default | |\n|---|---|---|---|";
            write!(text, "\n## {section}\n\n{header}\n").expect("writing to a string succeeds");
        }
        row(&mut text, spec);
    }
    text
}

fn row(text: &mut String, spec: &OptionSpec) {
    let default = match spec.default {
        DefaultValue::Value(value) => format!("`{value}`"),
        DefaultValue::Derived(words) => words.to_owned(),
        DefaultValue::Unset => "none".to_owned(),
    };
    let secret = if spec.secret { " Never shown." } else { "" };
    writeln!(
        text,
        "| `{}` | {} | {default} | {}{secret} |",
        spec.key, spec.kind, spec.description
    )
    .expect("writing to a string succeeds");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_in_docs_is_the_one_that_the_table_gives() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/configuration.md"
        );
        if std::env::var_os("TANIST_TEST_WRITE_DOCS").is_some() {
            std::fs::write(path, reference()).expect("docs/ can be written");
        }
        let written =
            std::fs::read_to_string(path).expect("docs/reference/configuration.md is there");
        assert!(
            written == reference(),
            "docs/reference/configuration.md is out of date: run `cargo xtask fix`"
        );
    }

    #[test]
    fn no_cell_of_the_reference_breaks_its_table() {
        for line in reference().lines().filter(|line| line.starts_with("| `")) {
            assert_eq!(line.matches('|').count(), 5, "{line}");
        }
    }
}

//! Generates `docs/reference/cli.md` from the definition of the arguments. A test compares the two; `cargo xtask fix`
//! writes the file.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory as _};

use super::args::Cli;

const INTRODUCTION: &str = "\
# Command line

<!-- Generated from the definition in src/cli/args.rs by `cargo xtask fix`. -->

This page lists the commands of `tanist`, with their arguments and options. Every command takes the options of all
commands, and ends with one of the [exit codes](exit-codes.md). The binary of an
[application](../guides/applications.md) has its own commands, with these options.

`tanist run` waits for the end of its job. Answers are on standard output, progress and errors on standard error.
";

/// Length of a line of prose, in characters, with room for a full stop.
const LINE: usize = 118;

/// The reference of all commands, in Markdown.
fn reference() -> String {
    let mut text = INTRODUCTION.to_owned();
    let mut root = Cli::command();
    root.build();
    text.push_str("\n## Options of all commands\n\n");
    table(&mut text, root.get_arguments().filter(|it| is_shown(it)));
    for command in root.get_subcommands() {
        section(&mut text, command);
    }
    text
}

fn section(text: &mut String, command: &Command) {
    if command.get_name() == "help" || command.is_hide_set() {
        return;
    }
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_about().map(ToString::to_string);
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    write!(text, "\n## {name}\n\n").expect("writing to a string succeeds");
    if let Some(about) = about {
        write!(text, "{}.\n\n", wrapped(&about)).expect("writing to a string succeeds");
    }
    write!(text, "```text\n{usage}\n```\n").expect("writing to a string succeeds");
    let own: Vec<&Arg> = command
        .get_arguments()
        .filter(|it| is_shown(it) && !it.is_global_set())
        .collect();
    if !own.is_empty() {
        text.push('\n');
        table(text, own.into_iter());
    }
    for command in command.get_subcommands() {
        section(text, command);
    }
}

/// A text in lines of prose.
fn wrapped(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < LINE => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

/// Whether an argument is a part of the reference. Help and version are the same everywhere.
fn is_shown(argument: &Arg) -> bool {
    !argument.is_hide_set() && !["help", "version"].contains(&argument.get_id().as_str())
}

fn table<'a>(text: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    text.push_str("| argument | meaning |\n|---|---|\n");
    for argument in arguments {
        let help = argument.get_help().map(ToString::to_string);
        let mut meaning = help.unwrap_or_default();
        let possible: Vec<String> = argument
            .get_possible_values()
            .iter()
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if argument.get_action().takes_values() && !possible.is_empty() {
            let values = possible.join(", ");
            write!(meaning, ": {values}").expect("writing to a string succeeds");
        }
        let default = argument.get_default_values().first();
        let default = default.map(|default| default.to_string_lossy());
        let is_said = |default: &str| !default.is_empty() && argument.get_action().takes_values();
        if let Some(default) = default.filter(|default| is_said(default)) {
            write!(meaning, "; default: `{default}`").expect("writing to a string succeeds");
        }
        writeln!(text, "| `{}` | {meaning} |", written(argument))
            .expect("writing to a string succeeds");
    }
}

/// An argument as it is written, such as `-o, --output <OUTPUT>`.
fn written(argument: &Arg) -> String {
    let values: Vec<String> = argument
        .get_value_names()
        .unwrap_or_default()
        .iter()
        .map(|name| format!("<{name}>"))
        .collect();
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let has_optional_value = argument
        .get_num_args()
        .is_some_and(|number| number.min_values() == 0);
    if has_optional_value && argument.is_require_equals_set() {
        return format!("{}[={}]", names.join(", "), values.join(" "));
    }
    let takes_values = argument.get_action().takes_values();
    match (names.is_empty(), takes_values) {
        (true, _) => values.join(" "),
        (false, true) => format!("{} {}", names.join(", "), values.join(" ")),
        (false, false) => names.join(", "),
    }
}

#[test]
fn the_reference_in_docs_is_the_one_that_the_definition_gives() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
    if std::env::var_os("TANIST_TEST_WRITE_DOCS").is_some() {
        std::fs::write(path, reference()).expect("docs/ can be written");
    }
    let written = std::fs::read_to_string(path).expect("docs/reference/cli.md is there");
    assert!(
        written == reference(),
        "docs/reference/cli.md is out of date: run `cargo xtask fix`"
    );
}

#[test]
fn every_command_has_a_section_and_no_cell_breaks_its_table() {
    let text = reference();
    for section in [
        "tanist run",
        "tanist ha accept",
        "tanist job quarantine retry",
    ] {
        assert!(text.contains(&format!("\n## {section}\n")), "{section}");
    }
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        assert_eq!(line.matches('|').count(), 3, "{line}");
    }
}

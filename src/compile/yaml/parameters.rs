//! Parameters of a job file: `${name}` and `${name:-default}` in any value, `$${` for a literal `${`.
//!
//! Values are substituted in the tree, not in the file's text, so no value can change the file's structure.
//! Substituted values are not expanded again.

use std::collections::{BTreeMap, BTreeSet};

use tanist_model::job_file::{Fields, Node, Reader, Value};
use tanist_model::problem::{Position, Problem, nearest};

/// Prefix of a reference to an artifact, which is not a parameter.
const ARTIFACT: &str = "artifact:";

/// The parameters of one job file, and which of them were used while its values are substituted.
pub(super) struct Parameters<'a> {
    given: &'a BTreeMap<String, String>,
    /// From the `parameters` section, with their defaults.
    declared: BTreeMap<String, Option<String>>,
    used: BTreeSet<String>,
    /// Parameters without a value, with the position of their first use.
    missing: BTreeMap<String, (Position, Option<String>)>,
}

impl<'a> Parameters<'a> {
    /// Reads the `parameters` section, if there is one.
    pub(super) fn declare(
        given: &'a BTreeMap<String, String>,
        section: Option<&Node>,
        reader: &mut Reader,
    ) -> Parameters<'a> {
        let mut declared = BTreeMap::new();
        let fields = match section.map(|section| &section.value) {
            None | Some(Value::Null) => &[][..],
            Some(Value::Map(fields)) => fields,
            Some(_) => {
                let position = section.map(|section| section.position);
                reader.problem(
                    position,
                    "`parameters` is a map from names to defaults: write `name: default`",
                );
                &[]
            }
        };
        for (key, node) in fields {
            if !is_name(&key.text) {
                reader.problem(
                    Some(key.position),
                    format!(
                        "`{}` is no parameter name: write letters, digits, `_`, `-` and `.`",
                        key.text
                    ),
                );
                continue;
            }
            let default = match &node.value {
                Value::Null | Value::Unreadable => None,
                Value::Scalar { text, .. } => Some(text.clone()),
                Value::List(_) => {
                    reader.problem(
                        Some(node.position),
                        format!(
                            "the default of parameter `{}` is a list: write a text",
                            key.text
                        ),
                    );
                    None
                }
                Value::Map(_) => {
                    let mut fields = Fields::of(node, reader);
                    let default = fields.optional("default", reader, Reader::text);
                    let _ = fields.optional("description", reader, Reader::text);
                    fields.finish(&format!("parameter `{}`", key.text), reader);
                    default
                }
            };
            declared.insert(key.text.clone(), default);
        }
        Parameters {
            given,
            declared,
            used: BTreeSet::new(),
            missing: BTreeMap::new(),
        }
    }

    /// Substitutes the parameters in a part of the tree.
    pub(super) fn substitute(&mut self, node: &mut Node, reader: &mut Reader) {
        match &mut node.value {
            Value::Null | Value::Unreadable => {}
            Value::List(items) => {
                items
                    .iter_mut()
                    .for_each(|item| self.substitute(item, reader));
            }
            Value::Map(fields) => {
                fields
                    .iter_mut()
                    .for_each(|(_, value)| self.substitute(value, reader));
            }
            Value::Scalar { text, written } => {
                if !text.contains("${") {
                    return;
                }
                match self.expand(text, node.position, reader) {
                    Some(expanded) => {
                        // A text without parameters, which only has `$${`, is shown in messages as it is.
                        let unescaped_only = *text == expanded.replace("${", "$${");
                        *written =
                            (!unescaped_only).then(|| std::mem::replace(text, expanded.clone()));
                        *text = expanded;
                    }
                    None => node.value = Value::Unreadable,
                }
            }
        }
    }

    /// Substitutes the parameters in a text; `None` if one has no value or can't be read, which is reported.
    fn expand(&mut self, text: &str, position: Position, reader: &mut Reader) -> Option<String> {
        let mut expanded = String::with_capacity(text.len());
        let mut complete = true;
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            let (before, after) = (&rest[..start], &rest[start + 2..]);
            if let Some(before) = before.strip_suffix('$') {
                expanded.push_str(before);
                expanded.push_str("${");
                rest = after;
                continue;
            }
            expanded.push_str(before);
            let Some(end) = after.find('}') else {
                reader.problem(
                    Some(position),
                    format!("`${{{after}` has no end: write `${{name}}`, or `$${{` for the characters themselves"),
                );
                return None;
            };
            let reference = &after[..end];
            rest = &after[end + 1..];
            if reference.starts_with(ARTIFACT) {
                // Its value is known only where the program runs.
                expanded.push_str("${");
                expanded.push_str(reference);
                expanded.push('}');
                continue;
            }
            let (name, default) = match reference.split_once(":-") {
                Some((name, default)) => (name, Some(default)),
                None => (reference, None),
            };
            if !is_name(name) {
                reader.problem(
                    Some(position),
                    format!("`${{{reference}}}` is no parameter: write `${{name}}` or `${{name:-default}}`, or `$${{` for the characters themselves"),
                );
                complete = false;
                continue;
            }
            match self.value(name, default) {
                Some(value) => expanded.push_str(&value),
                None => {
                    let first = (position, reader.step().map(str::to_owned));
                    self.missing.entry(name.to_owned()).or_insert(first);
                    complete = false;
                }
            }
        }
        expanded.push_str(rest);
        complete.then_some(expanded)
    }

    /// The value of a parameter: the given one, else the default where it is used, else the declared default.
    fn value(&mut self, name: &str, default: Option<&str>) -> Option<String> {
        self.used.insert(name.to_owned());
        self.given
            .get(name)
            .cloned()
            .or_else(|| default.map(str::to_owned))
            .or_else(|| self.declared.get(name).cloned().flatten())
    }

    /// Reports parameters without a value, and values for unknown parameters.
    pub(super) fn finish(self, reader: &mut Reader) {
        let names: BTreeSet<&str> = self
            .declared
            .keys()
            .chain(&self.used)
            .map(String::as_str)
            .collect();
        let list: Vec<&str> = names.iter().copied().collect();
        let list = if list.is_empty() {
            "this job has no parameters".to_owned()
        } else {
            format!("parameters: {}", list.join(", "))
        };
        for (name, (position, step)) in &self.missing {
            reader.add(Problem {
                position: Some(*position),
                step: step.clone(),
                message: format!(
                    "parameter `{name}` has no value: set it with `--param {name}=...` ({list})"
                ),
            });
        }
        for name in self
            .given
            .keys()
            .filter(|name| !names.contains(name.as_str()))
        {
            let meant = nearest(name, names.iter().copied())
                .map(|meant| format!("; did you mean `{meant}`?"))
                .unwrap_or_default();
            reader.problem(
                None,
                format!("there is no parameter `{name}`{meant} ({list})"),
            );
        }
    }
}

fn is_name(text: &str) -> bool {
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

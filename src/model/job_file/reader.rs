//! Reads typed fields of a tree and collects their problems.
//!
//! A function that returns `None` has reported why, except for an optional field that is absent, and for a value that
//! is [`Value::Unreadable`], which was reported before. [`Fields::finish`] has to be called for each map: it reports
//! the fields that the reading code did not request.

use std::str::FromStr;
use std::time::Duration;

use crate::problem::{Position, Problem, instead};

use super::node::{Key, Node, Value};

/// Collects problems, with the step that they are about.
#[derive(Debug, Default)]
pub struct Reader {
    problems: Vec<Problem>,
    step: Option<String>,
}

impl Reader {
    /// Sets the step that further problems are about; `None` for the whole job.
    pub fn begin_step(&mut self, step: Option<String>) {
        self.step = step;
    }

    /// The step that further problems are about.
    pub fn step(&self) -> Option<&str> {
        self.step.as_deref()
    }

    /// Ends reading; returns the problems.
    pub fn finish(self) -> Vec<Problem> {
        self.problems
    }

    /// Reports a problem.
    pub fn problem(&mut self, position: Option<Position>, message: impl Into<String>) {
        self.add(Problem {
            position,
            step: self.step.clone(),
            message: message.into(),
        });
    }

    /// Reports a problem that may be about another step.
    pub fn add(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Reports that a field does not have the wanted type.
    pub fn wrong(&mut self, field: &str, node: &Node, wanted: &str) {
        let message = format!("`{field}` is {}: write {wanted}", node.describe());
        self.problem(Some(node.position), message);
    }

    /// Reads a text; numbers and booleans are texts too.
    pub fn text(&mut self, field: &str, node: &Node) -> Option<String> {
        match &node.value {
            Value::Scalar { text, .. } => Some(text.clone()),
            Value::Unreadable => None,
            Value::Null | Value::List(_) | Value::Map(_) => {
                self.wrong(field, node, "a text");
                None
            }
        }
    }

    fn parsed<T: FromStr>(&mut self, field: &str, node: &Node, wanted: &str) -> Option<T> {
        let parsed = match &node.value {
            Value::Unreadable => return None,
            Value::Scalar { text, .. } => text.trim().replace('_', "").parse().ok(),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        };
        if parsed.is_none() {
            self.wrong(field, node, wanted);
        }
        parsed
    }

    /// Reads a whole number.
    pub fn u64(&mut self, field: &str, node: &Node) -> Option<u64> {
        self.parsed(field, node, "a whole number of at least 0")
    }

    /// Reads a whole number of 32 bits.
    pub fn u32(&mut self, field: &str, node: &Node) -> Option<u32> {
        self.parsed(
            field,
            node,
            &format!("a whole number from 0 to {}", u32::MAX),
        )
    }

    /// Reads a number.
    pub fn f64(&mut self, field: &str, node: &Node) -> Option<f64> {
        self.parsed(field, node, "a number")
    }

    /// Reads a boolean.
    pub fn bool(&mut self, field: &str, node: &Node) -> Option<bool> {
        self.parsed(field, node, "`true` or `false`")
    }

    /// Reads one of several words.
    pub fn one_of<T: Copy>(
        &mut self,
        field: &str,
        node: &Node,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let text = self.text(field, node)?;
        let chosen = choices
            .iter()
            .find(|(name, _)| *name == text.trim())
            .map(|(_, value)| *value);
        if chosen.is_none() {
            let instead = instead(&text, choices.iter().map(|(name, _)| *name));
            self.problem(
                Some(node.position),
                format!("`{field}` can't be {}; {instead}", node.describe()),
            );
        }
        chosen
    }

    /// Reads a list of texts; a single text is a list of one.
    pub fn texts(&mut self, field: &str, node: &Node) -> Option<Vec<String>> {
        match &node.value {
            Value::List(items) => {
                let texts: Vec<_> = items.iter().map(|item| self.text(field, item)).collect();
                texts.into_iter().collect()
            }
            Value::Scalar { text, .. } => Some(vec![text.clone()]),
            Value::Unreadable => None,
            Value::Null | Value::Map(_) => {
                self.wrong(field, node, "a list such as `[a, b]`");
                None
            }
        }
    }

    /// Returns the fields of a map, which may have any names.
    pub fn map<'n>(
        &mut self,
        field: &str,
        node: &'n Node,
        wanted: &str,
    ) -> Option<&'n [(Key, Node)]> {
        match &node.value {
            Value::Map(fields) => Some(fields),
            Value::Unreadable => None,
            Value::Null | Value::Scalar { .. } | Value::List(_) => {
                self.wrong(field, node, wanted);
                None
            }
        }
    }

    /// Reads a duration with its unit.
    pub fn duration(&mut self, field: &str, node: &Node) -> Option<Duration> {
        let duration = match &node.value {
            Value::Unreadable => return None,
            Value::Scalar { text, .. } => parse_duration(text),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        };
        if duration.is_none() {
            self.wrong(
                field,
                node,
                "a number and a unit, such as `500 ms`, `10 s`, `5 min` or `1 h`",
            );
        }
        duration
    }

    /// Reads a size with its unit, in bytes.
    pub fn bytes(&mut self, field: &str, node: &Node) -> Option<u64> {
        let size = parse_bytes(&self.text(field, node)?);
        if size.is_none() {
            self.wrong(
                field,
                node,
                "a number and a unit, such as `512 mb` or `2 gb`",
            );
        }
        size
    }
}

fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "b" => 0,
        "k" | "kb" => 10,
        "m" | "mb" => 20,
        "g" | "gb" => 30,
        "t" | "tb" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit_millis = match text[digits..].trim() {
        "ms" => 1,
        "s" | "sec" => 1_000,
        "min" | "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(unit_millis).map(Duration::from_millis)
}

/// The fields of a map. Every field must be requested; others are unknown.
#[derive(Debug)]
pub struct Fields<'n> {
    position: Position,
    fields: &'n [(Key, Node)],
    /// The names that were requested, each once.
    known: Vec<&'static str>,
    /// Whether a missing required field is reported. Not for a node that is no map: that was reported as a whole.
    reports_missing: bool,
    /// Whether a field may have any name.
    takes_all: bool,
}

impl<'n> Fields<'n> {
    /// The fields of a node; an empty node has none.
    pub fn of(node: &'n Node, reader: &mut Reader) -> Fields<'n> {
        let fields = match &node.value {
            Value::Map(fields) => fields.as_slice(),
            Value::Null | Value::Unreadable => &[],
            Value::Scalar { .. } | Value::List(_) => {
                reader.problem(
                    Some(node.position),
                    format!(
                        "fields are expected, not {}: write `{{ field: value }}`",
                        node.describe()
                    ),
                );
                &[]
            }
        };
        let reports_missing = matches!(node.value, Value::Map(_) | Value::Null);
        Fields {
            position: node.position,
            fields,
            known: Vec::new(),
            reports_missing,
            takes_all: false,
        }
    }

    /// Returns the node of a field, if it exists and is not null.
    pub fn node(&mut self, name: &'static str) -> Option<&'n Node> {
        if !self.known.contains(&name) {
            self.known.push(name);
        }
        let (_, node) = self.fields.iter().find(|(key, _)| key.text == name)?;
        (node.value != Value::Null).then_some(node)
    }

    /// Whether a field exists and is null.
    pub fn is_null(&self, name: &str) -> bool {
        self.fields
            .iter()
            .any(|(key, node)| key.text == name && node.value == Value::Null)
    }

    /// All fields that were not requested before. From here on no field is unknown: they may have any names.
    pub fn others(&mut self) -> impl Iterator<Item = (&'n Key, &'n Node)> + use<'n> {
        self.takes_all = true;
        let (fields, known) = (self.fields, self.known.clone());
        let others = fields
            .iter()
            .filter(move |(key, _)| !known.contains(&key.text.as_str()));
        others.map(|(key, node)| (key, node))
    }

    /// The names of the fields that were requested, each once, in the order of the requests.
    pub fn requested(&self) -> Vec<&'static str> {
        self.known.clone()
    }

    /// Reads an optional field.
    pub fn optional<T>(
        &mut self,
        name: &'static str,
        reader: &mut Reader,
        read: impl FnOnce(&mut Reader, &str, &Node) -> Option<T>,
    ) -> Option<T> {
        let node = self.node(name)?;
        read(reader, name, node)
    }

    /// [`Fields::optional`] for numbers, durations and choices: an empty text from a parameter counts as
    /// absent, so that a parameter can disable the field.
    pub fn optional_value<T>(
        &mut self,
        name: &'static str,
        reader: &mut Reader,
        read: impl FnOnce(&mut Reader, &str, &Node) -> Option<T>,
    ) -> Option<T> {
        let node = self.node(name)?;
        let switched_off = matches!(
            &node.value,
            Value::Scalar { text, written: Some(_) } if text.trim().is_empty()
        );
        if switched_off {
            None
        } else {
            read(reader, name, node)
        }
    }

    /// Reads a required field; `None` if it is missing or can't be read, which is reported.
    pub fn required<T>(
        &mut self,
        name: &'static str,
        example: &str,
        reader: &mut Reader,
        read: impl FnOnce(&mut Reader, &str, &Node) -> Option<T>,
    ) -> Option<T> {
        match self.node(name) {
            Some(node) => read(reader, name, node),
            None => {
                if self.reports_missing {
                    let message = format!("`{name}` is missing: write `{name}: {example}`");
                    reader.problem(Some(self.position), message);
                }
                None
            }
        }
    }

    /// Reports every field that was not requested.
    pub fn finish(self, what: &str, reader: &mut Reader) {
        if self.takes_all {
            return;
        }
        for (key, _) in self
            .fields
            .iter()
            .filter(|(key, _)| !self.known.contains(&key.text.as_str()))
        {
            let instead = instead(&key.text, self.known.iter().copied());
            reader.problem(
                Some(key.position),
                format!("{what} has no field `{}`; {instead}", key.text),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("500 ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("10s"), Some(Duration::from_secs(10)));
        assert_eq!(parse_duration(" 2 min "), Some(Duration::from_secs(120)));
        assert_eq!(parse_duration("10"), None);
        assert_eq!(parse_duration("ten s"), None);
        assert_eq!(parse_duration("18446744073709551615 d"), None);
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_bytes("512 mb"), Some(512 << 20));
        assert_eq!(parse_bytes("2GB"), Some(2 << 30));
        assert_eq!(parse_bytes("7 b"), Some(7));
        assert_eq!(parse_bytes("7"), None);
        assert_eq!(parse_bytes("18446744073709551615 kb"), None);
    }
}

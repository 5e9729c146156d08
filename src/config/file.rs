//! Reads the YAML file into flat keys: nested maps and dotted keys mean the same.
//!
//! It knows no options. A scalar is taken as it is written (`007` stays `007`, `no` stays `no`), because only
//! its option knows its type; a list becomes its items, separated by commas.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// A key with its value and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) text: String,
    pub(super) line: u64,
}

/// A part of the file that is not a valid entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Misfit {
    pub(super) key: Option<String>,
    pub(super) message: String,
    pub(super) line: u64,
}

/// Reads `source`. One unreadable part does not hide the others, unless the file is not YAML at all.
pub(super) fn read(source: &str) -> (Vec<Entry>, Vec<Misfit>) {
    let mut flat = Flat {
        source,
        entries: Vec::new(),
        misfits: Vec::new(),
    };
    match serde_saphyr::from_str::<Spanned<Node>>(source) {
        Ok(root) => match root.value {
            Node::Null => {}
            Node::Mapping(pairs) => flat.mapping("", pairs),
            Node::Sequence(_) | Node::Text(_) | Node::Inferred => {
                let message = "the file must consist of lines such as `rest.port: 8081`".to_owned();
                flat.misfits.push(Misfit {
                    key: None,
                    message,
                    line: root.referenced.line(),
                });
            }
        },
        Err(error) => {
            // Without the snippet: it would show a password near the mistake.
            let error = error.without_snippet();
            let line = error.location().map_or(1, |location| location.line());
            flat.misfits.push(Misfit {
                key: None,
                message: format!("no valid YAML: {error}"),
                line,
            });
        }
    }
    (flat.entries, flat.misfits)
}

struct Flat<'a> {
    source: &'a str,
    entries: Vec<Entry>,
    misfits: Vec<Misfit>,
}

impl Flat<'_> {
    fn mapping(&mut self, prefix: &str, pairs: Vec<(Spanned<String>, Spanned<Node>)>) {
        for (name, value) in pairs {
            let key = if prefix.is_empty() {
                name.value
            } else {
                format!("{prefix}.{}", name.value)
            };
            let line = name.referenced.line();
            match value.value {
                Node::Mapping(pairs) => self.mapping(&key, pairs),
                Node::Sequence(items) => self.sequence(key, line, items),
                Node::Null => {
                    self.misfit(key, line, "has no value: give it one or remove the line")
                }
                scalar @ (Node::Text(_) | Node::Inferred) => {
                    let text = self.scalar(scalar, value.defined);
                    self.entries.push(Entry { key, text, line });
                }
            }
        }
    }

    fn sequence(&mut self, key: String, line: u64, items: Vec<Spanned<Node>>) {
        let mut texts = Vec::new();
        for item in items {
            match item.value {
                Node::Mapping(_) | Node::Sequence(_) | Node::Null => {
                    return self.misfit(key, item.referenced.line(), "must list plain values");
                }
                scalar @ (Node::Text(_) | Node::Inferred) => {
                    let text = self.scalar(scalar, item.defined);
                    if text.contains(',') {
                        let line = item.referenced.line();
                        return self.misfit(key, line, "has a comma in an item of its list");
                    }
                    texts.push(text);
                }
            }
        }
        self.entries.push(Entry {
            key,
            text: texts.join(","),
            line,
        });
    }

    fn misfit(&mut self, key: String, line: u64, message: &str) {
        self.misfits.push(Misfit {
            key: Some(key),
            message: message.to_owned(),
            line,
        });
    }

    /// The scalar as written. If the parser took it for a number or boolean, its text is cut out of the source.
    fn scalar(&self, node: Node, at: Location) -> String {
        match node {
            Node::Text(text) => text.trim().to_owned(),
            Node::Inferred | Node::Null | Node::Mapping(_) | Node::Sequence(_) => {
                let span = at.span();
                let range = span
                    .byte_offset()
                    .zip(span.byte_len())
                    .and_then(|(start, length)| {
                        let start = usize::try_from(start).ok()?;
                        Some(start..start.checked_add(usize::try_from(length).ok()?)?)
                    });
                range
                    .and_then(|range| self.source.get(range))
                    .unwrap_or_default()
                    .trim()
                    .to_owned()
            }
        }
    }
}

/// A YAML node. Scalars keep their text: only options know types.
enum Node {
    Mapping(Vec<(Spanned<String>, Spanned<Node>)>),
    Sequence(Vec<Spanned<Node>>),
    Text(String),
    /// A scalar that the parser took for a boolean or number.
    Inferred,
    Null,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list or a mapping")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = access.next_entry()? {
            pairs.push(pair);
        }
        Ok(Node::Mapping(pairs))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Node::Sequence(items))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Inferred)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Inferred)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Inferred)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Node, E> {
        Ok(Node::Inferred)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Node, E> {
        Ok(Node::Inferred)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Inferred)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(source: &str) -> Vec<(String, String, u64)> {
        let (entries, misfits) = read(source);
        assert_eq!(misfits, [], "{source}");
        entries
            .into_iter()
            .map(|e| (e.key, e.text, e.line))
            .collect()
    }

    fn entry(key: &str, text: &str, line: u64) -> (String, String, u64) {
        (key.to_owned(), text.to_owned(), line)
    }

    #[test]
    fn nested_maps_and_dotted_keys_mean_the_same_and_keep_their_lines() {
        let nested = "# comment\nhigh-availability:\n  type: etcd\n  etcd:\n    path.root: /x\nrest.port: 1\n";
        let expected = [
            entry("high-availability.type", "etcd", 3),
            entry("high-availability.etcd.path.root", "/x", 5),
            entry("rest.port", "1", 6),
        ];
        assert_eq!(entries(nested), expected);
    }

    #[test]
    fn scalars_stay_as_they_are_written() {
        let source = "a: 007\nb: no\nc: 1.50  # comment\nd: '12'\ne: \"x # y\"\nf: 1e3\ng: 10 s\nü: 0x1F\nh: -1\n";
        let texts: Vec<String> = entries(source)
            .into_iter()
            .map(|(_, text, _)| text)
            .collect();
        assert_eq!(
            texts,
            [
                "007", "no", "1.50", "12", "x # y", "1e3", "10 s", "0x1F", "-1"
            ]
        );
    }

    #[test]
    fn a_list_becomes_its_items_separated_by_commas() {
        let source = "a: [x:1, 2]\nb:\n  - y\n  - 03\n";
        assert_eq!(
            entries(source),
            [entry("a", "x:1,2", 1), entry("b", "y,03", 2)]
        );
    }

    #[test]
    fn an_empty_file_has_no_entries() {
        assert_eq!(entries(""), []);
        assert_eq!(entries("# nothing\n"), []);
    }

    #[test]
    fn what_is_no_entry_is_reported_with_its_line_and_hides_nothing_else() {
        let (entries, misfits) = read("a:\nb: 1\nc: [{d: 1}]\n");
        assert_eq!(entries.len(), 1);
        let found: Vec<_> = misfits.iter().map(|m| (m.key.as_deref(), m.line)).collect();
        assert_eq!(found, [(Some("a"), 1), (Some("c"), 3)]);
        let (_, misfits) = read("just text\n");
        assert!(
            misfits[0].message.contains("rest.port: 8081"),
            "{misfits:?}"
        );
    }

    #[test]
    fn broken_yaml_is_reported_with_its_line_and_without_its_content() {
        let (_, misfits) = read("ok: 1\npassword: hunter2\n  bad: [\n");
        assert_eq!(misfits.len(), 1);
        assert!(misfits[0].line >= 2, "{misfits:?}");
        assert!(!misfits[0].message.contains("hunter2"), "{misfits:?}");
        let (_, misfits) = read("a: 1\na: 2\n");
        assert!(misfits[0].message.contains("duplicate"), "{misfits:?}");
    }
}

//! Finds the paths in a Rust file, such as `crate::rpc::Server`, in `use` lines (groups included) and elsewhere.
//!
//! Not a parser: it splits the text into words, follows inline modules by their braces, and knows only
//! enough to skip comments, strings and characters. It does not expand macros.

/// A path with its segments. Relative paths are made absolute: the first segment is `crate`, a crate, or a local item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedPath {
    /// The line, from 1.
    pub line: usize,
    /// The segments up to the first one that is not a name.
    pub segments: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    /// `::`.
    Then,
    Other(char),
}

/// All paths of two segments or more, and all paths in `use` lines, in `text`; `module` is the module of
/// the file, as `["rpc", "server"]`.
pub(crate) fn named_paths(text: &str, module: &[String]) -> Vec<NamedPath> {
    let tokens = tokens(text);
    let mut reader = Reader {
        tokens: &tokens,
        module,
        inline: Vec::new(),
        depth: 0,
        found: Vec::new(),
    };
    let mut at = 0;
    while at < tokens.len() {
        at = reader.step(at);
    }
    reader.found
}

struct Reader<'a> {
    tokens: &'a [(usize, Token)],
    module: &'a [String],
    /// Open inline modules, with the depth of braces outside of each.
    inline: Vec<(String, usize)>,
    depth: usize,
    found: Vec<NamedPath>,
}

impl Reader<'_> {
    /// Reads from token `at`; returns the next position.
    fn step(&mut self, at: usize) -> usize {
        match &self.tokens[at].1 {
            Token::Word(word) if word == "mod" => {
                if let (Some(Token::Word(name)), Some(Token::Other('{'))) =
                    (self.token(at + 1), self.token(at + 2))
                {
                    let name = name.clone();
                    self.inline.push((name, self.depth));
                    self.depth += 1;
                    return at + 3;
                }
                at + 1
            }
            Token::Word(word) if word == "use" => {
                let start = at + 1 + usize::from(self.token(at + 1) == Some(&Token::Then));
                self.path(start, &[], true)
            }
            Token::Word(_) => self.path(at, &[], false),
            Token::Other('{') => {
                self.depth += 1;
                at + 1
            }
            Token::Other('}') => {
                self.depth = self.depth.saturating_sub(1);
                if self
                    .inline
                    .last()
                    .is_some_and(|(_, outside)| *outside == self.depth)
                {
                    self.inline.pop();
                }
                at + 1
            }
            Token::Then | Token::Other(_) => at + 1,
        }
    }

    fn token(&self, at: usize) -> Option<&Token> {
        self.tokens.get(at).map(|(_, token)| token)
    }

    /// Reads a path whose first segments are `before`, and the groups at its end.
    fn path(&mut self, mut at: usize, before: &[String], used: bool) -> usize {
        let mut segments = before.to_vec();
        let line = self.tokens.get(at).map_or(0, |(line, _)| *line);
        loop {
            match self.token(at) {
                Some(Token::Word(word)) => {
                    segments.push(word.clone());
                    at += 1;
                }
                Some(Token::Other('{')) if used => return self.group(at + 1, &segments),
                Some(_) | None => {
                    // `*` at the end of a path adds no name; any other token does not belong to the path.
                    self.note(line, &segments, used);
                    return at + usize::from(self.token(at) == Some(&Token::Other('*')) && used);
                }
            }
            if self.token(at) != Some(&Token::Then) {
                self.note(line, &segments, used);
                return at;
            }
            at += 1;
        }
    }

    /// Reads the group in the braces of a `use`, up to the closing brace.
    fn group(&mut self, mut at: usize, before: &[String]) -> usize {
        loop {
            match self.token(at) {
                Some(Token::Other('}')) => return at + 1,
                Some(Token::Word(word)) if word == "as" => at += 2,
                Some(Token::Word(_) | Token::Other('{' | '*')) => at = self.path(at, before, true),
                Some(_) => at += 1,
                None => return at,
            }
        }
    }

    fn note(&mut self, line: usize, segments: &[String], used: bool) {
        if segments.len() < 2 && !used {
            return;
        }
        let segments = self.absolute(segments);
        if !segments.is_empty() {
            self.found.push(NamedPath { line, segments });
        }
    }

    /// Resolves leading `self` and `super`.
    fn absolute(&self, segments: &[String]) -> Vec<String> {
        let relative = segments
            .iter()
            .take_while(|s| *s == "super" || *s == "self")
            .count();
        if relative == 0 {
            return segments.to_vec();
        }
        let here = self
            .module
            .iter()
            .chain(self.inline.iter().map(|(name, _)| name));
        let mut absolute: Vec<String> = std::iter::once("crate".to_owned())
            .chain(here.cloned())
            .collect();
        for _ in segments[..relative]
            .iter()
            .filter(|segment| *segment == "super")
        {
            if absolute.len() > 1 {
                absolute.pop();
            }
        }
        absolute.extend_from_slice(&segments[relative..]);
        absolute
    }
}

/// The words and signs of `text`, with their lines; without comments, strings and characters.
fn tokens(text: &str) -> Vec<(usize, Token)> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    while at < chars.len() {
        let next = chars.get(at + 1).copied();
        let end = match chars[at] {
            '/' if next == Some('/') => find(&chars, at, |c, i| c[i] == '\n'),
            '/' if next == Some('*') => block_comment(&chars, at),
            'r' if raw_string(&chars, at).is_some() => raw_string(&chars, at).unwrap_or(at + 1),
            '"' => string(&chars, at),
            '\'' => character(&chars, at),
            ':' if next == Some(':') => {
                tokens.push((line, Token::Then));
                at + 2
            }
            c if is_word(c) => {
                let end = find(&chars, at, |c, i| !is_word(c[i]));
                tokens.push((line, Token::Word(chars[at..end].iter().collect())));
                // A prefixed string, such as b"..", is skipped from its quote on; r#".." is skipped here.
                if chars.get(end) == Some(&'#') && matches!(&chars[at..end], ['b' | 'c', 'r']) {
                    raw_string(&chars, end - 1).unwrap_or(end)
                } else {
                    end
                }
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push((line, Token::Other(c)));
                }
                at + 1
            }
        };
        let end = end.clamp(at + 1, chars.len());
        line += chars[at..end].iter().filter(|c| **c == '\n').count();
        at = end;
    }
    tokens
}

fn find(chars: &[char], from: usize, stop: impl Fn(&[char], usize) -> bool) -> usize {
    (from..chars.len())
        .find(|i| stop(chars, *i))
        .unwrap_or(chars.len())
}

fn block_comment(chars: &[char], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0usize);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) if depth == 1 => return at + 2,
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    at
}

fn string(chars: &[char], from: usize) -> usize {
    let mut at = from + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The end of the raw string that starts at the `r` at `from`, if there is one.
fn raw_string(chars: &[char], from: usize) -> Option<usize> {
    let hashes = chars[from + 1..].iter().take_while(|c| **c == '#').count();
    let quote = from + 1 + hashes;
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let closes = |c: &[char], i: usize| {
        c[i] == '"' && i + hashes < c.len() && c[i + 1..=i + hashes].iter().all(|c| *c == '#')
    };
    Some(find(chars, quote + 1, closes) + 1 + hashes)
}

/// The end of the character or lifetime at `from`.
fn character(chars: &[char], from: usize) -> usize {
    match (chars.get(from + 1), chars.get(from + 2)) {
        (Some('\\'), _) => find(chars, from + 3, |c, i| c[i] == '\'') + 1,
        (Some(_), Some('\'')) => from + 3,
        _ => from + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, module: &[&str]) -> Vec<String> {
        let module: Vec<String> = module.iter().map(|name| (*name).to_owned()).collect();
        named_paths(text, &module)
            .into_iter()
            .map(|path| path.segments.join("::"))
            .collect()
    }

    #[test]
    fn uses_are_found_with_their_groups() {
        let text =
            "pub(crate) use crate::{a::B, c::{self, D as E, f::*}};\nuse x;\nuse ::std::fmt;";
        let expected = [
            "crate::a::B",
            "crate::c::self",
            "crate::c::D",
            "crate::c::f",
            "x",
            "std::fmt",
        ];
        assert_eq!(found(text, &[]), expected);
    }

    #[test]
    fn paths_in_code_are_found_and_comments_and_strings_are_not() {
        let text = r##"
            // crate::a::x
            /* crate::b /* nested */ crate::c */
            fn f<'a>(c: &'a char) { g("crate::d", r#"crate::e "quoted""#, '"', b"crate::f", '\''); crate::real::h() }
        "##;
        assert_eq!(found(text, &[]), ["crate::real::h"]);
    }

    #[test]
    fn relative_paths_are_resolved_also_in_inline_modules() {
        let text =
            "use super::a; mod tests { use super::b; use super::super::super::c; } use self::d;";
        let module = ["x", "y"];
        assert_eq!(
            found(text, &module),
            [
                "crate::x::a",
                "crate::x::y::b",
                "crate::c",
                "crate::x::y::d"
            ]
        );
    }

    #[test]
    fn lines_are_counted_over_comments_and_strings() {
        let paths = named_paths("/* \n */ // x\nlet s = \"\n\";\ncrate::a::b;", &[]);
        assert_eq!(paths[0].line, 5);
    }
}

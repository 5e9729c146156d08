//! Text from outside in a form that is safe for logs and terminals: names, causes, output of programs,
//! messages of unknown senders.
//!
//! A control character could end the line and start one that looks like ours, or control the terminal. Each
//! is shown as its escape sequence instead. JSON has its own escapes and does not use this module.

use std::fmt::{self, Display, Write};

/// Displays its content on one line, without control characters.
#[derive(Debug, Clone, Copy)]
pub struct Printable<T>(pub T);

impl<T: Display> Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping::whole(f), "{}", self.0)
    }
}

/// The same for text with several lines.
#[derive(Debug, Clone, Copy)]
pub struct PrintableLines<T>(pub T);

impl<T: Display> Display for PrintableLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping::lines(f), "{}", self.0)
    }
}

/// Escapes control characters written to another writer.
pub(super) struct Escaping<'a, W> {
    to: &'a mut W,
    keeps_lines: bool,
}

impl<'a, W> Escaping<'a, W> {
    /// Escapes all control characters.
    pub(super) fn whole(to: &'a mut W) -> Escaping<'a, W> {
        Escaping {
            to,
            keeps_lines: false,
        }
    }

    /// Escapes all control characters except line breaks.
    pub(super) fn lines(to: &'a mut W) -> Escaping<'a, W> {
        Escaping {
            to,
            keeps_lines: true,
        }
    }
}

impl<W: Write> Write for Escaping<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let keeps_lines = self.keeps_lines;
        let is_escaped = |c: char| is_control(c) && !(keeps_lines && c == '\n');
        let mut rest = text;
        while let Some(at) = rest.find(is_escaped) {
            let (before, from) = rest.split_at(at);
            self.to.write_str(before)?;
            let mut characters = from.chars();
            if let Some(control) = characters.next() {
                write!(self.to, "{}", control.escape_default())?;
            }
            rest = characters.as_str();
        }
        self.to.write_str(rest)
    }
}

/// Whether a character is invisible: it moves, colours or reverses other characters, or ends the line.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_lines_or_commands_terminals_is_shown_as_its_escape() {
        let text = "a\u{1b}[2J\r\nb\u{7f}\u{9b}1m\u{202e}ü\t\u{7}";
        let shown = Printable(text).to_string();
        let expected = r"a\u{1b}[2J\r\nb\u{7f}\u{9b}1m\u{202e}ü\t\u{7}";
        assert_eq!(shown, expected);
        assert_eq!(PrintableLines("a\n\u{1b}b").to_string(), "a\n\\u{1b}b");
    }
}

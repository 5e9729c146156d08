//! Output: messages on standard error, answers on standard output, tables of aligned columns.
//!
//! Most of it comes from other processes: a table cell or a field value can't forge other lines, and only
//! JSON contains control characters.

use std::fmt::{self, Display, Write as _};
use std::io::{self, ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use chrono::DateTime;
use tanist_telemetry::{Printable, PrintableLines};

/// Set when an answer could not be written.
static IS_ANSWER_LOST: AtomicBool = AtomicBool::new(false);

/// Shows a message to the user. A failure to write it can't be reported.
pub(super) fn inform(text: impl Display) {
    let _ = writeln!(io::stderr(), "{}", Paragraph(text.to_string()));
}

/// Shows why something failed.
pub(super) fn fail(cause: impl Display) {
    inform(format_args!("error: {cause}"));
}

/// Shows advice about the error before.
pub(super) fn hint(advice: impl Display) {
    inform(format_args!("hint: {advice}"));
}

/// Shows a problem that does not fail the command.
pub(super) fn warn(problem: impl Display) {
    inform(format_args!("warning: {problem}"));
}

/// Writes an answer. A closed pipe is not an error (the reader has seen enough); for other errors see
/// [`is_answer_lost`].
pub(super) fn answer(text: impl Display) {
    write_answer(PrintableLines(text));
}

fn write_answer(text: impl Display) {
    let written = write!(io::stdout(), "{text}").and_then(|()| io::stdout().flush());
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            fail(format_args!("the answer can't be written: {error}"));
            IS_ANSWER_LOST.store(true, Ordering::Relaxed);
        }
        Ok(()) | Err(_) => {}
    }
}

/// Whether an answer of this process could not be written: then its command has failed.
pub(super) fn is_answer_lost() -> bool {
    IS_ANSWER_LOST.load(Ordering::Relaxed)
}

/// Writes a JSON answer.
pub(super) fn answer_json(value: &serde_json::Value) {
    write_answer(format_args!("{value:#}\n"));
}

/// Text whose further lines are indented, so that none of them looks like another message.
struct Paragraph(String);

impl Display for Paragraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, line) in self.0.lines().enumerate() {
            let indent = match number {
                0 => "",
                _ if line.starts_with("  ") => "\n",
                _ => "\n  ",
            };
            write!(f, "{indent}{}", Printable(line))?;
        }
        Ok(())
    }
}

/// Adds a line with a name and a value. Further lines of the value are indented like the first one.
pub(super) fn field(text: &mut String, name: &str, value: &str) {
    let mut name = name;
    for line in value.lines().chain(value.is_empty().then_some("")) {
        let line = Printable(line);
        writeln!(text, "{name:<13}{line}").expect("writing to a string succeeds");
        name = "";
    }
}

/// Rows below headers, in columns as wide as their widest cell.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new<const N: usize>(headers: [&str; N]) -> Table {
        Table {
            rows: vec![headers.map(str::to_owned).to_vec()],
        }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        let cells = cells.iter().map(|cell| Printable(cell).to_string());
        self.rows.push(cells.collect());
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                write!(line, "{cell:width$}  ")?;
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A duration for people: `350 ms`, `4.2 s`, `3 min 7 s`, `2 h 5 min`, `3 d 4 h`; `-` if it is not known.
pub(super) fn duration(ms: i64) -> String {
    let Ok(ms) = u64::try_from(ms) else {
        return "-".to_owned();
    };
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds}.{} s", ms % 1000 / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// A number of bytes for people.
pub(super) fn bytes(count: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(bits, _)| count >> bits > 0);
    match unit {
        None => format!("{count} B"),
        Some((bits, unit)) => {
            let tenths = (u128::from(count) * 10) >> bits;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
    }
}

/// A value that may be unknown.
pub(super) fn optional(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A [`time`] that may be unknown.
pub(super) fn time_if_known(ms: i64) -> String {
    optional(u64::try_from(ms).ok().map(time))
}

/// Milliseconds since 1970 as date and time. A time beyond the calendar is shown as its milliseconds.
pub(super) fn time(ms: u64) -> String {
    let known = i64::try_from(ms).ok();
    match known.and_then(DateTime::from_timestamp_millis) {
        Some(time) => time.format("%Y-%m-%d %H:%M:%S UTC").to_string(),
        None => format!("{ms} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["NAME", "N"]);
        table.row(["ä".to_owned(), "1".to_owned()]);
        table.row(["longer".to_owned(), String::new()]);
        assert_eq!(table.to_string(), "NAME    N\nä       1\nlonger\n");
    }

    #[test]
    fn a_cell_a_field_and_what_is_said_can_not_pass_for_other_lines() {
        let sent = "x\nJOB forged\u{1b}[2K";
        let mut table = Table::new(["NAME"]);
        table.row([sent.to_owned()]);
        assert_eq!(table.to_string(), "NAME\nx\\nJOB forged\\u{1b}[2K\n");
        let mut text = String::new();
        field(&mut text, "Cause", sent);
        let indented = " ".repeat(13);
        let expected = format!("Cause        x\n{indented}JOB forged\\u{{1b}}[2K\n");
        assert_eq!(text, expected);
        let said = Paragraph(sent.to_owned()).to_string();
        assert_eq!(said, "x\n  JOB forged\\u{1b}[2K");
        assert_eq!(Paragraph("a:\n  - b".to_owned()).to_string(), "a:\n  - b");
    }

    #[test]
    fn times_are_dates_of_the_calendar() {
        let shown = [0, 951_827_696_789, 1_709_251_199_000, 4_107_542_400_000].map(time);
        let expected = [
            "1970-01-01 00:00:00 UTC",
            "2000-02-29 12:34:56 UTC",
            "2024-02-29 23:59:59 UTC",
            "2100-03-01 00:00:00 UTC",
        ];
        assert_eq!(shown, expected);
        assert_eq!(time(u64::MAX), "18446744073709551615 ms");
    }

    #[test]
    fn bytes_have_the_unit_that_people_would_use() {
        let shown = [0, 1023, 2048, 20 << 20, 3 << 29].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "2.0 KiB", "20.0 MiB", "1.5 GiB"]);
    }

    #[test]
    fn durations_have_the_unit_that_people_would_use() {
        let shown = [-1, 350, 4_250, 187_000, 7_500_000, 273_600_000].map(duration);
        let expected = ["-", "350 ms", "4.2 s", "3 min 7 s", "2 h 5 min", "3 d 4 h"];
        assert_eq!(shown, expected);
    }
}

//! What is shown: text on standard error, answers on standard output, tables of aligned columns.

use std::fmt::{self, Display, Write as _};
use std::io::{self, Write as _};

/// Tells something to the person at the terminal. There is nobody to tell if that fails.
pub(super) fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes what was asked for. Whoever reads it may have seen enough.
pub(super) fn answer(text: impl Display) {
    let _ = write!(io::stdout(), "{text}").and_then(|()| io::stdout().flush());
}

/// Writes a JSON answer.
pub(super) fn answer_json(value: &serde_json::Value) {
    answer(format_args!("{value:#}\n"));
}

/// Rows under headers, in columns as wide as their widest cell.
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
        self.rows.push(cells.to_vec());
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

/// A duration as people say it: `350 ms`, `4.2 s`, `3 min 7 s`, `2 h 5 min`, `3 d 4 h`. Nothing for what has not begun.
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
    fn durations_have_the_unit_that_people_would_use() {
        let shown = [-1, 350, 4_250, 187_000, 7_500_000, 273_600_000].map(duration);
        let expected = ["-", "350 ms", "4.2 s", "3 min 7 s", "2 h 5 min", "3 d 4 h"];
        assert_eq!(shown, expected);
    }
}

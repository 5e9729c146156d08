//! Reads from a new leader's log how many running tasks it adopted. The log is followed from its present
//! end, so that the leader gets no requests while it is busy with them.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Context as _, bail};

/// The text of the log line.
const ACCOUNTED_FOR: &str = "all recorded running tasks are adopted or restarted";

/// The result of the adoption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adopted {
    /// Number of tasks that continue.
    pub adopted: u64,
    /// Number of tasks that had to be restarted.
    pub restarted: u64,
}

/// Reads a log from some position on.
#[derive(Debug)]
pub struct LogReader {
    file: File,
    unread: String,
}

impl LogReader {
    /// Reads the lines that are written from now on.
    pub fn at_end_of(path: impl AsRef<Path>) -> anyhow::Result<LogReader> {
        let path = path.as_ref();
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        file.seek(SeekFrom::End(0))?;
        Ok(LogReader {
            file,
            unread: String::new(),
        })
    }

    /// The result of the adoption, if the log contains it by now.
    pub fn adoption(&mut self) -> anyhow::Result<Adopted> {
        self.file.read_to_string(&mut self.unread)?;
        let end = self.unread.rfind('\n').map_or(0, |end| end + 1);
        let found = self.unread[..end].lines().find_map(adoption_in);
        self.unread.drain(..end);
        match found {
            Some(found) => found,
            None => bail!("the log does not say"),
        }
    }
}

fn adoption_in(line: &str) -> Option<anyhow::Result<Adopted>> {
    line.contains(ACCOUNTED_FOR).then(|| {
        let number = |name: &str| {
            let words = line.split_whitespace();
            let value = words
                .filter_map(|word| word.split_once('='))
                .find_map(|(key, value)| (key == name).then_some(value));
            let value = value.with_context(|| format!("no {name}: {line}"))?;
            anyhow::Ok(value.parse()?)
        };
        Ok(Adopted {
            adopted: number("adopted")?,
            restarted: number("restarted")?,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn only_whole_lines_that_were_written_later_are_read() -> anyhow::Result<()> {
        let mut file = tempfile::NamedTempFile::new()?;
        writeln!(
            file,
            "INFO all recorded running tasks are adopted or restarted adopted=1 restarted=0"
        )?;
        let mut reader = LogReader::at_end_of(file.path())?;
        write!(
            file,
            "INFO all recorded running tasks are adopted or restarted epoch=7 adop"
        )?;
        file.flush()?;
        assert!(reader.adoption().is_err());
        writeln!(file, "ted=20000 restarted=3 took_ms=12.5")?;
        let expected = Adopted {
            adopted: 20_000,
            restarted: 3,
        };
        assert_eq!(reader.adoption()?, expected);
        assert!(reader.adoption().is_err());
        Ok(())
    }
}

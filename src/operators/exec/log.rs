//! Text output of a program: each line is logged, and the last lines are kept for the cause of its failure.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// Identifies the task whose program wrote the lines.
#[derive(Debug, Clone)]
pub(crate) struct Labels {
    pub(crate) job: String,
    pub(crate) vertex: String,
    pub(crate) subtask: u32,
    pub(crate) attempt: u64,
}

/// Maximum number of lines in a cause.
const KEPT_LINES: usize = 10;
/// Maximum length of a line that is logged in one piece, in bytes.
const LONGEST_LINE: usize = 4096;
/// Maximum length of a line in a cause, in characters.
const SHOWN_CHARACTERS: usize = 300;

/// The last lines of standard error. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct LastLines {
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl LastLines {
    fn add(&self, line: &str) {
        let mut lines = self.lines.lock();
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line.chars().take(SHOWN_CHARACTERS).collect());
    }

    /// Formats the lines as the end of a sentence; empty if there are none.
    pub(super) fn as_clause(&self) -> String {
        let lines = self.lines.lock();
        if lines.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        format!("; the last lines of its stderr: {}", lines.join(" | "))
    }
}

/// Logs lines until the end of the stream.
pub(super) async fn log_lines(
    from: impl AsyncRead + Unpin,
    stream: &'static str,
    labels: Labels,
    keep: LastLines,
) {
    let mut reader = BufReader::new(from);
    let mut line: Vec<u8> = Vec::new();
    loop {
        let available = match reader.fill_buf().await {
            Ok(available) => available,
            Err(error) => {
                tracing::warn!(job = labels.job, stream, %error, "can't read a program's output; the rest is not logged");
                return;
            }
        };
        if available.is_empty() {
            if !line.is_empty() {
                log_line(&line, stream, &labels, &keep);
            }
            return;
        }
        let room = &available[..available.len().min(LONGEST_LINE - line.len())];
        let (taken, is_whole) = match room.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                line.extend_from_slice(&room[..end]);
                (end + 1, true)
            }
            None => {
                line.extend_from_slice(room);
                (room.len(), line.len() == LONGEST_LINE)
            }
        };
        reader.consume(taken);
        if is_whole {
            log_line(&line, stream, &labels, &keep);
            line.clear();
        }
    }
}

/// Logs a line and keeps it.
fn log_line(line: &[u8], stream: &'static str, labels: &Labels, keep: &LastLines) {
    let line = String::from_utf8_lossy(line);
    let line = line.trim_end_matches('\r');
    keep.add(line);
    let Labels {
        job,
        vertex,
        subtask,
        attempt,
    } = labels;
    tracing::info!(job, vertex, subtask, attempt, stream, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_lines_are_cut_and_the_last_ones_kept() {
        let mut text: Vec<u8> = (0..20)
            .flat_map(|n| format!("line {n}\r\n").into_bytes())
            .collect();
        text.extend(vec![b'x'; LONGEST_LINE + 1]);
        let labels = Labels {
            job: "j".to_owned(),
            vertex: "v".to_owned(),
            subtask: 0,
            attempt: 1,
        };
        let last = LastLines::default();
        log_lines(&text[..], "stderr", labels, last.clone()).await;
        let told = last.as_clause();
        assert!(
            told.contains("line 12 | line 13") && told.ends_with(" | x"),
            "{told}"
        );
        assert!(!told.contains("line 11"), "{told}");
    }
}

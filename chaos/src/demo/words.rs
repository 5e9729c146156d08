//! The demo's input, and the count of its words by a single thread.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::wordcount::{Counts, check_counts, count_into, read_output};

/// The text whose words are counted, repeated.
const TEXT: &str = include_str!("../../../examples/data/the-heir.txt");

/// Writes about `bytes` bytes of text in `files` files, reads them again, and counts.
pub(super) async fn write_and_count(
    directory: PathBuf,
    files: usize,
    bytes: usize,
) -> anyhow::Result<Counts> {
    let work = move || {
        let named = |path: &Path| path.display().to_string();
        std::fs::create_dir_all(&directory).with_context(|| named(&directory))?;
        let text = TEXT.repeat((bytes / files / TEXT.len()).max(1));
        let mut counts = Counts::new();
        for index in 0..files {
            let path = directory.join(format!("text-{index}.txt"));
            std::fs::write(&path, &text).with_context(|| named(&path))?;
            let text = std::fs::read_to_string(&path).with_context(|| named(&path))?;
            count_into(&mut counts, &text);
        }
        Ok(counts)
    };
    tokio::task::spawn_blocking(work).await?
}

/// Compares the counts with the part files that the job made visible in `output`. Only different counts are a
/// wrong result; files that can't be read are another error.
pub(super) fn check(expected: &Counts, output: &Path) -> anyhow::Result<()> {
    let found = read_output(output).context("the result can't be read")?;
    check_counts(expected, &found).context("THE RESULT IS WRONG")
}

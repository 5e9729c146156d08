//! The frame of all saved state: magic, format, checksum, content. The checksum covers everything before and after it,
//! so a damaged byte anywhere is noticed. A state is written in the lowest format that can say it.
//!
//! ```text
//! 0       magic: what kind of state it is
//! 4..6    format, u16, little endian
//! 6..14   XXH3 (64 bit), little endian, of bytes 0..6 followed by bytes 14..
//! 14..    the content
//! ```

use tanist_proto::checksum;

use super::error::StateProblem;

/// The newest format that this version reads.
pub(super) const FORMAT: u16 = 1;

const PREFIX: usize = 6;
const HEADER: usize = PREFIX + 8;

/// What the content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The message `SmallState`.
    Small,
    /// Entries by key.
    Segment,
}

impl Kind {
    fn magic(self) -> [u8; 4] {
        match self {
            Kind::Small => *b"tnSS",
            Kind::Segment => *b"tnSG",
        }
    }
}

/// Frames the content that `write` appends.
pub(super) fn seal(kind: Kind, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = kind.magic().to_vec();
    bytes.extend(FORMAT.to_le_bytes());
    bytes.extend([0; 8]);
    write(&mut bytes);
    let checksum = checksum(&bytes[..PREFIX], &bytes[HEADER..]);
    bytes[PREFIX..HEADER].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Returns the content.
pub(super) fn open(kind: Kind, bytes: &[u8]) -> Result<&[u8], StateProblem> {
    let Some((header, content)) = bytes.split_first_chunk::<HEADER>() else {
        let length = bytes.len();
        return Err(StateProblem::damaged(format!("{length} bytes are too few")));
    };
    let (prefix, expected) = header.split_at(PREFIX);
    if checksum(prefix, content).to_le_bytes() != *expected {
        return Err(StateProblem::damaged("its checksum does not match"));
    }
    let [magic @ .., low, high] = prefix.first_chunk::<PREFIX>().expect("as long");
    if *magic != kind.magic() {
        return Err(StateProblem::damaged("it is a state of another kind"));
    }
    let found = u16::from_le_bytes([*low, *high]);
    if found > FORMAT {
        return Err(StateProblem::TooNew { found });
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        seal(Kind::Small, |bytes| bytes.extend(b"content"))
    }

    #[test]
    fn what_was_sealed_is_opened_and_a_format_never_changes() {
        assert_eq!(open(Kind::Small, &sample()), Ok(&b"content"[..]));
        let mut expected = b"tnSS\x01\x00".to_vec();
        expected.extend(checksum(b"tnSS\x01\x00", b"content").to_le_bytes());
        expected.extend(b"content");
        assert_eq!(sample(), expected);
        assert_eq!(
            expected[PREFIX..HEADER],
            [226, 43, 125, 203, 210, 61, 160, 174]
        );
    }

    #[test]
    fn each_damaged_or_missing_byte_is_noticed() {
        let intact = sample();
        for index in 0..intact.len() {
            for flipped in 1..=u8::MAX {
                let mut damaged = intact.clone();
                damaged[index] ^= flipped;
                let problem = open(Kind::Small, &damaged).expect_err("damaged");
                assert!(matches!(problem, StateProblem::Damaged(_)), "{problem}");
            }
            open(Kind::Small, &intact[..index]).expect_err("truncated");
        }
        open(Kind::Segment, &intact).expect_err("another kind");
    }

    #[test]
    fn a_later_format_is_too_new_and_not_damaged() {
        let mut later = sample();
        later[4] = 2;
        let checksum = checksum(&later[..PREFIX], &later[HEADER..]);
        later[PREFIX..HEADER].copy_from_slice(&checksum.to_le_bytes());
        let problem = open(Kind::Small, &later).expect_err("too new");
        assert_eq!(problem, StateProblem::TooNew { found: 2 });
    }
}

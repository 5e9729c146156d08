//! The SHA-256 of an object, and its form as text. Plain values.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::STORE;
use crate::error::{Error, Result};

/// The SHA-256 of an object; 64 hexadecimal digits as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Checksum([u8; 32]);

impl Checksum {
    /// The checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Checksum {
        Checksum(Sha256::digest(bytes).into())
    }

    /// Its 32 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<[u8; 32]> for Checksum {
    fn from(sum: [u8; 32]) -> Checksum {
        Checksum(sum)
    }
}

impl TryFrom<&[u8]> for Checksum {
    type Error = InvalidChecksum;
    fn try_from(bytes: &[u8]) -> Result<Checksum, InvalidChecksum> {
        let sum = bytes.try_into();
        sum.map(Checksum)
            .map_err(|_| InvalidChecksum(format!("a SHA-256 has 32 bytes, not {}", bytes.len())))
    }
}

/// Why a text, or bytes, are not a valid [`Checksum`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidChecksum(String);

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Checksum {
    type Err = InvalidChecksum;
    fn from_str(text: &str) -> Result<Checksum, InvalidChecksum> {
        let invalid = || {
            InvalidChecksum(format!(
                "{text:?} is not a SHA-256: use 64 hexadecimal digits"
            ))
        };
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        let mut sum = [0; 32];
        for (byte, digits) in sum.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| invalid())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| invalid())?;
        }
        Ok(Checksum(sum))
    }
}

impl TryFrom<String> for Checksum {
    type Error = InvalidChecksum;
    fn try_from(text: String) -> Result<Checksum, InvalidChecksum> {
        text.parse()
    }
}

impl From<Checksum> for String {
    fn from(sum: Checksum) -> String {
        sum.to_string()
    }
}

/// Hashes on a blocking thread: a large object would delay the runtime.
pub(super) async fn checksum(bytes: Bytes) -> Result<Checksum> {
    let sum = tokio::task::spawn_blocking(move || Checksum::of(&bytes)).await;
    sum.map_err(|error| Error::Unavailable {
        store: STORE,
        reason: error.to_string(),
    })
}

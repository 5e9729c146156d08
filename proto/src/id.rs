//! Ids: newtypes with a text form that round-trips.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Error: the text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what} (32 hex digits)")]
pub struct InvalidId {
    what: &'static str,
    text: String,
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(u128);

        impl $name {
            /// The id with these 128 bits.
            pub const fn from_bits(bits: u128) -> $name {
                $name(bits)
            }

            /// The 128 bits of the id.
            pub const fn to_bits(self) -> u128 {
                self.0
            }

            /// A random id.
            pub fn random() -> $name {
                $name(rand::random())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:032x})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<$name, InvalidId> {
                let invalid = || InvalidId { what: $what, text: text.to_owned() };
                let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                if !is_hex {
                    return Err(invalid());
                }
                u128::from_str_radix(text, 16).map($name).map_err(|_| invalid())
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<$name, InvalidId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    };
}

hex_id! {
    /// Identifies a job. Chosen by the client, so that a submission can be repeated.
    JobId, "a job id"
}
hex_id! {
    /// Identifies a vertex of a job graph. Depends only on the graph.
    JobVertexId, "a vertex id"
}
hex_id! {
    /// Identifies one allocation of a slot to a job. Chosen by the ResourceManager.
    AllocationId, "an allocation id"
}

/// Error: the text is not a [`ResourceId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a resource id: use 1 to 200 printable characters without spaces or slashes")]
pub struct InvalidResourceId(String);

/// Identifies a TaskManager (or another process that offers resources). It stays the same after a restart if
/// the operator configures it. Clones share the text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceId(Arc<str>);

impl ResourceId {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ResourceId {
    type Err = InvalidResourceId;
    fn from_str(text: &str) -> Result<ResourceId, InvalidResourceId> {
        let allowed = |c: char| c.is_ascii_graphic() && c != '/';
        if text.is_empty() || text.len() > 200 || !text.chars().all(allowed) {
            return Err(InvalidResourceId(text.to_owned()));
        }
        Ok(ResourceId(text.into()))
    }
}

impl TryFrom<String> for ResourceId {
    type Error = InvalidResourceId;
    fn try_from(text: String) -> Result<ResourceId, InvalidResourceId> {
        text.parse()
    }
}

impl From<ResourceId> for String {
    fn from(id: ResourceId) -> String {
        id.as_str().to_owned()
    }
}

/// The attempt number of a region's executions: 0 is never deployed, each restart writes the next one.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(u64);

impl Generation {
    /// The generation with this number.
    pub const fn new(number: u64) -> Generation {
        Generation(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The generation that replaces this one.
    #[must_use]
    pub const fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip_through_their_text() {
        let id = JobId::random();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.to_string().len(), 32);
    }

    #[test]
    fn what_is_no_id_is_refused_with_what_was_expected() {
        let error = "xyz".parse::<JobId>().expect_err("no id");
        assert_eq!(error.to_string(), "\"xyz\" is not a job id (32 hex digits)");
        assert!("+0000000000000000000000000000000".parse::<JobId>().is_err());
        assert!("a/b".parse::<ResourceId>().is_err());
    }
}

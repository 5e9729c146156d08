//! What this crate keeps in a coordination store: fixed keys, and items of kinds that its user declares.
//!
//! The user declares each [`Kind`] as a constant, and lists all of them in one [`Kinds`], with which it opens the
//! store. Every backend refuses an item of another kind with `Misconfigured`. Kinds are flat (all items of a kind
//! under one directory, no subtree for each owner). On ZooKeeper a flat kind costs one listing and a few
//! multi-reads; a subtree for each owner would cost four requests an owner.
//!
//! The keys, below the namespace, with their lifetime and value:
//!
//! ```text
//! epoch             persistent   epoch, cluster incarnation, holder, store identity: the token that fences every write
//! epoch/<incarnation>            ZooKeeper only, empty: proves the incarnation, because a data version can repeat
//! leader            lease        epoch, process id, nonce of the session; written once a term
//! leader-info       persistent   addresses of the confirmed leader, valid for the epoch that it names
//! members/<process> lease        every process that contends
//! changes           persistent   number and epoch of the last committed transaction
//! changes/<n>       persistent   the names that transaction number n (modulo 1024) touched
//! chunks/<set>.<n>  persistent   a chunk of a record that is too large for one transaction; immutable
//! <kind>/<name>     persistent   an item of a kind that the user declares
//! ```

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::records::CHUNKS;

/// Number of transactions whose touched names the ring keeps.
pub const CHANGES_RING: u64 = 1024;

/// The name of an item within its kind: 1 to 200 characters of `A-Z a-z 0-9 . _ -`, not starting with a dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// A text that is not a valid [`Name`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid name: use 1 to 200 of A-Z a-z 0-9 . _ - and no leading dot")]
pub struct InvalidName(String);

impl Name {
    /// Validates `text`.
    pub fn new(text: impl Into<String>) -> std::result::Result<Name, InvalidName> {
        let text = text.into();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if text.is_empty()
            || text.len() > 200
            || text.starts_with('.')
            || !text.chars().all(allowed)
        {
            return Err(InvalidName(text));
        }
        Ok(Name(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = InvalidName;
    fn from_str(text: &str) -> std::result::Result<Name, InvalidName> {
        Name::new(text)
    }
}

/// A kind of items: the directory below the namespace that holds them.
///
/// Declared as a constant by the code that owns the items; an invalid name does not compile:
///
/// ```
/// use tanist_ha::keys::Kind;
/// const ITEMS: Kind = Kind::new("items");
/// ```
///
/// ```compile_fail
/// use tanist_ha::keys::Kind;
/// const MEMBERS: Kind = Kind::new("members");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(&'static str);

impl Kind {
    /// The kind of the items below `directory`: 1 to 32 of `a-z 0-9 -`, and not the name of a fixed key. Panics
    /// otherwise; the compiler reports that where the kind is a constant.
    pub const fn new(directory: &'static str) -> Kind {
        assert!(
            is_directory_name(directory.as_bytes()),
            "the name of a kind has 1 to 32 of a-z 0-9 -"
        );
        let mut at = 0;
        while at < path::ALL.len() {
            let is_fixed = same(directory.as_bytes(), path::ALL[at].as_bytes());
            assert!(!is_fixed, "a fixed key has this name");
            at += 1;
        }
        Kind(directory)
    }

    /// The directory below the namespace, without slashes.
    pub fn directory(self) -> &'static str {
        self.0
    }
}

const fn is_directory_name(name: &[u8]) -> bool {
    let mut at = 0;
    while at < name.len() {
        if !matches!(name[at], b'a'..=b'z' | b'0'..=b'9' | b'-') {
            return false;
        }
        at += 1;
    }
    !name.is_empty() && name.len() <= 32
}

/// `a == b`, which is not available where constants are evaluated.
const fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The kinds of this crate itself.
const OWN: [Kind; 1] = [CHUNKS];

/// The kinds that a cluster has: those that the user declares and those of this crate. All processes of a
/// cluster declare the same.
#[derive(Debug, Clone, Copy)]
pub struct Kinds {
    declared: &'static [Kind],
}

impl Kinds {
    /// These kinds, and those of this crate. Panics if two have the same name; the compiler reports that where
    /// the list is a constant.
    pub const fn new(declared: &'static [Kind]) -> Kinds {
        let mut at = 0;
        while at < declared.len() {
            let name = declared[at].0.as_bytes();
            let mut own = 0;
            while own < OWN.len() {
                assert!(
                    !same(name, OWN[own].0.as_bytes()),
                    "tanist-ha has a kind of this name"
                );
                own += 1;
            }
            let mut other = 0;
            while other < at {
                assert!(
                    !same(name, declared[other].0.as_bytes()),
                    "two kinds have this name"
                );
                other += 1;
            }
            at += 1;
        }
        Kinds { declared }
    }

    /// All of them.
    pub fn iter(self) -> impl Iterator<Item = Kind> {
        OWN.into_iter().chain(self.declared.iter().copied())
    }

    /// Refuses items of a kind that is not declared. ZooKeeper has no directory for them, so the same holds for
    /// every backend.
    pub(crate) fn check(self, kinds: impl IntoIterator<Item = Kind>) -> Result<()> {
        for kind in kinds {
            if !self.iter().any(|known| known == kind) {
                let name = kind.directory();
                let text =
                    format!("{name:?} is not among the kinds that the store was opened with");
                return Err(Error::Misconfigured(text.into()));
            }
        }
        Ok(())
    }

    /// The longest directory name, in bytes.
    #[cfg(feature = "zookeeper")]
    pub(crate) fn longest_directory(self) -> usize {
        let lengths = self.iter().map(|kind| kind.directory().len());
        lengths.max().unwrap_or_default()
    }
}

/// An item that transactions write: `<kind>/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its kind.
    pub kind: Kind,
    /// Its name within the kind.
    pub name: Name,
}

impl Key {
    /// The item `name` of `kind`.
    pub fn new(kind: Kind, name: Name) -> Key {
        Key { kind, name }
    }

    /// Reads the text of a key, whose kind must be one of `kinds`.
    pub fn parse(
        text: &str,
        kinds: impl IntoIterator<Item = Kind>,
    ) -> std::result::Result<Key, InvalidKey> {
        let Some((directory, name)) = text.split_once('/') else {
            return Err(InvalidKey::NoKind(text.to_owned()));
        };
        let known = kinds.into_iter().find(|kind| kind.directory() == directory);
        let kind = known.ok_or_else(|| InvalidKey::UnknownKind(text.to_owned()))?;
        Ok(Key {
            kind,
            name: Name::new(name)?,
        })
    }
}

/// A text that is not a key of the given kinds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// It names no kind.
    #[error("{0:?} is not a key: use <kind>/<name>")]
    NoKind(String),
    /// It names another kind.
    #[error("the kind of {0:?} is unknown")]
    UnknownKind(String),
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] InvalidName),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.directory(), self.name)
    }
}

/// The fixed keys, below the namespace.
pub mod path {
    /// The epoch and the cluster's incarnation.
    pub const EPOCH: &str = "epoch";
    /// The leader's lease key.
    pub const LEADER: &str = "leader";
    /// Addresses that the confirmed leader publishes.
    pub const LEADER_INFO: &str = "leader-info";
    /// The directory of members.
    pub const MEMBERS: &str = "members";
    /// The last change number; also the directory of the ring.
    pub const CHANGES: &str = "changes";
    /// All of them.
    pub(super) const ALL: [&str; 5] = [EPOCH, LEADER, LEADER_INFO, MEMBERS, CHANGES];
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEMS: Kind = Kind::new("items");
    const KINDS: Kinds = Kinds::new(&[ITEMS, Kind::new("item-parts")]);

    #[test]
    fn a_key_is_read_again_if_its_kind_is_declared() {
        let key = Key::new(ITEMS, Name::new("a-1").expect("a name"));
        assert_eq!(Key::parse(&key.to_string(), KINDS.iter()), Ok(key));
        let chunk = Key::parse("chunks/a.0000", KINDS.iter()).expect("a kind of this crate");
        assert_eq!(chunk.kind, CHUNKS);
        for (text, said) in [
            ("items", "not a key"),
            ("others/a", "the kind of \"others/a\" is unknown"),
            ("items/.a", "not a valid name"),
        ] {
            let error = Key::parse(text, KINDS.iter()).expect_err("refused");
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn only_declared_kinds_pass_the_check() {
        KINDS.check(KINDS.iter()).expect("declared");
        let error = KINDS
            .check([ITEMS, Kind::new("others")])
            .expect_err("unknown");
        assert!(error.to_string().contains("\"others\""), "{error}");
    }

    #[test]
    fn names_that_are_no_directories_or_fixed_keys_are_no_kinds() {
        for name in ["", "a/b", "A", "leader-info", "changes", &"x".repeat(33)] {
            let name: &'static str = name.to_owned().leak();
            assert!(
                std::panic::catch_unwind(|| Kind::new(name)).is_err(),
                "{name}"
            );
        }
        for kinds in [[ITEMS, ITEMS], [ITEMS, CHUNKS]] {
            let kinds: &'static [Kind] = kinds.to_vec().leak();
            assert!(
                std::panic::catch_unwind(|| Kinds::new(kinds)).is_err(),
                "{kinds:?}"
            );
        }
    }
}

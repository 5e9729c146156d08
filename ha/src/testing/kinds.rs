//! The kinds of records in tests of this crate.

use crate::keys::{Kind, Kinds};

/// Records that change.
pub const ITEMS: Kind = Kind::new("items");
/// Records that are written once.
pub const DOCUMENTS: Kind = Kind::new("documents");
/// Records that a test may leave out.
pub const REPORTS: Kind = Kind::new("reports");

/// The kinds with which a test opens a store.
pub const KINDS: Kinds = Kinds::new(&[DOCUMENTS, ITEMS, REPORTS]);

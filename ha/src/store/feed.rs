//! Follows the transactions of a store.

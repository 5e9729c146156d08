//! Tanist's messages and persisted records.

//! The commit pipeline.

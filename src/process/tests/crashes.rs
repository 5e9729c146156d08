//! The leader dies at each step of a job's life.

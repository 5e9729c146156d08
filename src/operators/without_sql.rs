//! `map`, `project` and `filter: { where: ... }` in a program that was built without the feature `sql`: no job that has
//! them is accepted there, and none can run.

use tanist_dataflow::{Built, OperatorError};
use tanist_model::NEEDS_SQL;
use tanist_model::operators::{Map, Project, Where};

use super::factory::{Runtime, Setup};

impl Runtime for Map {
    fn build(&self, _setup: &Setup<'_>) -> Result<Built, OperatorError> {
        Err(OperatorError::unavailable(NEEDS_SQL))
    }
}

impl Runtime for Project {
    fn build(&self, _setup: &Setup<'_>) -> Result<Built, OperatorError> {
        Err(OperatorError::unavailable(NEEDS_SQL))
    }
}

impl Runtime for Where {
    fn build(&self, _setup: &Setup<'_>) -> Result<Built, OperatorError> {
        Err(OperatorError::unavailable(NEEDS_SQL))
    }
}

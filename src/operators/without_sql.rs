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

#[cfg(test)]
mod tests {
    use tanist_model::{NamedExpression, OperatorSpec};

    use super::*;
    use crate::schema::output_schema;
    use crate::testing::{ints, operator};

    #[test]
    fn a_job_that_needs_sql_may_run_on_another_task_manager() {
        let input = tanist_dataflow::testing::batch([("a", ints(&[1]))]).schema();
        let columns = vec![NamedExpression::new("b", "a + 1")];
        let condition = "a > 0".to_owned();
        let specs: [OperatorSpec; 3] = [
            Map {
                columns: columns.clone(),
            }
            .into(),
            Project { columns }.into(),
            Where { condition }.into(),
        ];
        for spec in specs {
            let planned = output_schema(&spec, Some(&input)).map(drop);
            let built = operator(&spec, input.clone()).map(drop);
            for refused in [planned, built] {
                let error = refused.expect_err("it needs SQL");
                assert!(!error.is_unrecoverable(), "{spec:?}: {error}");
                assert_eq!(error.to_string(), NEEDS_SQL);
            }
        }
    }
}

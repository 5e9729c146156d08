//! `filter` with `where`: a condition in SQL. The step is read and described in `filter.rs`.

use serde::{Deserialize, Serialize};

use super::{Declaration, ExpressionTypes, StateUse, Step};
use crate::Schema;

/// Passes on records for which a SQL expression is true.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Where {
    /// The expression.
    pub condition: String,
}

impl Declaration for Where {
    fn kind(&self) -> &'static str {
        "filter"
    }

    fn state(&self) -> StateUse {
        StateUse::None
    }

    fn has_expressions(&self) -> bool {
        true
    }

    fn output(&self, input: &Schema, types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        types.check_condition(&self.condition, input)?;
        Ok(input.clone())
    }
}

pub(super) const STEPS: &[Step] = &[];

//! The functions that expressions may call, and other input of DataFusion's planner.
//!
//! All functions are immutable: the same arguments give the same value, at any time and on any host. A record
//! that is processed again after a failure must give the same result.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use datafusion_common::config::ConfigOptions;
use datafusion_common::{DataFusionError, Result, TableReference};
use datafusion_expr::planner::{ContextProvider, ExprPlanner};
use datafusion_expr::{
    AggregateUDF, HigherOrderUDF, ScalarUDF, TableSource, Volatility, WindowUDF,
};
use datafusion_functions::core::planner::CoreFunctionPlanner;
use datafusion_functions::datetime::planner::DatetimeFunctionPlanner;
use datafusion_functions::unicode::planner::UnicodeFunctionPlanner;

/// Functions and planners for expressions.
pub(super) struct Functions {
    /// By name and by alias, in lower case.
    scalar: BTreeMap<String, Arc<ScalarUDF>>,
    planners: Vec<Arc<dyn ExprPlanner>>,
    options: ConfigOptions,
}

/// The functions of this program.
pub(super) static FUNCTIONS: LazyLock<Functions> = LazyLock::new(|| {
    let mut scalar = BTreeMap::new();
    for function in datafusion_functions::all_default_functions() {
        for alias in function.aliases() {
            scalar.insert(alias.clone(), Arc::clone(&function));
        }
        scalar.insert(function.name().to_owned(), function);
    }
    Functions {
        scalar,
        planners: vec![
            Arc::new(CoreFunctionPlanner::default()),
            Arc::new(DatetimeFunctionPlanner),
            Arc::new(UnicodeFunctionPlanner),
        ],
        options: ConfigOptions::default(),
    }
});

/// SQL functions over many records, which expressions can't call.
const OVER_MANY_RECORDS: [&str; 26] = [
    "approx_distinct",
    "array_agg",
    "avg",
    "bool_and",
    "bool_or",
    "count",
    "cume_dist",
    "dense_rank",
    "first_value",
    "grouping",
    "lag",
    "last_value",
    "lead",
    "max",
    "mean",
    "median",
    "min",
    "nth_value",
    "ntile",
    "percent_rank",
    "rank",
    "row_number",
    "stddev",
    "string_agg",
    "sum",
    "var",
];

/// What a name in a call refers to.
pub(super) enum Called {
    /// A function that may be called.
    Allowed,
    /// A function whose value depends on more than its arguments.
    Changing,
    /// A function over many records.
    OverManyRecords,
    /// No function.
    Unknown,
}

impl Functions {
    /// Returns what this name, in lower case, refers to.
    pub(super) fn called(&self, name: &str) -> Called {
        match self.scalar.get(name) {
            Some(function) => match function.signature().volatility {
                Volatility::Immutable => Called::Allowed,
                Volatility::Stable | Volatility::Volatile => Called::Changing,
            },
            None if OVER_MANY_RECORDS.contains(&name) => Called::OverManyRecords,
            None => Called::Unknown,
        }
    }

    /// All names that may be called.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        let allowed =
            |function: &ScalarUDF| function.signature().volatility == Volatility::Immutable;
        self.scalar
            .iter()
            .filter(move |(_, function)| allowed(function))
            .map(|(name, _)| name.as_str())
    }
}

impl ContextProvider for Functions {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>> {
        let message = format!("there is no table `{name}`: an expression sees one record");
        Err(DataFusionError::Plan(message))
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.planners
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.scalar.get(name).cloned()
    }

    fn get_higher_order_meta(&self, _name: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, _name: &str) -> Option<Arc<AggregateUDF>> {
        None
    }

    fn get_window_meta(&self, _name: &str) -> Option<Arc<WindowUDF>> {
        None
    }

    fn get_variable_type(
        &self,
        _names: &[String],
    ) -> Option<datafusion_common::arrow::datatypes::DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.options
    }

    fn udf_names(&self) -> Vec<String> {
        self.names().map(str::to_owned).collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
    }
}

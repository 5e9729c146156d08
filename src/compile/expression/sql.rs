//! Types a parsed expression: DataFusion resolves names and coerces operands; this module converts the result
//! to a column type.
//!
//! Constants of an expression are not folded: see the parent module.

use std::sync::Arc;

use datafusion_common::arrow::datatypes::{DataType, Field, Schema as ArrowSchema, TimeUnit};
use datafusion_common::tree_node::{Transformed, TransformedResult as _, TreeNode as _};
use datafusion_common::{DFSchema, DFSchemaRef, DataFusionError};
use datafusion_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion_expr::{Expr, ExprSchemable as _, expr::ScalarFunction};
use datafusion_optimizer::simplify_expressions::ExprSimplifier;
use datafusion_sql::planner::{ParserOptions, PlannerContext, SqlToRel};
use datafusion_sql::sqlparser::ast;
use tanist_model::{ColumnType, Schema};

use super::functions::FUNCTIONS;
use super::syntax::{self, Text};

/// Stack size in bytes of the thread that compiles expressions: enough for the longest text that is parsed.
const STACK: usize = 64 * 1024 * 1024;
/// Maximum text length for which the part that causes a type error is searched: the search types each part
/// again.
const SEARCHED_LENGTH: usize = 1024;

/// An expression that fits its input.
#[derive(Debug, Clone)]
pub struct Typed {
    /// Coerced, and cast to the Arrow type of its column.
    pub expr: Expr,
    /// The columns of the input in DataFusion's form.
    pub columns: DFSchemaRef,
    /// The type of its value.
    pub column_type: ColumnType,
}

/// Runs work whose recursion is as deep as an expression, on a thread with a large stack. The error says that
/// the work panicked, or that the thread can't be started.
pub fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("expressions".into())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(|error| format!("there is no thread to compile expressions on: {error}"))?;
        thread
            .join()
            .map_err(|_| "its expressions can't be compiled: DataFusion panicked".to_owned())
    })
}

/// Compiles the expression of a column, over records with these columns. Call it within [`on_deep_stack`].
pub fn column(text: &str, input: &Schema) -> Result<Typed, String> {
    let found = compile(Text(text), input)?;
    let Some(column_type) = column_type_of(&found.data_type) else {
        return Err(Text(text).whole(no_column_type(&found.data_type)));
    };
    typed(Text(text), found, column_type)
}

/// Compiles the condition of a filter: an expression that is true, false or null. Call it within
/// [`on_deep_stack`].
pub fn condition(text: &str, input: &Schema) -> Result<Typed, String> {
    let found = compile(Text(text), input)?;
    if found.data_type != DataType::Boolean {
        let data_type = type_name(&found.data_type);
        return Err(Text(text).whole(format!(
            "it is {data_type}, but a condition is needed, such as `amount > 10`"
        )));
    }
    typed(Text(text), found, ColumnType::Bool)
}

struct Compiled {
    expr: Expr,
    columns: DFSchemaRef,
    data_type: DataType,
}

fn typed(text: Text<'_>, found: Compiled, column_type: ColumnType) -> Result<Typed, String> {
    let expr = found
        .expr
        .cast_to(&arrow_type_of(column_type), &found.columns)
        .map_err(|error| text.whole(explain(&error)))?;
    Ok(Typed {
        expr,
        columns: found.columns,
        column_type,
    })
}

fn compile(text: Text<'_>, input: &Schema) -> Result<Compiled, String> {
    let parsed = syntax::parse(text)?;
    syntax::check(text, &parsed, input)?;
    let columns = columns_of(input).map_err(|error| text.whole(explain(&error)))?;
    let resolved = resolve(parsed.clone(), &columns);
    let (expr, data_type) = resolved.map_err(|error| {
        let fails = |part: &ast::Expr| {
            let resolved = resolve(part.clone(), &columns);
            resolved.err().map(|error| explain(&error))
        };
        let searched = text.0.len() <= SEARCHED_LENGTH;
        let found = searched.then(|| syntax::first_failing(&parsed, fails));
        match found.flatten() {
            Some((place, part, message)) if part != parsed.to_string() => {
                text.at(place, format!("in `{part}`: {message}"))
            }
            Some((_, _, message)) => text.whole(message),
            None => text.whole(explain(&error)),
        }
    })?;
    Ok(Compiled {
        expr,
        columns,
        data_type,
    })
}

/// Resolves the names and coerces the operands of an expression. Returns it with its type.
fn resolve(parsed: ast::Expr, columns: &DFSchemaRef) -> Result<(Expr, DataType), DataFusionError> {
    let options = ParserOptions::new()
        .with_enable_ident_normalization(false)
        .with_map_string_types_to_utf8view(false);
    let planner = SqlToRel::new_with_options(&*FUNCTIONS, options);
    let planned = planner.sql_to_expr(parsed, columns, &mut PlannerContext::new())?;
    let context = SimplifyContext::builder()
        .with_schema(Arc::clone(columns))
        .build();
    let coerced = ExprSimplifier::new(context.clone()).coerce(planned, columns)?;
    // Some functions, such as coalesce, are only another notation for an expression.
    let written_out = coerced.transform_up(|expr| match expr {
        Expr::ScalarFunction(ScalarFunction { func, args }) => {
            Ok(match func.simplify(args, &context)? {
                ExprSimplifyResult::Simplified(expr) => Transformed::yes(expr),
                ExprSimplifyResult::Original(args) => {
                    Transformed::no(Expr::ScalarFunction(ScalarFunction { func, args }))
                }
            })
        }
        other => Ok(Transformed::no(other)),
    });
    let expr = written_out.data()?;
    let data_type = expr.get_type(columns)?;
    Ok((expr, data_type))
}

fn columns_of(input: &Schema) -> Result<DFSchemaRef, DataFusionError> {
    let fields = input.columns().iter().map(|column| {
        Field::new(
            &column.name,
            arrow_type_of(column.column_type),
            column.nullable,
        )
    });
    let schema = ArrowSchema::new(fields.collect::<Vec<_>>());
    Ok(Arc::new(DFSchema::try_from(schema)?))
}

/// The Arrow type of a column type.
fn arrow_type_of(column_type: ColumnType) -> DataType {
    match column_type {
        ColumnType::String => DataType::Utf8,
        ColumnType::Int64 => DataType::Int64,
        ColumnType::Float64 => DataType::Float64,
        ColumnType::Bool => DataType::Boolean,
        ColumnType::Timestamp => DataType::Timestamp(TimeUnit::Millisecond, None),
    }
}

/// The column type for values of this type. A `UInt64` value beyond `int64` fails when it is evaluated.
fn column_type_of(data_type: &DataType) -> Option<ColumnType> {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Some(ColumnType::String),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => Some(ColumnType::Float64),
        DataType::Boolean => Some(ColumnType::Bool),
        // Parts finer than a millisecond are dropped.
        DataType::Timestamp(_, None) => Some(ColumnType::Timestamp),
        integer if integer.is_integer() => Some(ColumnType::Int64),
        _ => None,
    }
}

fn no_column_type(data_type: &DataType) -> String {
    match data_type {
        DataType::Null => "it is always null, and no column can be null".into(),
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => {
            format!(
                "it is {}, which no column can be: write `cast(... as double)`",
                type_name(data_type)
            )
        }
        other => format!(
            "it is {}, which no column can be: write `cast(... as varchar)`, or a function that gives a number or a text",
            type_name(other)
        ),
    }
}

/// Name of a type in job files, or else in Arrow.
fn type_name(data_type: &DataType) -> String {
    match column_type_of(data_type) {
        Some(column_type) if arrow_type_of(column_type) == *data_type => column_type.to_string(),
        _ => data_type.to_string().to_lowercase(),
    }
}

/// Returns DataFusion's message on one line and with the type names of job files.
pub fn explain(error: &DataFusionError) -> String {
    let message = error.find_root().message().into_owned();
    // Drop the request to report a bug to DataFusion: Tanist has to fix it.
    let message = message.split("\nThis issue was likely caused").next();
    let message = message.unwrap_or_default();
    if let Some(problem) = problem_of_pattern(message) {
        return problem;
    }
    let names = [
        ("LargeUtf8", "string"),
        ("Utf8View", "string"),
        ("Utf8", "string"),
        ("Int64", "int64"),
        ("Float64", "float64"),
        ("Boolean", "bool"),
    ];
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    names
        .iter()
        // `UInt64` is not a column type.
        .fold(line.replace("UInt64", "uint64"), |line, (theirs, ours)| {
            line.replace(theirs, ours)
        })
}

/// Returns the problem of a regular expression, if the message is a drawing of it on several lines.
fn problem_of_pattern(message: &str) -> Option<String> {
    let (_, drawn) = message.split_once("regex parse error:")?;
    let (drawn, problem) = drawn.rsplit_once("error: ")?;
    let problem = problem.lines().next()?;
    // A pattern of several lines is drawn between rules, with line numbers.
    let mut lines = drawn.lines().map(str::trim);
    let pattern = lines.find(|line| !line.is_empty())?;
    Some(match pattern.starts_with("~~~") {
        true => format!("that is no regular expression: {problem}"),
        false => format!("{pattern:?} is no regular expression: {problem}"),
    })
}

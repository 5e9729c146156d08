//! Parses an expression and checks that it only has allowed parts: columns of the input, constants, operators
//! and immutable functions. Problems are reported with their position in the text.
//!
//! Invariant: an expression that passes is at most [`MAX_DEPTH`] deep, so that later recursion needs a bounded
//! stack. Before the check, texts are only processed on a deep stack ([`super::on_deep_stack`]).

use std::fmt::Display;
use std::ops::ControlFlow;

use datafusion_sql::sqlparser::ast::{
    Expr, FunctionArguments, Query, Spanned, Value, Visit, Visitor,
};
use datafusion_sql::sqlparser::ast::{Function, Ident, ValueWithSpan};
use datafusion_sql::sqlparser::dialect::GenericDialect;
use datafusion_sql::sqlparser::parser::{Parser, ParserError};
use datafusion_sql::sqlparser::tokenizer::{Location, Token, Tokenizer};
use tanist_model::Schema;
use tanist_model::problem::{instead, nearest};

use super::functions::{Called, FUNCTIONS};

/// Maximum length in bytes.
const MAX_LENGTH: usize = 16 * 1024;
/// Maximum number of words and signs of an expression: a chain of operators is as deep as it is long.
const MAX_TOKENS: usize = 4096;
/// Maximum depth of an expression. Chains of `and`, `or` and `+` are as deep as they have parts.
pub(super) const MAX_DEPTH: usize = 128;
/// Number of characters of an expression in a message.
const SHOWN: usize = 80;

const TOO_DEEP: &str =
    "it is nested too deeply: use `in (...)`, `case` or another step instead of long chains";

/// A text, for messages about positions in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Text<'t>(pub &'t str);

impl Text<'_> {
    /// Formats a message about the whole text.
    pub(super) fn whole(self, message: impl Display) -> String {
        format!("`{}`: {message}", self.shown())
    }

    /// Formats a message about a position in it, if that is known.
    pub(super) fn at(self, place: Location, message: impl Display) -> String {
        if place.line == 0 {
            return self.whole(message);
        }
        let shown = self.shown();
        if self.0.trim_end().contains('\n') {
            let (line, column) = (place.line, place.column);
            return format!("`{shown}`, line {line}, character {column}: {message}");
        }
        format!("`{shown}`, character {}: {message}", place.column)
    }

    fn shown(self) -> String {
        let line = self.0.split_whitespace().collect::<Vec<_>>().join(" ");
        match line.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}...", &line[..end]),
            None => line,
        }
    }
}

/// Parses a text that must be one whole expression. Process the result only on a deep stack until [`check`] has
/// passed.
pub(super) fn parse(text: Text<'_>) -> Result<Expr, String> {
    if text.0.trim().is_empty() {
        return Err("it is empty: write an expression such as `amount * 2`".into());
    }
    if text.0.len() > MAX_LENGTH {
        return Err(text.whole(format!("it is longer than {MAX_LENGTH} bytes")));
    }
    let dialect = GenericDialect {};
    let tokens = Tokenizer::new(&dialect, text.0)
        .tokenize_with_location()
        .map_err(|error| text.at(error.location, lowercase(&error.message)))?;
    let words = tokens
        .iter()
        .filter(|token| !matches!(token.token, Token::Whitespace(_)));
    if words.count() > MAX_TOKENS {
        return Err(text.whole(format!(
            "it has more than {MAX_TOKENS} words and signs: use several steps"
        )));
    }
    let mut parser = Parser::new(&dialect).with_tokens_with_locations(tokens);
    let parsed = parser
        .parse_expr()
        .map_err(|error| syntax_error(text, error))?;
    let next = parser.peek_token();
    if next.token == Token::EOF {
        return Ok(parsed);
    }
    let message = match next.token {
        Token::Word(word) if word.value.eq_ignore_ascii_case("as") => {
            "an expression has no `as`: its name stands before it".into()
        }
        other => format!("the expression ends before `{other}`: is an operator missing?"),
    };
    Err(text.at(next.span.start, message))
}

fn syntax_error(text: Text<'_>, error: ParserError) -> String {
    let message = match error {
        ParserError::RecursionLimitExceeded => return text.whole(TOO_DEEP),
        ParserError::TokenizerError(message) | ParserError::ParserError(message) => message,
    };
    // The parser puts the position after its message.
    let Some((message, place)) = message.rsplit_once(" at Line: ") else {
        return text.whole(lowercase(&message));
    };
    let mut numbers = place
        .split(", Column: ")
        .map(|part| part.trim().parse().ok());
    let line = numbers.next().flatten().unwrap_or(0);
    let column = numbers.next().flatten().unwrap_or(0);
    text.at(Location::new(line, column), lowercase(message))
}

fn lowercase(message: &str) -> String {
    let mut characters = message.chars();
    let first = characters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(characters).collect()
}

/// Checks that all its parts are allowed in an expression over this input.
pub(super) fn check(text: Text<'_>, parsed: &Expr, input: &Schema) -> Result<(), String> {
    let mut check = Check {
        text,
        input,
        depth: 0,
    };
    match parsed.visit(&mut check) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(problem) => Err(problem),
    }
}

struct Check<'a> {
    text: Text<'a>,
    input: &'a Schema,
    depth: usize,
}

impl Check<'_> {
    fn refuse(&self, at: Location, message: impl Display) -> ControlFlow<String> {
        ControlFlow::Break(self.text.at(at, message))
    }

    fn identifier(&self, name: &Ident) -> ControlFlow<String> {
        if self.input.column_type(&name.value).is_some() {
            return ControlFlow::Continue(());
        }
        let known = self.input.names();
        let mut same = known
            .clone()
            .filter(|it| it.eq_ignore_ascii_case(&name.value));
        let mut instead = match same.next() {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => instead(&name.value, known),
        };
        let is_part = self.text.0 != name.to_string();
        if name.quote_style == Some('"') && is_part {
            instead.push_str(" (texts stand in single quotes)");
        }
        let (column, input) = (&name.value, self.input);
        let message = format!("column `{column}` is not in its input ({input}); {instead}");
        self.refuse(name.span.start, message)
    }

    fn function(&self, function: &Function) -> ControlFlow<String> {
        let written = function.name.to_string();
        let at = function.name.span().start;
        let has_clause = function.over.is_some()
            || function.filter.is_some()
            || !function.within_group.is_empty()
            || function.null_treatment.is_some();
        match FUNCTIONS.called(&written.to_lowercase()) {
            Called::OverManyRecords => self.refuse(
                at,
                format!(
                    "`{written}` looks at many records, an expression at one: use a step such as `count` or `sum` after a `key-by`"
                ),
            ),
            Called::Changing => self.refuse(
                at,
                format!(
                    "`{written}` gives another value at each call: a record that is processed again after a failure would come out differently"
                ),
            ),
            Called::Unknown => {
                let instead = match nearest(&written.to_lowercase(), FUNCTIONS.names()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => "docs/reference/expressions.md lists them".into(),
                };
                self.refuse(at, format!("there is no function `{written}`; {instead}"))
            }
            Called::Allowed if has_clause => self.refuse(
                at,
                format!("`{written}` is computed from one record: leave out what stands behind it"),
            ),
            Called::Allowed => match &function.args {
                FunctionArguments::Subquery(query) => self.subquery(query),
                FunctionArguments::None | FunctionArguments::List(_) => ControlFlow::Continue(()),
            },
        }
    }

    fn subquery(&self, query: &Query) -> ControlFlow<String> {
        self.refuse(
            query.span().start,
            "an expression has no subqueries: it sees one record and no tables",
        )
    }
}

impl Visitor for Check<'_> {
    type Break = String;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<String> {
        self.subquery(query)
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return ControlFlow::Break(self.text.whole(TOO_DEEP));
        }
        match expr {
            Expr::Identifier(name) => self.identifier(name),
            Expr::CompoundIdentifier(names) => {
                let column = names
                    .last()
                    .map(|name| name.value.as_str())
                    .unwrap_or_default();
                let at = names
                    .first()
                    .map_or(Location::empty(), |name| name.span.start);
                self.refuse(
                    at,
                    format!("there are no tables here: write `{column}` alone"),
                )
            }
            Expr::Wildcard(_) | Expr::QualifiedWildcard(..) => self.refuse(
                expr.span().start,
                "`*` stands for all columns, an expression is one: name the column",
            ),
            Expr::Lambda(_) => self.refuse(expr.span().start, "an expression has no lambdas"),
            Expr::Function(function) => self.function(function),
            _ => ControlFlow::Continue(()),
        }
    }

    fn post_visit_expr(&mut self, _expr: &Expr) -> ControlFlow<String> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_value(&mut self, value: &ValueWithSpan) -> ControlFlow<String> {
        match &value.value {
            Value::Placeholder(name) => self.refuse(
                value.span.start,
                format!("`{name}` stands for nothing: parameters are written `${{name}}`"),
            ),
            _ => ControlFlow::Continue(()),
        }
    }
}

/// Returns the first part, starting at the leaves, for which `fails` returns an error, with its position.
pub(super) fn first_failing(
    parsed: &Expr,
    fails: impl FnMut(&Expr) -> Option<String>,
) -> Option<(Location, String, String)> {
    struct Search<F>(F);
    impl<F: FnMut(&Expr) -> Option<String>> Visitor for Search<F> {
        type Break = Box<(Location, String, String)>;

        fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Self::Break> {
            match (self.0)(expr) {
                Some(message) => {
                    let place = expr.span().start;
                    ControlFlow::Break(Box::new((place, expr.to_string(), message)))
                }
                None => ControlFlow::Continue(()),
            }
        }
    }
    match parsed.visit(&mut Search(fails)) {
        ControlFlow::Break(found) => Some(*found),
        ControlFlow::Continue(()) => None,
    }
}

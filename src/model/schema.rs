//! Schema of the records between two steps: named, typed columns.

use std::fmt;

use serde::{Deserialize, Serialize};
use tanist_proto::v1;

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnType {
    /// UTF-8 text.
    String,
    /// A signed integer of 64 bits.
    Int64,
    /// A floating point number of 64 bits.
    Float64,
    /// True or false.
    Bool,
    /// Milliseconds since 1970-01-01T00:00:00Z.
    Timestamp,
}

crate::named! {
    ColumnType {
        String = "string",
        Int64 = "int64",
        Float64 = "float64",
        Bool = "bool",
        Timestamp = "timestamp",
    }
}

impl ColumnType {
    /// Whether it is numeric.
    pub fn is_number(self) -> bool {
        match self {
            ColumnType::Int64 | ColumnType::Float64 => true,
            ColumnType::String | ColumnType::Bool | ColumnType::Timestamp => false,
        }
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A column of a [`Schema`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Unique in its schema.
    pub name: String,
    /// Its type.
    pub column_type: ColumnType,
    /// Whether a record may have null here.
    pub nullable: bool,
}

impl Column {
    /// A column without nulls.
    pub fn new(name: impl Into<String>, column_type: ColumnType) -> Column {
        Column {
            name: name.into(),
            column_type,
            nullable: false,
        }
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let question = if self.nullable { "?" } else { "" };
        write!(f, "{}: {}{question}", self.name, self.column_type)
    }
}

/// The columns of the records that a step emits; empty for a sink.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schema {
    columns: Vec<Column>,
}

impl Schema {
    /// Creates a schema with these columns.
    pub fn new(columns: Vec<Column>) -> Schema {
        Schema { columns }
    }

    /// Creates a schema with these columns, by name and type.
    pub fn of<const N: usize>(columns: [(&str, ColumnType); N]) -> Schema {
        let column = |(name, column_type): (&str, _)| Column::new(name, column_type);
        Schema {
            columns: columns.into_iter().map(column).collect(),
        }
    }

    /// Its columns in order.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The type of a column, if there is one of that name.
    pub fn column_type(&self, name: &str) -> Option<ColumnType> {
        self.column(name).map(|column| column.column_type)
    }

    /// A column, if there is one of that name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The names of its columns.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.columns.iter().map(|column| column.name.as_str())
    }

    /// Encodes it for a JobGraph.
    pub fn to_proto(&self) -> Vec<v1::Column> {
        let column = |column: &Column| v1::Column {
            name: column.name.clone(),
            r#type: match column.column_type {
                ColumnType::String => v1::ColumnType::String,
                ColumnType::Int64 => v1::ColumnType::Int64,
                ColumnType::Float64 => v1::ColumnType::Float64,
                ColumnType::Bool => v1::ColumnType::Bool,
                ColumnType::Timestamp => v1::ColumnType::Timestamp,
            } as i32,
            nullable: column.nullable,
        };
        self.columns.iter().map(column).collect()
    }

    /// Decodes it from a JobGraph; the error names a column with an unknown type.
    pub fn from_proto(columns: &[v1::Column]) -> Result<Schema, UnknownColumnType> {
        let column = |column: &v1::Column| {
            let column_type = match v1::ColumnType::try_from(column.r#type) {
                Ok(v1::ColumnType::String) => ColumnType::String,
                Ok(v1::ColumnType::Int64) => ColumnType::Int64,
                Ok(v1::ColumnType::Float64) => ColumnType::Float64,
                Ok(v1::ColumnType::Bool) => ColumnType::Bool,
                Ok(v1::ColumnType::Timestamp) => ColumnType::Timestamp,
                Ok(v1::ColumnType::Unspecified) | Err(_) => {
                    return Err(UnknownColumnType {
                        column: column.name.clone(),
                        number: column.r#type,
                    });
                }
            };
            Ok(Column {
                name: column.name.clone(),
                column_type,
                nullable: column.nullable,
            })
        };
        Ok(Schema {
            columns: columns.iter().map(column).collect::<Result<_, _>>()?,
        })
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, column) in self.columns.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{column}")?;
        }
        Ok(())
    }
}

/// Error: a column of a JobGraph has a type that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column `{column}` has the unknown type {number}")]
pub struct UnknownColumnType {
    /// The column.
    pub column: String,
    /// The number of its type.
    pub number: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_survives_the_way_through_a_job_graph() {
        let mut columns: Vec<Column> = Schema::of([
            ("a", ColumnType::String),
            ("b", ColumnType::Int64),
            ("c", ColumnType::Float64),
            ("d", ColumnType::Bool),
            ("e", ColumnType::Timestamp),
        ])
        .columns()
        .to_vec();
        columns[1].nullable = true;
        let schema = Schema::new(columns);
        assert_eq!(Schema::from_proto(&schema.to_proto()), Ok(schema.clone()));
        assert_eq!(
            schema.to_string(),
            "a: string, b: int64?, c: float64, d: bool, e: timestamp"
        );
    }

    #[test]
    fn a_type_that_is_not_known_is_refused_by_column() {
        let error = Schema::from_proto(&[v1::Column {
            name: "x".into(),
            r#type: 77,
            nullable: false,
        }]);
        assert_eq!(
            error.expect_err("unknown").to_string(),
            "column `x` has the unknown type 77"
        );
    }
}

//! An application: a program with its own cluster that ends with its jobs.
//!
//! ```text
//! cargo build --example application
//! target/debug/examples/application local --param 'input=books/*.txt' --param output=/tmp/counts
//! ```
//!
//! As a cluster: start `application jobmanager --param ...` on the hosts that lead or stand by, and
//! `application taskmanager` on the hosts that run tasks, all with the same `high-availability.*`. See
//! docs/guides/applications.md.

use std::process::ExitCode;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::SchemaRef;
use tanist::application::{Application, Operator, OperatorError, Output};
use tanist::job::{ColumnType, CustomSpec, JobBuilder};

/// An operator of this application: outputs each word with its length, if it has at least this number of letters.
struct Lengths {
    at_least: usize,
    output: SchemaRef,
}

impl Operator for Lengths {
    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let words: &StringArray = batch.column(0).as_string();
        let long: Vec<&str> = words
            .iter()
            .flatten()
            .filter(|word| word.len() >= self.at_least)
            .collect();
        let lengths: Int64Array = long
            .iter()
            .map(|word| i64::try_from(word.len()).ok())
            .collect();
        let columns: Vec<ArrayRef> = vec![Arc::new(StringArray::from(long)), Arc::new(lengths)];
        output.emit(RecordBatch::try_new(Arc::clone(&self.output), columns)?);
        Ok(())
    }
}

fn main() -> ExitCode {
    Application::new("words")
        .operator("lengths", |config, context| {
            let at_least = config["at-least"].as_u64().unwrap_or(1);
            Ok(Box::new(Lengths {
                at_least: usize::try_from(at_least).unwrap_or(usize::MAX),
                output: context
                    .output
                    .clone()
                    .unwrap_or_else(|| Arc::new(arrow_schema::Schema::empty())),
            }))
        })
        .program(|context| async move {
            let input = context
                .parameter("input")
                .ok_or("give --param input=GLOB")?;
            let output = context
                .parameter("output")
                .ok_or("give --param output=DIRECTORY")?;
            let counts = JobBuilder::new("counts")
                .file_source("lines", [input])
                .split_words("words", "line")
                .key_by("by-word", ["word"])
                .count("counts")
                .file_sink("out", format!("{output}/all"))
                .build();
            // Submitted once, even if this program is started again after failovers.
            context.execute(counts).await?;
            let columns = [("word", ColumnType::String), ("length", ColumnType::Int64)];
            let at_least = serde_json::json!({"at-least": 10});
            let long = JobBuilder::new("long words")
                .file_source("lines", [input])
                .split_words("words", "line")
                .custom(
                    "lengths",
                    CustomSpec::operator("lengths", columns).with_config(at_least),
                )
                .file_sink("out", format!("{output}/long"))
                .build();
            context.execute(long).await?;
            Ok(())
        })
        .main()
}

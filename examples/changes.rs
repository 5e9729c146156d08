//! An application with an operator that has state: a value by key, and timers of event time.
//!
//! ```text
//! cargo build --example changes
//! target/debug/examples/changes local --param output=/tmp/changes
//! ```
//!
//! It writes by how much the value of each sensor has changed in each interval of event time. The output is the same if
//! the application is killed and restarted, or started from a savepoint at another parallelism. See
//! docs/guides/custom-operators.md.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::SchemaRef;
use tanist::application::{
    Application, EndOfInput, EventTimers, KeyedStates, Operator, OperatorContext, OperatorError,
    Output, Restored, Snapshot, TimeSignal, ValueState,
};
use tanist::job::operators::{Commit, FileSink};
use tanist::job::{Checkpoints, ColumnType, CustomSpec, JobBuilder, StreamGraph};

/// Most records of a batch that it emits.
const ROWS: usize = 2048;

/// The first and the last value of a sensor in an interval.
#[derive(Clone, PartialEq, prost::Message)]
struct Span {
    #[prost(int64, tag = "1")]
    first_time: i64,
    #[prost(int64, tag = "2")]
    first: i64,
    #[prost(int64, tag = "3")]
    last_time: i64,
    #[prost(int64, tag = "4")]
    last: i64,
}

/// Reads the columns `seq` (a time in milliseconds), `key` (a sensor) and `value`.
struct Changes {
    interval: i64,
    keyed: KeyedStates,
    /// By the end of the interval, and the sensor.
    spans: ValueState<Span>,
    /// At the last millisecond of an interval, for each sensor with a span in it.
    ends: EventTimers,
    output: SchemaRef,
}

impl Changes {
    fn new(interval: i64, context: &OperatorContext) -> Result<Changes, OperatorError> {
        let keyed = KeyedStates::of(context)?;
        Ok(Changes {
            interval,
            spans: keyed.value("spans", "first and last value, version 1"),
            ends: keyed.timers("ends"),
            keyed,
            output: context.output_schema(),
        })
    }

    /// Emits the intervals that are over.
    fn emit(&mut self, output: &mut Output) -> Result<(), OperatorError> {
        let (mut keys, mut ends, mut changes) = (Vec::new(), Vec::new(), Vec::new());
        while let Some((time, key)) = self.ends.next_due() {
            let end = time + 1;
            if let Some(span) = self.spans.clear((end, &*key)) {
                keys.push(key);
                ends.push(end);
                changes.push(span.last - span.first);
            }
            if keys.len() == ROWS {
                output.emit(self.batch(&keys, &ends, &changes)?);
                keys.clear();
                ends.clear();
                changes.clear();
            }
        }
        output.emit(self.batch(&keys, &ends, &changes)?);
        Ok(())
    }

    fn batch(
        &self,
        keys: &[Box<[u8]>],
        ends: &[i64],
        changes: &[i64],
    ) -> Result<RecordBatch, OperatorError> {
        let keys = keys.iter().map(|key| &**key);
        let mut columns: Vec<ArrayRef> = self.keyed.columns().decode(keys);
        for column in [ends, changes] {
            columns.push(Arc::new(Int64Array::from(column.to_vec())));
        }
        Ok(RecordBatch::try_new(Arc::clone(&self.output), columns)?)
    }
}

impl Operator for Changes {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        self.spans.restore(restored)?;
        self.ends.restore(restored)
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        self.spans.snapshot(snapshot)?;
        self.ends.snapshot(snapshot)
    }

    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let times: &Int64Array = batch.column(0).as_primitive::<Int64Type>();
        let values: &Int64Array = batch.column(2).as_primitive::<Int64Type>();
        let keyed = self.keyed.clone();
        let mut keys = keyed.keys_of(&batch);
        for (row, (time, value)) in times.values().iter().zip(values.values()).enumerate() {
            let end = time - time.rem_euclid(self.interval) + self.interval;
            if self.ends.watermark().is_some_and(|it| it >= end - 1) {
                output.count_late(1);
                continue;
            }
            let key = keys.key(row);
            let span = self.spans.get_or_insert_with((end, key), || Span {
                first_time: *time,
                first: *value,
                last_time: *time,
                last: *value,
            });
            // Records of several sources are in any order.
            if *time < span.first_time {
                (span.first_time, span.first) = (*time, *value);
            }
            if *time > span.last_time {
                (span.last_time, span.last) = (*time, *value);
            }
            self.ends.set(end - 1, key);
        }
        Ok(())
    }

    fn signal(&mut self, signal: TimeSignal, output: &mut Output) -> Result<(), OperatorError> {
        self.ends.advance(signal);
        self.emit(output)?;
        output.signal(signal);
        Ok(())
    }

    fn end_input(&mut self, output: &mut Output) -> Result<EndOfInput, OperatorError> {
        self.ends.end();
        self.emit(output)?;
        Ok(EndOfInput::Done)
    }
}

/// The application with its operator, and without a job.
pub(crate) fn application() -> Application {
    Application::new("changes").operator("changes", |config, context| {
        let interval = config["interval-ms"].as_i64().unwrap_or(1_000);
        Ok(Box::new(Changes::new(interval, context)?))
    })
}

/// Number of sensors. Most have one or two values in an interval.
pub(crate) const SENSORS: u64 = 500;

/// The job: `count` values at this rate, or as fast as possible, and the changes written into a directory.
pub(crate) fn job(output: &str, rate: Option<u64>, count: u64) -> StreamGraph {
    let columns = ["key", "end", "change"].map(|name| (name, ColumnType::Int64));
    let config = serde_json::json!({"interval-ms": 1_000});
    let sink = FileSink::new(output)
        .committing(Commit::Checkpoint)
        .rolling(1 << 20, Duration::from_millis(500));
    JobBuilder::new("changes")
        .checkpoints(Checkpoints::every(Duration::from_millis(200)))
        .datagen("values", rate, Some(count), 0, SENSORS)
        .watermarks("time", "seq", Duration::ZERO)
        .key_by("by-sensor", ["key"])
        .custom(
            "changes",
            CustomSpec::operator("changes", columns)
                .saving_state()
                .with_config(config),
        )
        .step("out", sink)
        .build()
}

fn main() -> ExitCode {
    application()
        .job(|context| {
            let output = context.parameter("output");
            let output = output.ok_or("give --param output=DIRECTORY")?;
            Ok(job(output, Some(2_000), 60_000))
        })
        .main()
}

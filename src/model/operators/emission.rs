//! When an aggregation emits: once, after each record, or for windows of event time. What a step says of it, and what
//! its input implies.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use tanist_ha::clock::millis;

use super::{Aggregate, Aggregation, EventTime, Input};
use crate::job_file::{Fields, Node, Reader};
use crate::timestamp::FARTHEST;

/// Maximum number of sliding windows that a record belongs to.
const MAX_OVERLAP: u64 = 1_000;

/// When an aggregation over the whole input emits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Emit {
    /// Each key's result once, at the end of the input: the default for bounded jobs.
    Final,
    /// The new result after each record: the default for unbounded jobs.
    Updates,
}

impl Emit {
    /// The default for an input.
    pub(super) fn implied(input: &Input<'_>) -> Emit {
        match input.bounded {
            true => Emit::Final,
            false => Emit::Updates,
        }
    }
}

/// Decodes a field that a step may leave out and a job graph must have.
pub(super) fn stated<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// When an aggregation emits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// Each key's results once, at the end of the input.
    Final,
    /// The new results after each record.
    Updates,
    /// The results of each window once the watermark has passed its end.
    Window(Windows),
}

impl From<Emit> for Trigger {
    fn from(emit: Emit) -> Trigger {
        match emit {
            Emit::Final => Trigger::Final,
            Emit::Updates => Trigger::Updates,
        }
    }
}

/// Windows of event time, aligned to 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Windows {
    /// Length of each window.
    pub size_ms: u64,
    /// Time between the starts of two windows; equal to the size for tumbling windows.
    pub slide_ms: u64,
    /// The column with the event time. Empty until the aggregation is completed.
    pub time: String,
    /// Time after a window was emitted in which records can still change it; then it is emitted again.
    pub allowed_lateness_ms: u64,
}

impl Windows {
    /// Windows of this size without gaps or overlap.
    pub fn tumbling(size: Duration) -> Windows {
        Windows::sliding(size, size)
    }

    /// Windows of this size, one starting at each `slide`.
    pub fn sliding(size: Duration, slide: Duration) -> Windows {
        Windows {
            size_ms: millis(size),
            slide_ms: millis(slide),
            time: String::new(),
            allowed_lateness_ms: 0,
        }
    }

    /// Sets how long after a window was emitted a record can still change it.
    #[must_use]
    pub fn allowing_lateness(self, lateness: Duration) -> Windows {
        Windows {
            allowed_lateness_ms: millis(lateness),
            ..self
        }
    }

    /// The aggregation of these results over the windows, whose keys and time are completed from the input of the step.
    pub(super) fn of(self, aggregations: impl IntoIterator<Item = Aggregation>) -> Aggregate {
        Aggregate {
            trigger: Some(Trigger::Window(self)),
            ..Aggregate::of(aggregations)
        }
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let Windows {
            size_ms: size,
            slide_ms: slide,
            ..
        } = *self;
        if size == 0 || slide == 0 {
            problems.push("a window's `size` and `slide` must be more than 0".into());
        } else if slide > size {
            problems.push(
                "`slide` is longer than `size`, so that records between two windows would be lost: write at most the size"
                    .into(),
            );
        } else if size.div_ceil(slide) > MAX_OVERLAP {
            problems.push(format!(
                "`slide` is so short that each record is in {} windows: write one for at most {MAX_OVERLAP}",
                size.div_ceil(slide)
            ));
        }
        if size.max(self.allowed_lateness_ms) > FARTHEST.unsigned_abs() {
            problems.push("a window's `size` or `allowed-lateness` is too long".into());
        }
        problems
    }

    /// Event time of the results. Unknown for overlapping windows and with lateness, whose start does not
    /// determine when they are emitted.
    pub(super) fn event_time(&self) -> Option<EventTime> {
        (self.size_ms == self.slide_ms && self.allowed_lateness_ms == 0).then(|| EventTime {
            column: "window_start".into(),
            span_ms: self.size_ms,
        })
    }
}

/// The fields of all aggregations.
pub(super) const FIELDS: &[&str] = &[
    "`emit` | `final`, `updates` | `final` for bounded, `updates` for unbounded input | without windows: each key's result once, at the end of the input, or the new result after each record",
    "`window` | [windows](../guides/windows.md) | the whole input | results are computed for windows of event time: exactly one of `window.tumbling` and `window.sliding` is required",
    "`window.tumbling` | `{ size: DURATION }` | required without `sliding` | windows of this size, one after the other",
    "`window.sliding` | `{ size: DURATION, slide: DURATION }` | required without `tumbling` | windows of this size, one starting each `slide`, which is at most the size; a record is in several windows, at most 1000",
    "`window.allowed-lateness` | a duration | `0 s` | time after a window was emitted in which records still change it; it is then emitted again for that key",
];

const EMIT: [(&str, Emit); 2] = [("final", Emit::Final), ("updates", Emit::Updates)];

/// What a step states about when it emits.
pub(super) enum Emission {
    /// Over the whole input; `None`: as the input requires.
    Once(Option<Emit>),
    /// Over windows.
    Windows(Windows),
}

/// Reads `emit` and `window`; `None` if the windows can't be read, which is reported.
pub(super) fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Emission> {
    let emit = fields.optional_value("emit", reader, |reader, field, node| {
        reader.one_of(field, node, &EMIT)
    });
    let Some(node) = fields.node("window") else {
        return Some(Emission::Once(emit));
    };
    if emit.is_some() {
        let message =
            "`emit` has no effect with a `window`, which is emitted when it ends: remove it";
        reader.problem(Some(node.position), message);
    }
    windows(node, reader).map(Emission::Windows)
}

fn windows(node: &Node, reader: &mut Reader) -> Option<Windows> {
    let mut fields = Fields::of(node, reader);
    let (tumbling, sliding) = (fields.node("tumbling"), fields.node("sliding"));
    let lateness = fields.optional_value("allowed-lateness", reader, Reader::duration);
    fields.finish("window", reader);
    let windows = match (tumbling, sliding) {
        (Some(node), None) => {
            let mut fields = Fields::of(node, reader);
            let size = fields.required("size", "10 s", reader, Reader::duration);
            fields.finish("tumbling", reader);
            Windows::tumbling(size?)
        }
        (None, Some(node)) => {
            let mut fields = Fields::of(node, reader);
            let size = fields.required("size", "10 s", reader, Reader::duration);
            let slide = fields.required("slide", "1 s", reader, Reader::duration);
            fields.finish("sliding", reader);
            Windows::sliding(size?, slide?)
        }
        (Some(_), Some(_)) | (None, None) => {
            let message = "`window` is one of `tumbling: { size: 10 s }` and `sliding: { size: 10 s, slide: 1 s }`";
            reader.problem(Some(node.position), message);
            return None;
        }
    };
    Some(match lateness {
        Some(lateness) => windows.allowing_lateness(lateness),
        None => windows,
    })
}

//! `sample`: a fraction of the records.

use serde::{Deserialize, Serialize};

use super::{Declaration, Section, StateUse, Step, Transformation};
use crate::job_file::{Fields, Reader};

/// Passes on a fraction of the records, chosen by a hash of their values, so that a restart chooses the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// The probability with which a record is passed on, above 0 and at most 1.
    pub fraction: f64,
    /// Another seed chooses other records.
    pub seed: u64,
}

impl Declaration for Sample {
    fn kind(&self) -> &'static str {
        "sample"
    }

    fn state(&self) -> StateUse {
        StateUse::NotSaved("its state is not saved yet")
    }

    fn problems(&self) -> Vec<String> {
        let fraction = self.fraction;
        if fraction > 0.0 && fraction <= 1.0 {
            return Vec::new();
        }
        vec![format!(
            "`fraction` is {fraction}: write a number above 0 and at most 1"
        )]
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "sample",
    section: Section::Transformations,
    text: "\
Passes on each record with a probability. A hash of its values and the seed decides, so a restart decides the same, and
equal records are all passed on or all dropped. Of two `sample` steps of the same input with the same seed, the one with
the greater fraction passes on all records of the other. Emits the columns that it reads.",
    fields: &[&[
        "`fraction` | a number above 0 and at most 1 | required | the probability",
        "`seed` | a number | `0` | another seed chooses other records",
    ]],
    example: "\
- datagen: { count: 1000 }
- sample: { fraction: 0.1, seed: 7 }
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let fraction = fields.required("fraction", "0.1", reader, Reader::f64);
    let seed = fields.optional_value("seed", reader, Reader::u64);
    let spec = Sample {
        fraction: fraction?,
        seed: seed.unwrap_or(0),
    };
    Some(spec.into())
}

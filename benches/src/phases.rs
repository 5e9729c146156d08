//! The phases of takeovers, from the records of the new terms in the store.

use serde_json::Value;

use crate::report::Figure;
use crate::samples::Unit;

/// Location of each phase in a term's record, in milliseconds, and its name.
const PHASES: [(&str, &str); 8] = [
    ("/takeover/noticed_after_ms", "last beat -> noticed"),
    ("/takeover/deposed_after_ms", "noticed -> grant"),
    ("/phases/pipeline_ms", "grant -> change number read"),
    ("/phases/cache_proven_ms", "grant -> records proven"),
    ("/phases/recovered_ms", "grant -> jobs decoded"),
    ("/phases/confirmed_ms", "grant -> confirmed"),
    ("/phases/first_adopted_ms", "grant -> first task adopted"),
    ("/phases/last_adopted_ms", "grant -> last task adopted"),
];

/// A figure for each phase.
#[derive(Debug)]
pub struct PhaseFigures(Vec<(&'static str, Figure)>);

impl PhaseFigures {
    /// Figures for takeovers with this name.
    pub fn of(takeovers: &str) -> PhaseFigures {
        let figure = |(path, what)| {
            let what = format!("{takeovers}: {what}");
            (path, Figure::new(what, Unit::Milliseconds))
        };
        PhaseFigures(PHASES.into_iter().map(figure).collect())
    }

    /// Adds the phases of a term's record.
    pub fn take(&mut self, record: &Value) {
        for (path, figure) in &mut self.0 {
            if let Some(took) = record.pointer(path).and_then(Value::as_f64) {
                figure.push(took);
            }
        }
    }

    /// The figures that have samples.
    pub fn all(self) -> impl Iterator<Item = Figure> {
        let figures = self.0.into_iter().map(|(_, figure)| figure);
        figures.filter(|figure| !figure.samples.all().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_record_does_not_tell_is_no_figure() {
        let mut phases = PhaseFigures::of("SIGKILL");
        phases.take(&json!({"phases": {"confirmed_ms": 3.5}, "takeover": {"noticed_after_ms": 1}}));
        phases.take(&json!({"phases": {"confirmed_ms": 4.5, "last_adopted_ms": null}}));
        let told = phases
            .all()
            .map(|figure| (figure.what, figure.samples.all().to_vec()));
        let expected = [
            ("SIGKILL: last beat -> noticed".to_owned(), vec![1.0]),
            ("SIGKILL: grant -> confirmed".to_owned(), vec![3.5, 4.5]),
        ];
        assert!(told.eq(expected));
    }
}

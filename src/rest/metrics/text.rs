//! Prometheus' text format (version 0.0.4): families of samples with labels.

use std::fmt::Write as _;

/// The content type of the answer.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The kind of a family of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It goes up and down.
    Gauge,
    /// It only grows during the life of the process; the name ends in `_total`.
    Counter,
}

/// Names and values.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// An answer that is being written.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    text: String,
}

impl Exposition {
    /// Writes a family with one sample.
    pub(super) fn single(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        self.family(name, kind, help, [(&[] as Labels<'_>, value)]);
    }

    /// Writes a gauge with one sample, or nothing if its value is not known.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.single(name, Kind::Gauge, help, value);
        }
    }

    /// Writes a family, or nothing if it has no samples.
    pub(super) fn family<'a>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'a>, f64)>,
    ) {
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let mut is_first = true;
        for (labels, value) in samples {
            if std::mem::take(&mut is_first) {
                self.line(format_args!("# HELP {name} {help}"));
                self.line(format_args!("# TYPE {name} {kind}"));
            }
            let labels: Vec<String> = labels
                .iter()
                .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
                .collect();
            match labels.is_empty() {
                true => self.line(format_args!("{name} {value}")),
                false => self.line(format_args!("{name}{{{}}} {value}", labels.join(","))),
            }
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("writing to a string succeeds");
    }

    /// The whole text.
    pub(super) fn into_text(self) -> String {
        self.text
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_written_with_help_type_and_escaped_labels() {
        let mut out = Exposition::default();
        out.single("tanist_epoch", Kind::Gauge, "The youngest epoch", 8.0);
        let jobs: [(Labels<'_>, f64); 2] = [
            (&[("status", "RUNNING")], 2.0),
            (&[("status", "a\"b\\c\nd"), ("x", "y")], 0.25),
        ];
        out.family("tanist_jobs", Kind::Gauge, "Jobs", jobs);
        out.family("tanist_none", Kind::Counter, "Nothing", []);
        out.gauge("tanist_unknown", "Not known", None);
        let expected = "\
# HELP tanist_epoch The youngest epoch
# TYPE tanist_epoch gauge
tanist_epoch 8
# HELP tanist_jobs Jobs
# TYPE tanist_jobs gauge
tanist_jobs{status=\"RUNNING\"} 2
tanist_jobs{status=\"a\\\"b\\\\c\\nd\",x=\"y\"} 0.25
";
        assert_eq!(out.into_text(), expected);
    }
}

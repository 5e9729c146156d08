//! The report of a run: the machine and the figures, as a table for people, and as JSON and CSV for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tanist_chaos::store::StoreKind;

use crate::Benchmark;
use crate::host::{Host, Load};
use crate::samples::{Samples, Unit, shown};

/// One measured quantity.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The description of the quantity.
    pub what: String,
    /// What its numbers count.
    pub unit: Unit,
    /// One number per repetition.
    pub samples: Samples,
}

impl Figure {
    /// A figure without samples.
    pub fn new(what: impl Into<String>, unit: Unit) -> Figure {
        let (what, samples) = (what.into(), Samples::default());
        Figure {
            what,
            unit,
            samples,
        }
    }

    /// Adds a sample.
    pub fn push(&mut self, sample: f64) {
        self.samples.push(sample);
    }
}

/// The figures of one benchmark on one store, with the load of the machine during the measurement.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// Which benchmark.
    pub benchmark: Benchmark,
    /// On which store.
    pub store: StoreKind,
    /// The load by other processes.
    pub load: Load,
    /// The results.
    pub figures: Vec<Figure>,
}

/// The report of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// The machine.
    pub host: Host,
    /// The command line.
    pub command: String,
    /// All measurements, in the order in which they were made.
    pub measurements: Vec<Measurement>,
    /// Failed benchmarks, with the reason.
    pub failures: Vec<String>,
}

impl Report {
    /// The run as text with Markdown tables.
    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "`{}`\n", self.command);
        for line in self.host.lines() {
            let _ = writeln!(text, "- {line}");
        }
        for (benchmark, measurements) in self.by_benchmark() {
            let _ = writeln!(text, "\n## {}\n", benchmark.title());
            let _ = writeln!(text, "{}\n", benchmark.method());
            text.push_str(&table(&measurements));
        }
        if !self.failures.is_empty() {
            text.push_str("\n## Not measured\n\n");
            for failure in &self.failures {
                let _ = writeln!(text, "- {failure}");
            }
        }
        text
    }

    /// For each benchmark that was run, the name of its CSV file and the file's text, with the rows of the table.
    pub fn to_csv(&self) -> Vec<(String, String)> {
        let day = self.host.began.split(' ').next().unwrap_or_default();
        let of_benchmark = |(benchmark, measurements): (Benchmark, Vec<&Measurement>)| {
            let mut text = "measurement,store,unit,n,min,median,p99,max,load,others\n".to_owned();
            for (measurement, figure) in by_figure(&measurements) {
                let [what, store, unit, n, min, median, p99, max, load] = row(measurement, figure);
                let (load, others) = load.split_once(" / ").unwrap_or((&load, ""));
                let what = what.replace('"', "\"\"");
                let numbers = [n, min, median, p99, max].map(|number| number.replace(' ', ""));
                let numbers = numbers.join(",");
                let _ = writeln!(text, "\"{what}\",{store},{unit},{numbers},{load},{others}");
            }
            (format!("{day}-{}.csv", benchmark.name()), text)
        };
        self.by_benchmark().map(of_benchmark).collect()
    }

    /// The benchmarks that were run, each with its measurements.
    fn by_benchmark(&self) -> impl Iterator<Item = (Benchmark, Vec<&Measurement>)> {
        let of = |benchmark| {
            let of_it = self.measurements.iter();
            let of_it = of_it.filter(move |measurement| measurement.benchmark == benchmark);
            (benchmark, of_it.collect::<Vec<_>>())
        };
        let each = Benchmark::ALL.into_iter().map(of);
        each.filter(|(_, measurements)| !measurements.is_empty())
    }

    /// The run with every sample.
    pub fn to_json(&self) -> Value {
        let measurements: Vec<Value> = self.measurements.iter().map(measurement_json).collect();
        json!({
            "command": self.command,
            "host": self.host.to_json(),
            "measurements": measurements,
            "failures": self.failures,
        })
    }
}

fn measurement_json(measurement: &Measurement) -> Value {
    let figure = |figure: &Figure| {
        json!({
            "what": figure.what,
            "unit": figure.unit.to_string(),
            "n": figure.samples.all().len(),
            "min": figure.samples.min(),
            "median": figure.samples.median(),
            "p99": figure.samples.quantile(0.99),
            "max": figure.samples.max(),
            "samples": figure.samples.all(),
        })
    };
    let figures: Vec<Value> = measurement.figures.iter().map(figure).collect();
    json!({
        "benchmark": measurement.benchmark.name(),
        "store": measurement.store.to_string(),
        "load_average": measurement.load.average,
        "others_cores": measurement.load.others,
        "figures": figures,
    })
}

fn table(measurements: &[&Measurement]) -> String {
    let mut rows = vec![
        [
            "",
            "store",
            "unit",
            "n",
            "min",
            "median",
            "p99",
            "max",
            "load / others",
        ]
        .map(str::to_owned),
    ];
    let figures = by_figure(measurements).into_iter();
    rows.extend(figures.map(|(measurement, figure)| row(measurement, figure)));
    rendered(&rows)
}

/// All figures. The same figure on all stores is adjacent.
fn by_figure<'a>(measurements: &[&'a Measurement]) -> Vec<(&'a Measurement, &'a Figure)> {
    let mut names: Vec<&str> = Vec::new();
    for figure in measurements.iter().flat_map(|m| &m.figures) {
        if !names.contains(&figure.what.as_str()) {
            names.push(&figure.what);
        }
    }
    let mut figures = Vec::new();
    for name in names {
        for measurement in measurements {
            let of_name = measurement.figures.iter().filter(|f| f.what == name);
            figures.extend(of_name.map(|figure| (*measurement, figure)));
        }
    }
    figures
}

fn row(measurement: &Measurement, figure: &Figure) -> [String; 9] {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), shown);
    [
        figure.what.clone(),
        measurement.store.to_string(),
        figure.unit.to_string(),
        figure.samples.all().len().to_string(),
        number(figure.samples.min()),
        number(figure.samples.median()),
        number(figure.samples.quantile(0.99)),
        number(figure.samples.max()),
        measurement.load.to_string(),
    ]
}

/// Lines of cells, each column as wide as its widest cell.
fn rendered<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let mut widths = [3; COLUMNS];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let padded = row.iter().zip(widths);
        let padded = padded.map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(&line(padded.collect()));
        if index == 0 {
            text.push_str(&line(widths.map(|width| "-".repeat(width)).into()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(store: StoreKind, samples: [f64; 3]) -> Measurement {
        Measurement {
            benchmark: Benchmark::Startup,
            store,
            load: Load {
                average: 1.25,
                others: 0.5,
            },
            figures: vec![Figure {
                what: "leads".to_owned(),
                unit: Unit::Milliseconds,
                samples: samples.into_iter().collect(),
            }],
        }
    }

    fn report() -> Report {
        Report {
            host: Host::default(),
            command: "cargo xtask bench".to_owned(),
            measurements: vec![
                measurement(StoreKind::Embedded, [3.0, 1.0, 2.0]),
                measurement(StoreKind::Etcd, [30.0, 10.0, 20.0]),
            ],
            failures: vec!["memory on etcd: it has no server".to_owned()],
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_store_with_its_numbers() {
        let text = report().to_markdown();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.starts_with("| leads"))
            .map(|line| line.split('|').map(str::trim).collect())
            .collect();
        let embedded = [
            "leads", "embedded", "ms", "3", "1.00", "2.00", "3.00", "3.00",
        ];
        assert_eq!(rows[0][1..9], embedded);
        assert_eq!(
            rows[1][2..9],
            ["etcd", "ms", "3", "10.0", "20.0", "30.0", "30.0"]
        );
        assert_eq!(rows[0][9], "1.2 / 0.5");
        assert!(
            text.contains("## Not measured\n\n- memory on etcd"),
            "{text}"
        );
    }

    #[test]
    fn the_columns_of_a_table_line_up() {
        let text = report().to_markdown();
        let lengths: Vec<usize> = text
            .lines()
            .filter(|line| line.starts_with('|'))
            .map(|line| line.chars().count())
            .collect();
        assert!(lengths.iter().all(|length| *length == lengths[0]), "{text}");
    }

    #[test]
    fn the_csv_file_of_a_benchmark_is_named_by_day_and_has_plain_numbers() {
        let mut report = report();
        report.host.began = "2026-01-31 12:34 UTC".to_owned();
        report.measurements[1].figures[0].what = "5 \"large\", then leads".to_owned();
        report.measurements[1].figures[0].push(12_345.0);
        let files = report.to_csv();
        let [(name, text)] = &files[..] else {
            panic!("one benchmark was run: {files:?}");
        };
        assert_eq!(name, "2026-01-31-startup.csv");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "\"leads\",embedded,ms,3,1.00,2.00,3.00,3.00,1.2,0.5"
        );
        let other = "\"5 \"\"large\"\", then leads\",etcd,ms,4,10.0,25.0,12345,12345,1.2,0.5";
        assert_eq!(lines[2], other);
    }

    #[test]
    fn the_json_has_every_sample() {
        let json = report().to_json();
        let figure = &json["measurements"][1]["figures"][0];
        assert_eq!(figure["samples"], json!([30.0, 10.0, 20.0]));
        assert_eq!(figure["median"], json!(20.0));
        assert_eq!(json["measurements"][1]["store"], "etcd");
    }
}

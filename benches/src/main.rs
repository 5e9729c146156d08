//! Runs benchmarks of the released `tanist` program. `cargo xtask bench` builds that and calls this.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Parser;
use tanist_bench::{BenchOptions, Benchmark};
use tanist_chaos::StoreKind;

/// Measures the released program and prints a table.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask bench", max_term_width = 100)]
struct Arguments {
    /// The program to measure
    // No environment variable: the program would take `TANIST_...` as an option.
    #[arg(long, hide = true)]
    program: PathBuf,
    /// Runs only these benchmarks
    #[arg(long, value_enum, num_args = 1.., value_name = "NAME")]
    only: Vec<Benchmark>,
    /// Runs only on these stores; default: all three
    #[arg(long, value_parser = store, num_args = 1.., value_name = "STORE")]
    store: Vec<StoreKind>,
    /// Writes every sample into this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes a file of figures for each benchmark into this folder
    #[arg(long, value_name = "FOLDER")]
    csv: Option<PathBuf>,
    /// Fewer repetitions and smaller inputs, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Minutes for which `busy` loads the machine; default: 30
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Measures only Tanist and Apache Flink in turns, on ZooKeeper; FOLDER contains Flink
    #[arg(
        long,
        value_name = "FOLDER",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ".tools/flink",
        conflicts_with_all = ["only", "store"]
    )]
    beside_flink: Option<PathBuf>,
    /// Numbers of jobs for `takeover` and `leader-memory`
    #[arg(long, num_args = 1.., value_name = "N")]
    jobs: Vec<usize>,
}

fn store(text: &str) -> Result<StoreKind, String> {
    let stores = [StoreKind::Embedded, StoreKind::Etcd, StoreKind::ZooKeeper];
    let found = stores.into_iter().find(|store| store.to_string() == text);
    found.ok_or_else(|| "`embedded`, `etcd` or `zookeeper`".to_owned())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Without `--program` and its value, which xtask adds.
    let words: Vec<String> = std::env::args().skip(3).collect();
    let arguments = Arguments::parse();
    let or_all = |stores: Vec<StoreKind>| match stores.is_empty() {
        true => vec![StoreKind::Embedded, StoreKind::Etcd, StoreKind::ZooKeeper],
        false => stores,
    };
    let (benchmarks, stores) = match (&arguments.beside_flink, arguments.only.is_empty()) {
        (Some(_), _) => (vec![Benchmark::BesideFlink], vec![StoreKind::ZooKeeper]),
        (None, true) => (Benchmark::by_default(), or_all(arguments.store)),
        (None, false) => (arguments.only, or_all(arguments.store)),
    };
    let options = BenchOptions {
        program: arguments.program.canonicalize()?,
        command: format!("cargo xtask bench {}", words.join(" "))
            .trim_end()
            .to_owned(),
        benchmarks,
        stores,
        flink: arguments.beside_flink,
        quick: arguments.quick,
        minutes: arguments.minutes,
        jobs: arguments.jobs,
    };
    let report = tanist_bench::run(&options).await?;
    print!("{}", report.to_markdown());
    if let Some(path) = arguments.json {
        let text = serde_json::to_string_pretty(&report.to_json())?;
        write(&path, &(text + "\n"))?;
    }
    if let Some(folder) = arguments.csv {
        for (name, text) in report.to_csv() {
            write(&folder.join(name), &text)?;
        }
    }
    anyhow::ensure!(
        report.failures.is_empty(),
        "{} benchmarks failed",
        report.failures.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn benchmarks_and_stores_are_named() {
        let parsed = Arguments::parse_from([
            "x",
            "--program",
            "p",
            "--only",
            "startup",
            "keyed-count",
            "--store",
            "etcd",
        ]);
        assert_eq!(parsed.only, [Benchmark::Startup, Benchmark::KeyedCount]);
        assert_eq!(parsed.store, [StoreKind::Etcd]);
        assert!(Arguments::try_parse_from(["x", "--program", "p", "--store", "paper"]).is_err());
    }

    #[test]
    fn flink_is_where_set_up_puts_it_unless_somebody_says_otherwise() {
        let parse = |word| Arguments::parse_from(["x", "--program", "p", word]).beside_flink;
        assert_eq!(parse("--beside-flink"), Some(".tools/flink".into()));
        assert_eq!(parse("--beside-flink=/opt/f"), Some("/opt/f".into()));
        assert_eq!(parse("--quick"), None);
    }
}

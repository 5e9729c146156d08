//! A leader that becomes unreachable. This needs a network of its own, so the program runs itself once
//! more in such a network and reads the results of that run.

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::network::{is_inside, run_self_inside};
use tanist_chaos::store::StoreKind;

use crate::report::Figure;
use crate::samples::Unit;
use crate::{BenchOptions, Benchmark, failover};

pub(super) const METHOD: &str = "As *Failover*, but each process has its own host (a network namespace). At \
some moment the leader's host stops sending and receiving, also to and from the store's server (the embedded \
store has none). After the takeover the leader's process is killed and started again, as after the loss of a \
host.";

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let name = Benchmark::Unreachable.name();
    if is_inside(&name) {
        return failover::measure_unreachable(store, options).await;
    }
    let directory = tempfile::tempdir()?;
    let measured = directory.path().join("measured.json");
    let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let mut arguments = vec!["--program".to_owned(), path(&options.program)];
    arguments.extend(["--only".to_owned(), name.clone()]);
    arguments.extend(["--store".to_owned(), store.to_string()]);
    arguments.extend(["--json".to_owned(), path(&measured)]);
    arguments.extend(options.quick.then(|| "--quick".to_owned()));
    let inside = move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        run_self_inside(&name, &arguments)
    };
    let output = tokio::task::spawn_blocking(inside).await??;
    ensure!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let measured: Value = serde_json::from_slice(&std::fs::read(&measured)?)?;
    let figures = measured["measurements"][0]["figures"].as_array();
    figures.context("no figures")?.iter().map(figure).collect()
}

fn figure(told: &Value) -> anyhow::Result<Figure> {
    let what = told["what"].as_str().context("a figure of nothing")?;
    let mut figure = Figure::new(what, Unit::Milliseconds);
    ensure!(told["unit"] == figure.unit.to_string(), "{told}");
    for sample in told["samples"].as_array().context("no samples")? {
        figure.push(sample.as_f64().context("no number")?);
    }
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_figure_is_read_as_it_was_told() -> anyhow::Result<()> {
        let read = figure(&json!({"what": "a", "unit": "ms", "samples": [1.5, 2]}))?;
        assert_eq!(
            (read.what.as_str(), read.samples.all()),
            ("a", &[1.5, 2.0][..])
        );
        assert!(figure(&json!({"what": "a", "unit": "MiB", "samples": []})).is_err());
        Ok(())
    }
}

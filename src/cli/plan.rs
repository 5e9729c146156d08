//! `tanist plan`: the plan of a job file, without a cluster: steps and their columns, the steps of each
//! vertex, the exchanges between vertices, and the number of slots needed.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tanist_config::Configuration;
use tanist_model::slots_needed;
use tanist_proto::v1::{
    Column, ColumnType, Exchange, JobEdge, JobGraph, JobVertex, Operator, Partitioning,
};
use tanist_telemetry::ExitCode;

use super::args::{JobArgs, OutputFormat};
use super::output::{Table, answer, answer_json, fail};
use super::run::{Files, compile_job};

pub(super) fn plan(
    configuration: &Configuration,
    args: &JobArgs,
    output: OutputFormat,
) -> ExitCode {
    match compile_job(configuration, args, None, Files::Uploaded) {
        Ok(graph) => {
            match output {
                OutputFormat::Table => answer(text(&graph)),
                OutputFormat::Json => answer_json(&body(&graph)),
            }
            ExitCode::Ended
        }
        Err(error) => {
            fail(error);
            ExitCode::InvalidJob
        }
    }
}

fn type_name(column: &Column) -> &'static str {
    match column.r#type() {
        ColumnType::Unspecified => "unknown",
        ColumnType::String => "string",
        ColumnType::Int64 => "int64",
        ColumnType::Float64 => "float64",
        ColumnType::Bool => "bool",
        ColumnType::Timestamp => "timestamp",
    }
}

fn partitioning(edge: &JobEdge) -> &'static str {
    match edge.partitioning() {
        Partitioning::Unspecified => "unknown",
        Partitioning::Forward => "forward",
        Partitioning::Hash => "hash",
        Partitioning::Rebalance => "rebalance",
        Partitioning::Broadcast => "broadcast",
        Partitioning::Global => "global",
    }
}

fn exchange(edge: &JobEdge) -> &'static str {
    match edge.exchange() {
        Exchange::Pipelined => "pipelined",
        Exchange::Blocking => "blocking",
    }
}

/// The operator's name in a job file.
fn operator(step: &Operator) -> String {
    let spec: Value = serde_json::from_str(&step.spec).unwrap_or_default();
    spec["type"].as_str().unwrap_or_default().to_owned()
}

fn body(graph: &JobGraph) -> Value {
    let column = |column: &Column| json!({"name": column.name, "type": type_name(column), "nullable": column.nullable});
    let step = |step: &Operator| {
        let columns: Vec<Value> = step.output.iter().map(column).collect();
        json!({"name": step.name, "operator": operator(step), "columns": columns})
    };
    let vertex = |vertex: &JobVertex| {
        let steps: Vec<Value> = vertex.operators.iter().map(step).collect();
        json!({
            "id": vertex.id, "name": vertex.name, "parallelism": vertex.parallelism,
            "max-parallelism": vertex.max_parallelism,
            "slot-sharing-group": vertex.slot_sharing_group, "steps": steps
        })
    };
    let edge = |edge: &JobEdge| {
        json!({
            "source": edge.source, "target": edge.target, "partitioning": partitioning(edge),
            "key-columns": edge.key_columns, "exchange": exchange(edge)
        })
    };
    json!({
        "name": graph.name,
        "slots-needed": slots_needed(graph),
        "vertices": graph.vertices.iter().map(vertex).collect::<Vec<_>>(),
        "edges": graph.edges.iter().map(edge).collect::<Vec<_>>(),
    })
}

/// Vertices are numbered, because their names consist of the names of all their steps.
fn text(graph: &JobGraph) -> String {
    let mut table = Table::new(["VERTEX", "TASKS", "STEP", "OPERATOR", "COLUMNS"]);
    for (number, vertex) in (1..).zip(&graph.vertices) {
        for (nth, step) in vertex.operators.iter().enumerate() {
            let is_first = nth == 0;
            let of_vertex = |value: String| if is_first { value } else { String::new() };
            let columns = step.output.iter().map(|column| {
                let optional = if column.nullable { "?" } else { "" };
                format!("{}: {}{optional}", column.name, type_name(column))
            });
            table.row([
                of_vertex(number.to_string()),
                of_vertex(vertex.parallelism.to_string()),
                step.name.clone(),
                operator(step),
                columns.collect::<Vec<_>>().join(", "),
            ]);
        }
    }
    let number_of = |id: &str| {
        let place = graph.vertices.iter().position(|vertex| vertex.id == id);
        place.map_or_else(String::new, |place| (place + 1).to_string())
    };
    let mut edges = Table::new(["FROM", "TO", "PARTITIONING", "EXCHANGE"]);
    for edge in &graph.edges {
        let by = match edge.key_columns.is_empty() {
            true => String::new(),
            false => format!(" by {}", edge.key_columns.join(", ")),
        };
        edges.row([
            number_of(&edge.source),
            number_of(&edge.target),
            format!("{}{by}", partitioning(edge)),
            exchange(edge).to_owned(),
        ]);
    }
    let mut text = String::new();
    let slots = slots_needed(graph);
    write!(text, "Job    {}\nSlots  {slots}\n\n{table}", graph.name)
        .expect("writing to a string succeeds");
    if !graph.edges.is_empty() {
        write!(text, "\n{edges}").expect("writing to a string succeeds");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tanist_client::Job;
    use tanist_compile::JobFile;

    const FILE: &str = "version: 1\nname: count\nparallelism: 2\nsteps:\n  - name: lines\n    file-source: { paths: /in.txt }\n  \
         - name: words\n    split-words: { column: line }\n  - name: by-word\n    key-by: { columns: [word] }\n  \
         - name: counts\n    count: {}\n  - name: out\n    discard: {}\n";

    fn graph() -> JobGraph {
        let file = JobFile::new("count.yaml".to_owned(), FILE.to_owned());
        let compiled = Job::file(file).compile(&Configuration::defaults());
        compiled.expect("it is valid")
    }

    #[test]
    fn people_see_steps_with_columns_the_vertices_they_form_and_how_those_are_connected() {
        let expected = "\
Job    count
Slots  2

VERTEX  TASKS  STEP    OPERATOR     COLUMNS
1       2      lines   file-source  line: string
               words   split-words  word: string
2       2      counts  count        word: string, count: int64
               out     discard

FROM  TO  PARTITIONING  EXCHANGE
1     2   hash by word  pipelined
";
        assert_eq!(text(&graph()), expected);
    }

    #[test]
    fn programs_get_the_same_with_ids() {
        let graph = graph();
        let body = body(&graph);
        assert_eq!(body["slots-needed"], 2);
        assert_eq!(body["vertices"][0]["steps"][1]["operator"], "split-words");
        let column = json!({"name": "count", "type": "int64", "nullable": false});
        assert_eq!(body["vertices"][1]["steps"][0]["columns"][1], column);
        assert_eq!(body["edges"][0]["source"], body["vertices"][0]["id"]);
        assert_eq!(body["edges"][0]["key-columns"], json!(["word"]));
    }

    #[test]
    fn a_wrong_job_file_is_refused_as_by_run() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("job.yaml");
        std::fs::write(&file, FILE.replace("count: {}", "cuont: {}")).expect("written");
        let args = JobArgs {
            file,
            parameters: Vec::new(),
            parallelism: None,
        };
        let code = plan(&Configuration::defaults(), &args, OutputFormat::Table);
        assert_eq!(code, ExitCode::InvalidJob);
    }
}

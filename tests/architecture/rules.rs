//! The rules, each a function from a file's path and text to complaints, with bad text to test it.

use crate::paths::{NamedPath, named_paths};

/// The layers of `src/`, lowest first. A module uses only modules of lower layers.
const LAYERS: [&[&str]; 11] = [
    &[
        "job",
        "config",
        "telemetry",
        "compact",
        "property_tests",
        "umask",
    ],
    &["net"],
    &["dataflow"],
    &["gateway"],
    &[
        "dispatcher",
        "resource_manager",
        "job_master",
        "task_executor",
    ],
    &["rpc"],
    &["process"],
    &["rest", "client"],
    &["cli"],
    &["application"],
    &["testing"],
];

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// Uses in `path`, a file in `src/`, that violate the layers.
pub fn layers(path: &str, text: &str) -> Vec<String> {
    let module = module_of(path);
    let Some(own) = module.first() else {
        // lib.rs and main.rs may use everything.
        return Vec::new();
    };
    let Some(own_layer) = layer(own) else {
        return vec![format!(
            "{path}: the module `{own}` has no layer: give it one in {}",
            file!()
        )];
    };
    let complain = |named: NamedPath| {
        let ours = matches!(named.segments[0].as_str(), "crate" | "tanist");
        let other = named
            .segments
            .get(1)
            .filter(|other| ours && *other != own)?;
        let other_layer = layer(other)?;
        let reason = if other_layer == own_layer {
            "neighbours in a layer meet through a lower one"
        } else if other_layer > own_layer {
            "a layer uses only those below it"
        } else {
            return None;
        };
        Some(format!(
            "{path}:{}: `{own}` uses `{other}`: {reason}",
            named.line
        ))
    };
    named_paths(text, &module)
        .into_iter()
        .filter_map(complain)
        .collect()
}

/// The module of a file in `src/`: for `src/rpc/server.rs` it is `rpc::server`.
fn module_of(path: &str) -> Vec<String> {
    let inner = path
        .strip_prefix("src/")
        .unwrap_or(path)
        .trim_end_matches(".rs");
    let mut module: Vec<String> = inner.split('/').map(str::to_owned).collect();
    if matches!(
        module.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        module.pop();
    }
    module
}

/// Places where `text` names one of `crates`.
pub fn names_none_of(path: &str, text: &str, crates: &[&str]) -> Vec<String> {
    let complain = |named: NamedPath| {
        let first = &named.segments[0];
        crates
            .contains(&first.as_str())
            .then(|| format!("{path}:{}: names `{first}`", named.line))
    };
    named_paths(text, &[])
        .into_iter()
        .filter_map(complain)
        .collect()
}

/// Names of types and functions that open, bind or accept a network socket.
const SOCKETS: [&str; 8] = [
    "TcpListener",
    "TcpStream",
    "TcpSocket",
    "TcpIncoming",
    "UdpSocket",
    "UnixListener",
    "UnixDatagram",
    "HttpConnector",
];
/// Calls that do the same.
const OPENING: [&str; 5] = [
    ".build_http(",
    ".connect_lazy(",
    "endpoint.connect(",
    ".serve_with_incoming",
    "axum::serve(",
];

/// Places where `text`, without the tests at its end, opens a socket itself; only `src/net` may do that.
pub fn opens_no_socket(path: &str, text: &str) -> Vec<String> {
    let tests = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    let text = &text[..tests];
    let named = named_paths(text, &[]).into_iter().filter_map(|named| {
        let is_nets = named.segments.iter().any(|segment| segment == "net")
            && matches!(named.segments[0].as_str(), "crate" | "net");
        let socket = named
            .segments
            .iter()
            .find(|segment| SOCKETS.contains(&segment.as_str()) && !is_nets)?;
        Some(format!("{path}:{}: names `{socket}`", named.line))
    });
    let called = OPENING.iter().filter(|call| text.contains(**call));
    let called = called.map(|call| format!("{path}: calls `{call}`"));
    named.chain(called).collect()
}

/// A complaint if `text` doesn't open with `//!` and a sentence.
pub fn opening(path: &str, text: &str) -> Vec<String> {
    let first = text.lines().next().unwrap_or_default();
    let says = first
        .strip_prefix("//!")
        .is_some_and(|rest| rest.trim().len() > 10);
    if says {
        Vec::new()
    } else {
        vec![format!("{path}: must open with `//!` and what the file is")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_to_a_higher_layer_is_reported_with_its_place() {
        let complaints = layers(
            "src/rpc/server.rs",
            "//! x\nuse std::fmt;\nuse crate::process::X;\n",
        );
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(
            complaints[0].starts_with("src/rpc/server.rs:3: `rpc` uses `process`"),
            "{complaints:?}"
        );
        assert_eq!(
            layers("src/config/mod.rs", "fn f() { crate::rpc::g() }").len(),
            1
        );
        assert_eq!(
            layers("src/gateway.rs", "use crate::{job::A, cli::{B, C}};").len(),
            2
        );
        assert_eq!(
            layers("src/job/a/b.rs", "use super::super::super::rest::A;").len(),
            1
        );
        assert_eq!(
            layers("src/dataflow/mod.rs", "use tanist::gateway::A;").len(),
            1
        );
    }

    #[test]
    fn neighbours_in_a_layer_are_reported() {
        assert_eq!(
            layers("src/telemetry/mod.rs", "use crate::config::X;").len(),
            1
        );
        assert_eq!(
            layers("src/job_master/core.rs", "use crate::dispatcher::X;").len(),
            1
        );
        assert_eq!(
            layers("src/client/mod.rs", "mod t { fn f() { crate::rest::g() } }").len(),
            1
        );
    }

    #[test]
    fn no_component_may_use_rpc() {
        let text = "use crate::rpc::X;";
        assert_eq!(layers("src/dispatcher/actor.rs", text).len(), 1);
        assert_eq!(layers("src/process/mod.rs", text), [""; 0]);
    }

    #[test]
    fn edges_to_lower_layers_and_to_itself_are_fine() {
        let text = "use crate::job::X; use super::core; use crate::rest::Y; use tanist_ha::keys; use crate::gateway::Z;";
        assert_eq!(layers("src/rest/mod.rs", text), [""; 0]);
        assert_eq!(layers("src/main.rs", "use tanist::cli;"), [""; 0]);
    }

    #[test]
    fn a_module_without_a_layer_is_reported() {
        assert!(layers("src/utils/mod.rs", "")[0].contains("no layer"));
    }

    #[test]
    fn a_foreign_crate_is_reported_and_a_similar_name_is_not() {
        let crates = ["tanist", "tanist_proto"];
        assert_eq!(
            names_none_of("ha/src/a.rs", "use tanist_proto::X;", &crates).len(),
            1
        );
        assert_eq!(
            names_none_of("ha/src/a.rs", "fn f() -> tanist::X {}", &crates).len(),
            1
        );
        assert_eq!(
            names_none_of("ha/src/a.rs", "use {std::fmt, tanist::X};", &crates).len(),
            1
        );
        assert_eq!(
            names_none_of("ha/src/a.rs", "use tanist_ha::X; // tanist::Y", &crates),
            [""; 0]
        );
        let backoff = ["backoff"];
        assert_eq!(
            names_none_of("src/a.rs", "backoff::ExponentialBackoff::x()", &backoff).len(),
            1
        );
        assert_eq!(
            names_none_of(
                "src/a.rs",
                "let backoff = crate::retry::backoff::x();",
                &backoff
            ),
            [""; 0]
        );
    }

    #[test]
    fn a_socket_that_is_opened_outside_of_net_is_reported() {
        for bad in [
            "use tokio::net::{TcpListener, lookup_host};",
            "async fn f() { tokio::net::TcpStream::connect(a).await }",
            "use std::net::UdpSocket;",
            "use hyper_util::client::legacy::connect::HttpConnector;",
            "async fn f() { endpoint.connect().await }",
            "async fn f() { axum::serve(listener, router).await }",
        ] {
            assert_eq!(opens_no_socket("src/a.rs", bad).len(), 1, "{bad}");
        }
        for good in [
            "use tokio::net::lookup_host; use std::os::unix::net::UnixStream;",
            "use crate::net::{self, HttpConnector, Listener};",
            "fn f() {}\n#[cfg(test)]\nmod tests { use tokio::net::TcpStream; }",
        ] {
            assert_eq!(opens_no_socket("src/a.rs", good), [""; 0], "{good}");
        }
    }

    #[test]
    fn a_file_that_does_not_say_what_it_is_is_reported() {
        assert_eq!(opening("a.rs", "use std::fmt;").len(), 1);
        assert_eq!(opening("a.rs", "//! x\n").len(), 1);
        assert_eq!(opening("a.rs", "").len(), 1);
        assert_eq!(
            opening("a.rs", "//! The loop of the Dispatcher.\n"),
            [""; 0]
        );
    }
}

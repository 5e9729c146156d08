//! The rules, each a function from a file's path and text to complaints, with bad text to test it.

use crate::paths::{NamedPath, named_paths};

/// Places where `text` names one of `crates`.
pub(crate) fn names_none_of(path: &str, text: &str, crates: &[&str]) -> Vec<String> {
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

/// `text` up to its module of tests. A module of tests in a file of its own, `mod tests;`, ends nothing.
fn without_tests(text: &str) -> &str {
    const TESTS: &str = "#[cfg(test)]\nmod ";
    let mut modules = text.match_indices(TESTS);
    let opened = modules.find(|(at, _)| {
        let rest = text[at + TESTS.len()..].lines().next();
        rest.is_some_and(|rest| rest.contains('{'))
    });
    opened.map_or(text, |(at, _)| &text[..at])
}

/// Places where `text`, without the tests at its end, opens a socket itself; only `src/net` may do that.
pub(crate) fn opens_no_socket(path: &str, text: &str) -> Vec<String> {
    let text = without_tests(text);
    let named = named_paths(text, &[]).into_iter().filter_map(|named| {
        let is_nets = matches!(named.segments[0].as_str(), "tanist_net" | "net");
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

/// Places where `text`, without the tests at its end, names a variant of `OperatorSpec`.
pub(crate) fn names_no_operator(path: &str, text: &str) -> Vec<String> {
    let lines = without_tests(text).lines().zip(1..);
    let named = lines.flat_map(|(line, number)| {
        let after = line.split("OperatorSpec::").skip(1);
        let variants = after.filter(|rest| rest.starts_with(char::is_uppercase));
        variants.map(move |rest| {
            let variant = rest.split(|it: char| !it.is_alphanumeric()).next();
            format!("{path}:{number}: names `{}`", variant.unwrap_or_default())
        })
    });
    named.collect()
}

/// A complaint if `text` doesn't open with `//!` and a sentence.
pub(crate) fn opening(path: &str, text: &str) -> Vec<String> {
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
    fn a_variant_of_the_specification_is_reported_and_a_function_is_not() {
        let bad = "use x;\nmatch it { OperatorSpec::Map(map) => 1, OperatorSpec::Sum { .. } => 2 }";
        assert_eq!(
            names_no_operator("src/a.rs", bad),
            ["src/a.rs:2: names `Map`", "src/a.rs:2: names `Sum`"]
        );
        let good =
            "OperatorSpec::from_json(text)\n#[cfg(test)]\nmod tests {\n    OperatorSpec::Map(x)\n}";
        assert!(names_no_operator("src/a.rs", good).is_empty());
        let after = "#[cfg(test)]\nmod tests;\nmod x;\n\nOperatorSpec::Map(x)\n#[cfg(test)]\nmod b {\n    OperatorSpec::Sum(x)\n}";
        assert_eq!(
            names_no_operator("src/a.rs", after),
            ["src/a.rs:5: names `Map`"]
        );
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
            "#[cfg(test)]\nmod tests;\nuse tokio::net::TcpListener;",
        ] {
            assert_eq!(opens_no_socket("src/a.rs", bad).len(), 1, "{bad}");
        }
        for good in [
            "use tokio::net::lookup_host; use std::os::unix::net::UnixStream;",
            "use tanist_net::{self as net, HttpConnector, Listener};",
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

//! Tests of [`super`]: requests of browsers on behalf of other sites, and requests of clients.

use tanist_config::{Configuration, LoadOptions};

use super::*;

/// Options of a server that is reached as `jm-1`, and behind a proxy as `flink.example.com`.
fn options() -> RestServerOptions {
    let load = LoadOptions::default().with("rest.allowed-hosts", "flink.example.com,*.svc");
    let configuration = Configuration::load(load).expect("valid");
    let mut options = RestServerOptions {
        allowed_hosts: configuration.rest().allowed_hosts.clone(),
        ..RestServerOptions::default()
    };
    options.own_hosts.allow("jm-1");
    options
}

fn status(method: Method, uri: &str, headers: &[(&str, &str)]) -> u16 {
    let mut request = axum::http::Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(()).expect("a request");
    check_request(&request, &options()).map_or_else(|error| error.status.as_u16(), |()| 200)
}

#[test]
fn hosts_of_this_server_are_served_and_others_are_not() {
    let read = |host: &str| status(Method::GET, "/v1/jobs", &[("host", host)]);
    for own in [
        "localhost",
        "localhost:8081",
        "LocalHost.:1",
        "app.localhost",
        "127.0.0.1:8081",
        "127.8.9.10",
        "[::1]:8081",
        "[::ffff:127.0.0.1]:8081",
        "jm-1:8081",
        "JM-1",
        "flink.example.com",
        "tanist.default.svc:8081",
    ] {
        assert_eq!(read(own), 200, "{own}");
    }
    for foreign in [
        "evil.example",
        "evil.example:8081",
        "localhost.evil.example",
        "evil-localhost",
        "jm-1.evil.example",
        "127.0.0.1.evil.example",
        "192.0.2.1:8081",
        "0.0.0.0:8081",
        "svc",
        "",
        "a b",
    ] {
        assert_eq!(read(foreign), 421, "{foreign}");
    }
    // Browsers always send it.
    assert_eq!(status(Method::GET, "/v1/jobs", &[]), 200);
    let two = [("host", "localhost"), ("host", "evil.example")];
    assert_eq!(status(Method::GET, "/v1/jobs", &two), 421);
    let own = [("host", "localhost")];
    assert_eq!(
        status(Method::GET, "http://evil.example/v1/jobs", &own),
        421
    );
}

#[test]
fn a_page_of_another_origin_changes_nothing() {
    let write = |headers: &[(&str, &str)]| {
        let host = [("host", "localhost:8081")];
        status(Method::POST, "/v1/ha/transfer", &[&host, headers].concat())
    };
    for own in [
        &[][..],
        &[("origin", "http://localhost:8081")],
        &[
            ("origin", "http://LOCALHOST:8081"),
            ("sec-fetch-site", "same-origin"),
        ],
        &[("origin", "https://flink.example.com")],
        &[("sec-fetch-site", "none")],
    ] {
        assert_eq!(write(own), 200, "{own:?}");
    }
    for foreign in [
        ("origin", "http://evil.example"),
        ("origin", "http://localhost:3000"),
        ("origin", "https://localhost"),
        ("origin", "http://localhost:8081.evil.example"),
        ("origin", "http://127.0.0.1:8081"),
        ("origin", "null"),
        ("origin", ""),
        ("origin", "file://"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("sec-fetch-site", ""),
    ] {
        assert_eq!(write(&[foreign]), 403, "{foreign:?}");
    }
    let mixed = [
        ("origin", "http://localhost:8081"),
        ("sec-fetch-site", "cross-site"),
    ];
    assert_eq!(write(&mixed), 403);
}

#[test]
fn every_method_that_may_change_something_is_judged_and_reads_are_not() {
    let foreign = [
        ("host", "localhost"),
        ("origin", "http://evil.example"),
        ("sec-fetch-site", "cross-site"),
    ];
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        assert_eq!(
            status(method.clone(), "/v1/jobs", &foreign),
            403,
            "{method}"
        );
    }
    for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
        assert_eq!(
            status(method.clone(), "/v1/jobs", &foreign),
            200,
            "{method}"
        );
    }
}

#[test]
fn a_port_that_is_left_away_is_that_of_the_origins_scheme() {
    let ask = |host: &str, origin: &str| {
        let headers = [("host", host), ("origin", origin)];
        status(Method::POST, "/v1/jobs", &headers)
    };
    assert_eq!(ask("localhost", "http://localhost:80"), 200);
    assert_eq!(ask("jm-1", "https://jm-1"), 200);
    assert_eq!(ask("jm-1:443", "https://jm-1"), 200);
    assert_eq!(ask("jm-1:8081", "https://jm-1"), 403);
}

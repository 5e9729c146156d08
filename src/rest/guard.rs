//! Refuses requests that a browser sends on behalf of another site: from a page of that site (403), or by a name that
//! the site resolves to this host (421).
//!
//! A browser lets any page send requests to any address, but adds headers that identify the page. `Host` is the
//! name by which the page reached this server: if a foreign name resolves here (DNS rebinding), the page could read
//! the answers. `Origin` and `Sec-Fetch-Site` show a page of another origin: it can't read answers, but its writes
//! would take effect. Programs send neither.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::uri::{Authority, Uri};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tanist_net::is_own;

use super::ask::Context;
use super::error::RestError;
use super::server::RestServerOptions;

const SEC_FETCH_SITE: &str = "sec-fetch-site";
const LOCALHOST: &str = "localhost";

/// See the module.
pub(super) async fn check(
    State(context): State<Context>,
    request: Request,
    next: Next,
) -> Response {
    match check_request(&request, &context.options) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn check_request<B>(
    request: &axum::http::Request<B>,
    options: &RestServerOptions,
) -> Result<(), RestError> {
    let headers = request.headers();
    for host in headers.get_all(header::HOST) {
        let text = host.to_str().unwrap_or_default();
        let host: Option<Authority> = text.parse().ok();
        let host = host.filter(|host| is_served(host, options));
        host.ok_or_else(|| foreign_host(text))?;
    }
    if let Some(host) = request.uri().authority()
        && !is_served(host, options)
    {
        return Err(foreign_host(host.as_str()));
    }
    let is_read = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    if is_read {
        Ok(())
    } else {
        check_origin(headers, options)
    }
}

/// Whether requests for that host are for this server.
fn is_served(host: &Authority, options: &RestServerOptions) -> bool {
    let name = name_of(host);
    let is_own_address = |ip: IpAddr| is_own(ip.to_canonical());
    name == LOCALHOST
        || name.ends_with(".localhost")
        || options.own_hosts.contains(&name)
        || options.allowed_hosts.contains(&name)
        || name.parse().is_ok_and(is_own_address)
}

/// The host without port, brackets and the dot at its end, in lower case.
fn name_of(authority: &Authority) -> String {
    let name = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']');
    let name = name.strip_suffix('.').unwrap_or(name);
    name.to_ascii_lowercase()
}

fn foreign_host(host: &str) -> RestError {
    let host = host.escape_default();
    RestError::new(
        StatusCode::MISDIRECTED_REQUEST,
        format!(
            "this server is not \"{host}\": if it is reached by that name, add the name to rest.allowed-hosts"
        ),
    )
}

fn check_origin(headers: &HeaderMap, options: &RestServerOptions) -> Result<(), RestError> {
    let foreign = |what: String| {
        let text = format!("a page of another site may change nothing here: {what}");
        Err(RestError::new(StatusCode::FORBIDDEN, text))
    };
    for site in headers.get_all(SEC_FETCH_SITE) {
        if !matches!(site.as_bytes(), b"same-origin" | b"none") {
            let site = String::from_utf8_lossy(site.as_bytes());
            return foreign(format!("Sec-Fetch-Site is \"{}\"", site.escape_default()));
        }
    }
    for origin in headers.get_all(header::ORIGIN) {
        let text = origin.to_str().unwrap_or_default();
        if !is_own_origin(text, headers, options) {
            return foreign(format!("Origin is \"{}\"", text.escape_default()));
        }
    }
    Ok(())
}

/// Whether a page of that origin came from this server: by the requested host, or by a configured one.
fn is_own_origin(origin: &str, headers: &HeaderMap, options: &RestServerOptions) -> bool {
    let Ok(origin) = origin.parse::<Uri>() else {
        return false;
    };
    let (Some(scheme), Some(authority)) = (origin.scheme_str(), origin.authority()) else {
        return false;
    };
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let whole = |authority: &Authority| (name_of(authority), authority.port_u16().unwrap_or(usual));
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let host: Option<Authority> = host.and_then(|host| host.parse().ok());
    host.is_some_and(|host| whole(&host) == whole(authority))
        || options.allowed_hosts.contains(&name_of(authority))
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;

//! The server's answers to requests: the operations, and errors as S3's XML.

use std::convert::Infallible;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, LAST_MODIFIED, RANGE};
use hyper::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::signature::{self, hex};
use super::{BUCKET, BucketState, Conduct, Credentials, Object, PUBLIC, put};

/// Keys in a page: few, so that tests have several pages.
const PAGE: usize = 3;

type Body = BoxBody<Bytes, std::io::Error>;

/// The refusal of a request: status and code.
type Refusal = (StatusCode, &'static str);

/// Answers one request. An error ends the connection.
pub(super) async fn answer(
    request: Request<Incoming>,
    state: &Mutex<BucketState>,
    credentials: &Credentials,
) -> Result<Response<Body>, std::io::Error> {
    let (head, body) = request.into_parts();
    let request = Request::from_parts(head, ());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (bucket, key) = path
        .trim_start_matches('/')
        .split_once('/')
        .unwrap_or((path.trim_start_matches('/'), ""));
    let conduct = {
        let mut state = state.lock();
        state.requests.push(format!("{method} {key}"));
        state.conduct
    };
    let body = body.collect().await.map_err(std::io::Error::other)?;
    let body = body.to_bytes();
    let is_signed = request.headers().contains_key(AUTHORIZATION);
    let is_public = !is_signed && method == Method::GET && key.starts_with(PUBLIC);
    if !is_public && let Err(code) = signature::check(&request, &body, credentials) {
        return Ok(refused((StatusCode::FORBIDDEN, code)));
    }
    match conduct {
        Conduct::Denies => return Ok(refused((StatusCode::FORBIDDEN, "AccessDenied"))),
        Conduct::NoBucket => return Ok(refused((StatusCode::NOT_FOUND, "NoSuchBucket"))),
        Conduct::Silent => std::future::pending::<()>().await,
        Conduct::Answers | Conduct::Cuts(_) => {}
    }
    if bucket != BUCKET {
        return Ok(refused((StatusCode::NOT_FOUND, "NoSuchBucket")));
    }
    let query = query(request.uri().query().unwrap_or_default());
    let mut state = state.lock();
    let answered = match (&method, key) {
        (&Method::GET, "") => Ok(list(&state, &query)),
        (&Method::POST, "") => Ok(delete_all(&mut state, &body)),
        (&Method::PUT, key) => {
            put(&mut state, key, body);
            Ok(written(&state.objects[key]))
        }
        (&Method::DELETE, key) => {
            state.objects.remove(key);
            Ok(answered(StatusCode::NO_CONTENT, Bytes::new()))
        }
        (&Method::GET | &Method::HEAD, key) => match state.objects.get(key) {
            Some(object) => Ok(read(&request, object, conduct)),
            None => Err((StatusCode::NOT_FOUND, "NoSuchKey")),
        },
        _ => Err((StatusCode::NOT_IMPLEMENTED, "NotImplemented")),
    };
    Ok(answered.unwrap_or_else(refused))
}

fn query(text: &str) -> Vec<(String, String)> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .map(|(name, value)| (unescaped(name), unescaped(value)))
        .collect()
}

/// Decodes percent-encoded text.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|it| std::str::from_utf8(it).ok());
        match digits.and_then(|it| u8::from_str_radix(it, 16).ok()) {
            Some(decoded) if byte == b'%' => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn read(request: &Request<()>, object: &Object, conduct: Conduct) -> Response<Body> {
    let range = request.headers().get(RANGE);
    let range = range.and_then(|it| it.to_str().ok()?.strip_prefix("bytes="));
    let total = object.bytes.len();
    let (from, to) = match range.and_then(|it| it.split_once('-')) {
        Some((from, to)) => (
            from.parse().unwrap_or(0),
            to.parse().map_or(total, |last: usize| total.min(last + 1)),
        ),
        None => (0, total),
    };
    if from > to || (range.is_some() && from == to) {
        return refused((StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange"));
    }
    let bytes = object.bytes.slice(from..to);
    let mut response = written(object);
    response
        .headers_mut()
        .insert(CONTENT_LENGTH, bytes.len().into());
    if range.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let said = format!("bytes {from}-{}/{total}", to - 1);
        let said = said.parse().expect("digits are a header");
        response.headers_mut().insert(CONTENT_RANGE, said);
    }
    if request.method() == Method::GET {
        *response.body_mut() = match conduct {
            Conduct::Cuts(after) if after < bytes.len() => cut(bytes.slice(..after)),
            _ => whole(bytes),
        };
    }
    response
}

/// The headers of an object, without its content.
fn written(object: &Object) -> Response<Body> {
    let mut response = answered(StatusCode::OK, Bytes::new());
    let headers = response.headers_mut();
    let tag = format!("\"{}\"", hex(&Sha256::digest(&object.bytes)));
    headers.insert(ETAG, tag.parse().expect("hexadecimal digits are a header"));
    let date = DateTime::<Utc>::from(object.written).to_rfc2822();
    headers.insert(LAST_MODIFIED, date.parse().expect("a date is a header"));
    response
}

/// ListObjectsV2, in pages.
fn list(state: &BucketState, query: &[(String, String)]) -> Response<Body> {
    let parameter = |name: &str| {
        let found = query.iter().find(|(it, _)| it == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    let (prefix, delimiter) = (parameter("prefix"), parameter("delimiter"));
    let after = parameter("continuation-token").max(parameter("start-after"));
    let below = |key: &String| {
        let rest = key.strip_prefix(prefix).unwrap_or_default();
        !delimiter.is_empty() && rest.contains(delimiter)
    };
    let mut listed = state
        .objects
        .iter()
        .filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after && !below(key));
    let page: Vec<_> = listed.by_ref().take(PAGE).collect();
    let mut text = String::from("<?xml version=\"1.0\"?><ListBucketResult>");
    if let Some((last, _)) = page.last()
        && listed.next().is_some()
    {
        text.push_str(&format!(
            "<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>"
        ));
    }
    for (key, object) in page {
        let date = DateTime::<Utc>::from(object.written).to_rfc3339();
        let size = object.bytes.len();
        text.push_str(&format!(
            "<Contents><Key>{key}</Key><LastModified>{date}</LastModified><Size>{size}</Size></Contents>"
        ));
    }
    text.push_str("</ListBucketResult>");
    answered(StatusCode::OK, text.into())
}

/// DeleteObjects: the keys are in the body.
fn delete_all(state: &mut BucketState, body: &Bytes) -> Response<Body> {
    let text = String::from_utf8_lossy(body);
    let mut said = String::from("<?xml version=\"1.0\"?><DeleteResult>");
    for key in text.split("<Key>").skip(1) {
        let key = key.split("</Key>").next().unwrap_or_default();
        state.objects.remove(key);
        said.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
    }
    said.push_str("</DeleteResult>");
    answered(StatusCode::OK, said.into())
}

fn refused((status, code): Refusal) -> Response<Body> {
    let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    answered(status, text.into())
}

fn answered(status: StatusCode, body: Bytes) -> Response<Body> {
    let mut response = Response::new(whole(body));
    *response.status_mut() = status;
    response
}

fn whole(bytes: Bytes) -> Body {
    let never = |never: Infallible| match never {};
    Full::new(bytes).map_err(never).boxed()
}

/// A body of these bytes, after which the connection breaks.
fn cut(bytes: Bytes) -> Body {
    let sent = stream::once(std::future::ready(Ok(Frame::data(bytes))));
    let broken = stream::once(async {
        // The connection writes its pending data before it polls again.
        tokio::task::yield_now().await;
        Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))
    });
    let frames = futures::StreamExt::chain(sent, broken);
    BodyExt::boxed(StreamBody::new(frames))
}

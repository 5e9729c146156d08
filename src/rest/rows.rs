//! Bodies of `{"jobs": […]}`, serialized job by job.
//!
//! There may be very many jobs, and a list of them may be requested every second: such a body only needs memory
//! for a few of its rows at a time, not for all of them as rows and again as text.

use std::convert::Infallible;
use std::vec;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;
use tanist_proto::v1::JobDetails;

/// Number of rows that are serialized at once: some ten kilobytes.
const AT_ONCE: usize = 32;

/// The rows of some jobs.
#[derive(Debug)]
pub(super) struct Rows<F> {
    jobs: Vec<JobDetails>,
    row: F,
}

impl<F> Rows<F> {
    /// A row for each of `jobs`, in their order.
    pub(super) fn new(jobs: Vec<JobDetails>, row: F) -> Rows<F> {
        Rows { jobs, row }
    }
}

impl<F, R> IntoResponse for Rows<F>
where
    F: Fn(&JobDetails) -> R + Send + 'static,
    R: Serialize + 'static,
{
    fn into_response(self) -> Response {
        let body = Body::from_stream(stream::iter(texts(self).map(Ok::<_, Infallible>)));
        ([(CONTENT_TYPE, "application/json")], body).into_response()
    }
}

/// The next part of the body.
enum Place {
    Start,
    Middle,
    End,
}

/// The text of the body, piece by piece.
fn texts<F, R>(rows: Rows<F>) -> impl Iterator<Item = Bytes>
where
    F: Fn(&JobDetails) -> R,
    R: Serialize,
{
    let mut jobs: vec::IntoIter<JobDetails> = rows.jobs.into_iter();
    let mut place = Place::Start;
    std::iter::from_fn(move || {
        let mut text = match place {
            Place::Start => br#"{"jobs":["#.to_vec(),
            Place::Middle => Vec::new(),
            Place::End => return None,
        };
        let is_first = matches!(place, Place::Start);
        for (nth, job) in jobs.by_ref().take(AT_ONCE).enumerate() {
            if !is_first || nth > 0 {
                text.push(b',');
            }
            serde_json::to_writer(&mut text, &(rows.row)(&job))
                .expect("rows have named fields, and go to memory");
        }
        place = Place::Middle;
        if jobs.len() == 0 {
            text.extend_from_slice(b"]}");
            place = Place::End;
        }
        Some(Bytes::from(text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_rows_there_are_they_are_one_document() {
        for number in [0, 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE] {
            let jobs = (0..number).map(|nth| JobDetails {
                name: nth.to_string(),
                ..JobDetails::default()
            });
            let rows = Rows::new(jobs.collect(), |job: &JobDetails| job.name.clone());
            let pieces: Vec<Bytes> = texts(rows).collect();
            assert_eq!(pieces.len(), number.div_ceil(AT_ONCE).max(1));
            let told: serde_json::Value =
                serde_json::from_slice(&pieces.concat()).expect("a document");
            let names: Vec<String> = (0..number).map(|nth| nth.to_string()).collect();
            assert_eq!(told, serde_json::json!({ "jobs": names }));
        }
    }
}

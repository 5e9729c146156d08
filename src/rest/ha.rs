//! Handlers about high availability: who leads, who could, what became of earlier terms, and handing leadership over.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;
use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::{Epoch, LeaderInformation, ProcessId};

use super::ask::Context;
use super::error::RestError;
use super::extract::Parameters;
use super::json::ha::{HaStatusBody, LeaderBody, OwnStanding, role_name};
use super::json::history::HistoryBody;
use super::peers::FORWARDED;
use crate::process::Role;

/// How long the store is waited for before `/ha/status` answers without the members.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long another JobManager is waited for before `/ha/status` answers without its account.
const ACCOUNT_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) async fn status(State(context): State<Context>) -> Json<HaStatusBody> {
    let status = context.view.ha_status(STATUS_TIMEOUT).await;
    let own = OwnStanding::new(&status);
    let members = status.members.as_deref().unwrap_or_default();
    let others: Vec<_> = members
        .iter()
        .filter(|member| member.process != status.process)
        .cloned()
        .collect();
    let mut others = context
        .peers
        .standings(&others, ACCOUNT_TIMEOUT)
        .await
        .into_iter();
    let accounts = members.iter().map(|member| {
        if member.process == status.process {
            return Ok((own.clone(), 0));
        }
        let asked = others.next().expect("each other member was asked");
        asked.map(|standing| (standing.own, standing.clock_offset_ms))
    });
    let accounts = accounts.collect();
    Json(HaStatusBody::new(&status, accounts))
}

/// This process alone: what the others ask it.
pub(super) async fn own_standing(State(context): State<Context>) -> Json<OwnStanding> {
    Json(OwnStanding::new(
        &context.view.ha_status(Duration::ZERO).await,
    ))
}

/// How many terms are listed unless `limit` says otherwise.
const LISTED_TERMS: usize = 100;

/// The terms that are remembered. Any process reads them from the store.
pub(super) async fn history(
    State(context): State<Context>,
    parameters: Parameters,
) -> Result<Json<HistoryBody>, RestError> {
    let limit = parameters.get("limit")?.unwrap_or(LISTED_TERMS);
    let records = context.view.history(STATUS_TIMEOUT).await;
    let records =
        records.map_err(|error| RestError::new(StatusCode::SERVICE_UNAVAILABLE, error))?;
    Ok(Json(HistoryBody::new(&records, limit, wall_clock_ms())))
}

/// 200 on the process that leads and is confirmed, for load balancers; 503 elsewhere.
pub(super) async fn leader(State(context): State<Context>) -> Result<Json<LeaderBody>, RestError> {
    let (role, known) = (context.view.role(), context.view.leader().leader);
    let own = context.view.process();
    match known {
        Some(leader) if leader.process == own && role == Role::Leading => {
            Ok(Json(LeaderBody::from(&leader)))
        }
        known => {
            let elsewhere = match known.filter(|leader| leader.process != own) {
                Some(leader) => format!("{} leads", leader.process),
                None => "no leader is confirmed".to_owned(),
            };
            let role = role_name(role);
            Err(RestError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{own} does not lead ({role}); {elsewhere}"),
            ))
        }
    }
}

/// The body of a transfer; the query may say the same.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Transfer {
    /// Who is to lead; else the standby that is most current.
    to: Option<String>,
    /// The epoch whose leader is to hand over: with a younger one nothing has to be done any more, so that the request
    /// may be repeated.
    epoch: Option<u64>,
}

fn read_transfer(parameters: &Parameters, body: &[u8]) -> Result<Transfer, RestError> {
    let mut wanted = match body.trim_ascii() {
        b"" => Transfer::default(),
        body => serde_json::from_slice(body)
            .map_err(|error| RestError::bad_request(format!("the body: {error}")))?,
    };
    if let Some(to) = parameters.get("to")? {
        wanted.to = Some(to);
    }
    if let Some(epoch) = parameters.get("epoch")? {
        wanted.epoch = Some(epoch);
    }
    Ok(wanted)
}

/// Has the leader hand over. Answers who leads then.
pub(super) async fn transfer(
    State(context): State<Context>,
    headers: HeaderMap,
    parameters: Parameters,
    body: axum::body::Bytes,
) -> Result<Json<serde_json::Value>, RestError> {
    let wanted = read_transfer(&parameters, &body)?;
    let to = wanted.to.as_deref().map(ProcessId::new);
    let unavailable = |text: String| RestError::new(StatusCode::SERVICE_UNAVAILABLE, text);
    let patience = context.options.await_leader_timeout;
    let mut leaders = context.view.leaders();
    let known = leaders.wait_for(|view| view.leader.is_some());
    let known = tokio::time::timeout(patience, known).await;
    let known = known.ok().and_then(Result::ok);
    let known = known.and_then(|view| view.leader.clone());
    let known = known.ok_or_else(|| unavailable("no JobManager leads at present".to_owned()))?;
    let is_done = |leader: &LeaderInformation| {
        let passed = wanted
            .epoch
            .is_some_and(|epoch| leader.epoch > Epoch::new(epoch));
        to.as_ref().map_or(passed, |to| *to == leader.process)
    };
    if is_done(&known) {
        return Ok(Json(leader_value(&known)));
    }
    if known.process == context.view.process() {
        context.view.transfer(to.clone(), patience).await?;
    } else if headers.contains_key(FORWARDED) {
        return Err(unavailable(format!(
            "{} leads, not this process",
            known.process
        )));
    } else {
        return forward(&context, &known, &wanted, patience).await;
    }
    let followed = leaders.wait_for(|view| {
        let leader = view.leader.as_ref();
        leader.is_some_and(|leader| leader.epoch > known.epoch)
    });
    match tokio::time::timeout(patience, followed).await {
        Ok(Ok(view)) => match &view.leader {
            Some(leader) => Ok(Json(leader_value(leader))),
            None => Err(unavailable("the next leader is gone already".to_owned())),
        },
        _ => Err(unavailable(format!(
            "no other leader was confirmed within {patience:?}; {} may lead on",
            known.process
        ))),
    }
}

fn leader_value(leader: &LeaderInformation) -> serde_json::Value {
    serde_json::to_value(LeaderBody::from(leader)).expect("strings and numbers are JSON")
}

/// Only the leader can invite a successor.
async fn forward(
    context: &Context,
    leader: &LeaderInformation,
    wanted: &Transfer,
    patience: Duration,
) -> Result<Json<serde_json::Value>, RestError> {
    let unavailable = |text: String| RestError::new(StatusCode::SERVICE_UNAVAILABLE, text);
    let address = leader.addresses.get("rest");
    let address =
        address.ok_or_else(|| unavailable("the leader has no REST address".to_owned()))?;
    let epoch = wanted.epoch.unwrap_or(leader.epoch.get());
    let mut query = form_urlencoded(&[("epoch", &epoch.to_string())]);
    if let Some(to) = &wanted.to {
        query = format!("{query}&{}", form_urlencoded(&[("to", to)]));
    }
    let path = format!("/v1/ha/transfer?{query}");
    // It waits as long itself.
    let patience = patience + ACCOUNT_TIMEOUT;
    let asked = context.peers.ask(Method::POST, address, &path, patience);
    let (status, body): (StatusCode, serde_json::Value) = asked.await.map_err(unavailable)?;
    if status == StatusCode::OK {
        return Ok(Json(body));
    }
    let errors = body["errors"].as_array().cloned().unwrap_or_default();
    let errors = errors
        .iter()
        .filter_map(|error| error.as_str().map(str::to_owned));
    Err(RestError {
        status,
        errors: errors.collect(),
    })
}

/// A query of these names and values; whatever is not plain is escaped.
fn form_urlencoded(pairs: &[(&str, &str)]) -> String {
    let escaped = |text: &str| -> String {
        text.bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    char::from(byte).to_string()
                }
                other => format!("%{other:02X}"),
            })
            .collect()
    };
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}={}", escaped(value)))
        .collect();
    pairs.join("&")
}

//! Handlers about high availability: leader, members, earlier terms, and handing leadership over.
//!
//! Except for `/ha/time` and `/ha/transfer`, this process answers from its own view and the store, so there are answers
//! without a leader. A view may be old: another process may lead already. If the store or a member does not answer in
//! time, the status has the reason instead.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use bytes::Bytes;
use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::{Epoch, LeaderInformation, ProcessId};
use tanist_ha::retrieval::LeaderView;
use tanist_leadership::Role;
use tanist_proto::v1 as pb;
use tanist_rest_model::{HaStatusInfo, LeaderInfo, OwnStatus, TermList, TermTime, TransferRequest};
use tokio::sync::watch;

use super::ask::Context;
use super::error::RestError;
use super::extract::Parameters;
use super::json::ha::{ha_status, leader_info, own_status, role_name};
use super::json::history::term_list;

/// Timeout for the store before `/ha/status` answers without the members.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for this process to learn of a term that other processes know.
const NEWER_TERM_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout for another JobManager before `/ha/status` answers without its status.
const PEER_STATUS_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) async fn status(State(context): State<Context>) -> Json<HaStatusInfo> {
    let status = context.view.ha_status(STATUS_TIMEOUT).await;
    let own = own_status(&*context.view);
    let members = status.members.as_deref().unwrap_or_default();
    let others: Vec<_> = members
        .iter()
        .filter(|member| member.process != status.process)
        .cloned()
        .collect();
    let mut others = context
        .peers
        .statuses(&others, PEER_STATUS_TIMEOUT)
        .await
        .into_iter();
    let reports = members.iter().map(|member| {
        if member.process == status.process {
            return Ok((own.clone(), 0));
        }
        let asked = others.next().expect("each other member was queried");
        asked.map(|answer| (answer.own, answer.clock_offset_ms))
    });
    let reports = reports.collect();
    Json(ha_status(&status, reports))
}

/// The status of this process alone: other JobManagers query it.
pub(super) async fn own(State(context): State<Context>) -> Json<OwnStatus> {
    Json(own_status(&*context.view))
}

/// The time by the clock of the leader's term. A deadline by this clock is not compared with another clock.
pub(super) async fn time(State(context): State<Context>) -> Result<Json<TermTime>, RestError> {
    let asked = context.ask(async |dispatcher| {
        let request = pb::TermTimeRequest {};
        dispatcher.tell_term_time(request).await
    });
    let time = asked.await?;
    Ok(Json(TermTime {
        epoch: time.epoch,
        now: time.now_ms,
        longest: time.longest_ms,
    }))
}

/// The number of terms that are listed without `limit`.
const LISTED_TERMS: usize = 100;

/// The terms that are kept. Any process reads them from the store.
pub(super) async fn history(
    State(context): State<Context>,
    parameters: Parameters,
) -> Result<Json<TermList>, RestError> {
    let limit = parameters.number("limit")?.unwrap_or(LISTED_TERMS);
    let records = context.view.history(STATUS_TIMEOUT).await;
    let records =
        records.map_err(|error| RestError::new(StatusCode::SERVICE_UNAVAILABLE, error))?;
    Ok(Json(term_list(&records, limit, wall_clock_ms())))
}

/// 200 on the process that leads and is confirmed, for load balancers; 503 elsewhere.
pub(super) async fn leader(State(context): State<Context>) -> Result<Json<LeaderInfo>, RestError> {
    let (role, known) = (context.view.role(), context.view.leader().leader);
    let own = context.view.process();
    match known {
        Some(leader) if leader.process == own && role == Role::Leading => {
            Ok(Json(leader_info(&leader)))
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

/// The body of a transfer; the query may have the same fields.
fn read_transfer(parameters: &Parameters, body: &[u8]) -> Result<TransferRequest, RestError> {
    let mut wanted = match body.trim_ascii() {
        b"" => TransferRequest::default(),
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

/// The confirmed leader, once its epoch is at least `epoch`; `None` after `timeout`.
async fn leader_since(
    leaders: &mut watch::Receiver<LeaderView>,
    epoch: Epoch,
    timeout: Duration,
) -> Option<LeaderInformation> {
    let known = leaders.wait_for(|view| {
        let leader = view.leader.as_ref();
        leader.is_some_and(|leader| leader.epoch >= epoch)
    });
    let view = tokio::time::timeout(timeout, known).await.ok()?.ok()?;
    view.leader.clone()
}

/// Makes the current leader hand over. Returns the new leader, or an error if it is not the requested one: that one may
/// have died since.
pub(super) async fn transfer(
    State(context): State<Context>,
    parameters: Parameters,
    body: Bytes,
) -> Result<Json<LeaderInfo>, RestError> {
    let wanted = read_transfer(&parameters, &body)?;
    let to = wanted.to.as_deref().map(ProcessId::new);
    let unavailable = |text: String| RestError::new(StatusCode::SERVICE_UNAVAILABLE, text);
    let timeout = context.options.await_leader_timeout;
    let mut leaders = context.view.leaders();
    let known = leader_since(&mut leaders, Epoch::ZERO, timeout).await;
    let mut known =
        known.ok_or_else(|| unavailable("no JobManager leads at present".to_owned()))?;
    if let Some(epoch) = wanted.epoch.map(Epoch::new)
        && epoch > known.epoch
    {
        // This process may learn of the term a moment later than the caller.
        let leader = leader_since(&mut leaders, epoch, NEWER_TERM_TIMEOUT).await;
        known = leader.ok_or_else(|| {
            let text = format!("epoch {epoch} has not begun: epoch {} leads", known.epoch);
            RestError::new(StatusCode::CONFLICT, text)
        })?;
    }
    let passed = |epoch: u64| known.epoch > Epoch::new(epoch);
    let is_done = match &to {
        Some(to) => *to == known.process,
        None => wanted.epoch.is_some_and(passed),
    };
    if is_done {
        return Ok(Json(leader_info(&known)));
    }
    let epoch = context.view.transfer(to.as_ref()).await?;
    let leader = leader_since(&mut leaders, epoch, timeout).await;
    let unconfirmed = || {
        let text = format!("epoch {epoch} began, and was not confirmed within {timeout:?}");
        unavailable(text)
    };
    let leader = leader.ok_or_else(unconfirmed)?;
    if let Some(to) = to
        && to != leader.process
    {
        let text = format!(
            "{} leads in epoch {}, not {to}: another JobManager has taken over since; repeat the request",
            leader.process, leader.epoch
        );
        return Err(RestError::new(StatusCode::CONFLICT, text));
    }
    Ok(Json(leader_info(&leader)))
}

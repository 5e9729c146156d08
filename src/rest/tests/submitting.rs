//! Submissions: the kinds of bodies, and repeated submissions with the same id and token.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use prost::Message as _;
use serde_json::json;
use tanist_config::{ClaimMode, StateRecoveryOptions};
use tanist_gateway::GatewayError;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::time::Instant;

use super::scripted::{ScriptedDispatcher, Served};
use crate::RestServerOptions;

const PROTOBUF: (&str, &str) = ("content-type", "application/x-protobuf");
const YAML: (&str, &str) = ("content-type", "application/yaml; charset=utf-8");

const JOB_FILE: &str = "\
version: 1
name: numbers
parameters:
  count:
    default: 10
steps:
  - name: numbers
    datagen:
      rate: 5
      count: ${count}
  - name: out
    discard: {}
";

/// The time by the clock of each scripted term; constant.
const TERM_MS: u64 = 1000;

pub(super) fn term_time() -> pb::TermTime {
    pb::TermTime {
        epoch: 7,
        now_ms: TERM_MS,
        longest_ms: 90_000,
    }
}

fn graph() -> pb::JobGraph {
    pb::JobGraph {
        job_id: JobId::from_bits(5).to_string(),
        name: "count".to_owned(),
        ..pb::JobGraph::default()
    }
}

#[tokio::test]
async fn a_graph_is_handed_to_the_leader_with_the_clients_token_and_deadline_of_a_term() {
    let (served, leader) = Served::leading(ScriptedDispatcher::default()).await;
    let headers = [
        PROTOBUF,
        ("idempotency-key", "a token"),
        ("tanist-deadline", "123"),
        ("tanist-deadline-epoch", "6"),
    ];
    let body = graph().encode_to_vec();
    let answer = served
        .ask(Method::POST, "/v1/jobs", &headers, body.clone())
        .await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    let job = graph().job_id;
    let url = format!("/jobs/{job}");
    assert_eq!(answer.body, json!({"jobid": job, "jobUrl": url}));
    let expected = pb::SubmitJobRequest {
        graph: Some(graph()),
        submission_token: "a token".to_owned(),
        deadline_ms: 123,
        graph_reference: None,
        deadline_epoch: 6,
        restore: None,
    };
    assert_eq!(leader.submissions.lock().as_slice(), [expected]);

    let again = served.ask(Method::POST, "/v1/jobs", &headers, body).await;
    assert_eq!(again.status, StatusCode::ACCEPTED);
    let expected = json!({"jobid": job, "jobUrl": url, "repeated": true});
    assert_eq!(again.body, expected);
}

#[tokio::test]
async fn a_submission_without_a_token_keeps_the_one_it_got_over_a_change_of_leader() {
    let errors = [
        GatewayError::Unknown("the store".to_owned()),
        GatewayError::gone("the leader"),
    ];
    let (served, leader) = Served::leading(ScriptedDispatcher::failing(errors)).await;
    let body = graph().encode_to_vec();
    let answer = served
        .ask(Method::POST, "/jobs", &[PROTOBUF], body.clone())
        .await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    assert_eq!(answer.body["repeated"], true);
    let first = {
        let submissions = leader.submissions.lock();
        assert_eq!(submissions.len(), 3);
        let first = &submissions[0];
        for tried in submissions.iter() {
            assert_eq!(tried.submission_token, first.submission_token);
            assert_eq!(tried.graph, first.graph);
            // The remaining time, by the clock of the leader's term.
            assert_eq!(tried.deadline_epoch, 7);
            assert!(tried.deadline_ms > TERM_MS && tried.deadline_ms <= TERM_MS + 60_000);
        }
        assert_eq!(first.submission_token.len(), 32);
        submissions[0].submission_token.clone()
    };
    served.ask(Method::POST, "/jobs", &[PROTOBUF], body).await;
    let submissions = leader.submissions.lock();
    assert_ne!(submissions[3].submission_token, first);
}

/// Submits a job without a deadline. Returns the deadline in the request to the leader.
async fn default_deadline(submission_timeout: Duration) -> (u64, u64) {
    let options = RestServerOptions {
        submission_timeout,
        ..RestServerOptions::default()
    };
    let leader = Arc::new(ScriptedDispatcher::default());
    let served = Served::over(Some(leader.clone()), options).await;
    let body = graph().encode_to_vec();
    let answer = served
        .ask(Method::POST, "/v1/jobs", &[PROTOBUF], body)
        .await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{answer:?}");
    let submissions = leader.submissions.lock();
    (submissions[0].deadline_ms, submissions[0].deadline_epoch)
}

#[tokio::test]
async fn a_submission_without_a_deadline_has_at_most_the_submission_timeout_left() {
    let (until, epoch) = default_deadline(Duration::from_secs(30)).await;
    assert_eq!(epoch, 7);
    assert!(until > TERM_MS && until <= TERM_MS + 30_000, "{until}");
    // The leader's maximum is shorter than two hours.
    let (until, epoch) = default_deadline(Duration::from_secs(7_200)).await;
    assert_eq!((until, epoch), (TERM_MS + 90_000, 7));
}

#[tokio::test]
async fn a_client_whose_deadline_is_of_another_term_is_told_at_once_to_ask_for_the_time() {
    let outdated = GatewayError::Outdated {
        epoch: 7,
        reason: "ask for its time".to_owned(),
    };
    let (served, leader) = Served::leading(ScriptedDispatcher::failing([outdated])).await;
    let headers = [
        PROTOBUF,
        ("tanist-deadline", "123"),
        ("tanist-deadline-epoch", "6"),
    ];
    let body = graph().encode_to_vec();
    let answer = served.ask(Method::POST, "/v1/jobs", &headers, body).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.body.to_string().contains("ask for its time"));
    assert_eq!(leader.submissions.lock().len(), 1);
    let time = served.get("/v1/ha/time").await;
    assert_eq!(
        time.body,
        json!({"epoch": 7, "now": TERM_MS, "longest": 90_000})
    );
}

#[tokio::test]
async fn a_job_file_is_compiled_with_the_querys_parameters() {
    let (served, leader) = Served::leading(ScriptedDispatcher::default()).await;
    let job = JobId::from_bits(9);
    let path = format!("/v1/jobs?job-id={job}&parallelism=3&param.count=77");
    let answer = served.ask(Method::POST, &path, &[YAML], JOB_FILE).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{answer:?}");
    assert_eq!(answer.body["jobid"], job.to_string());
    let submissions = leader.submissions.lock();
    let graph = submissions[0].graph.as_ref().expect("a graph");
    assert_eq!(graph.name, "numbers");
    assert!(graph.vertices.iter().all(|vertex| vertex.parallelism == 3));
    assert!(graph.vertices[0].operators[0].spec.contains("77"));
}

#[tokio::test]
async fn a_job_file_that_is_posted_again_with_its_key_is_the_same_submission() {
    let (served, leader) = Served::leading(ScriptedDispatcher::default()).await;
    let post = async |path: &str, headers: &[(&str, &str)]| {
        let answer = served.ask(Method::POST, path, headers, JOB_FILE).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{answer:?}");
        answer.body
    };
    let first = post("/v1/jobs", &[YAML, ("idempotency-key", "a token")]).await;
    assert!(first["repeated"].is_null(), "{first}");
    let again = post("/v1/jobs", &[YAML, ("idempotency-key", "a token")]).await;
    assert_eq!(again["jobid"], first["jobid"]);
    assert_eq!(again["repeated"], true);
    {
        let submissions = leader.submissions.lock();
        assert_eq!(submissions[0].graph, submissions[1].graph);
    }
    let chosen = JobId::from_bits(9).to_string();
    let path = format!("/v1/jobs?job-id={chosen}");
    let with_id = post(&path, &[YAML, ("idempotency-key", "a token")]).await;
    assert_eq!(with_id["jobid"], chosen);
    let others = [
        post("/v1/jobs", &[YAML, ("idempotency-key", "another token")]).await,
        post("/v1/jobs", &[YAML]).await,
        post("/v1/jobs", &[YAML]).await,
    ];
    let mut jobs: Vec<&str> = others
        .iter()
        .filter_map(|it| it["jobid"].as_str())
        .collect();
    jobs.extend(first["jobid"].as_str());
    jobs.sort_unstable();
    jobs.dedup();
    assert_eq!(jobs.len(), 4, "{others:?}");
}

#[tokio::test]
async fn every_problem_of_a_job_file_is_an_error_of_its_own() {
    let (served, leader) = Served::leading(ScriptedDispatcher::default()).await;
    let file = JOB_FILE
        .replace("discard", "disard")
        .replace("rate: 5", "rte: 5");
    let answer = served.ask(Method::POST, "/v1/jobs", &[YAML], file).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let errors = answer.body["errors"].as_array().expect("an array");
    assert!(errors.len() >= 2, "{errors:?}");
    assert!(leader.submissions.lock().is_empty());
}

#[tokio::test]
async fn what_is_no_job_is_refused_before_anybody_is_asked() {
    let options = RestServerOptions {
        max_content_length: 1000,
        ..RestServerOptions::default()
    };
    let leader = Arc::new(ScriptedDispatcher::default());
    let served = Served::over(Some(leader.clone()), options).await;
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, Vec<u8>, u16);
    let cases: [Case<'_>; 9] = [
        (&[PROTOBUF], "", vec![0xff; 20], 400),
        (&[PROTOBUF], "", vec![0; 1001], 413),
        (&[("content-type", "text/html")], "", Vec::new(), 415),
        (&[], "", graph().encode_to_vec(), 415),
        (&[PROTOBUF, ("idempotency-key", "")], "", Vec::new(), 400),
        (
            &[YAML, ("tanist-deadline-epoch", "6")],
            "",
            JOB_FILE.into(),
            400,
        ),
        (
            &[YAML, ("tanist-deadline", "123")],
            "",
            JOB_FILE.into(),
            400,
        ),
        (&[YAML], "?job-id=xyz", JOB_FILE.into(), 400),
        (&[YAML], "?paralelism=2", JOB_FILE.into(), 400),
    ];
    for (headers, query, body, code) in cases {
        let path = format!("/v1/jobs{query}");
        let answer = served.ask(Method::POST, &path, headers, body).await;
        assert_eq!(answer.status, code, "{headers:?} {query}: {answer:?}");
        assert!(answer.body["errors"][0].is_string(), "{answer:?}");
    }
    assert!(leader.submissions.lock().is_empty());
}

#[tokio::test]
async fn query_parameters_without_effect_are_refused_by_name() {
    let (served, leader) = Served::leading(ScriptedDispatcher::default()).await;
    let refuses = async |kind, body: Vec<u8>, query: &str, names: &str| {
        let path = format!("/v1/jobs?{query}");
        let answer = served.ask(Method::POST, &path, &[kind], body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}");
        let error = answer.body["errors"][0].as_str().expect("a text");
        assert!(error.starts_with(names), "{query}: {error}");
    };
    let encoded = || graph().encode_to_vec();
    for name in ["job-id", "parallelism", "param.count", "paralelism"] {
        let (query, names) = (format!("{name}=2"), format!("`{name}`: "));
        refuses(PROTOBUF, encoded(), &query, &names).await;
    }
    let both = "`paralelism`, `savepoint`: ";
    refuses(
        YAML,
        JOB_FILE.into(),
        "savepoint=/a&paralelism=2&parallelism=2",
        both,
    )
    .await;
    assert!(leader.submissions.lock().is_empty());
}

/// A client that must wait half a minute for the error of a full disk has given up before.
#[tokio::test(start_paused = true)]
async fn what_the_store_refuses_is_answered_within_two_seconds() {
    let full = || GatewayError::StoreRefused("out of space".to_owned());
    let refusals = std::iter::repeat_with(full).take(1_000);
    let (served, _) = Served::leading(ScriptedDispatcher::failing(refusals)).await;
    let began_at = Instant::now();
    let body = graph().encode_to_vec();
    let answer = served
        .ask(Method::POST, "/v1/jobs", &[PROTOBUF], body)
        .await;
    assert!(began_at.elapsed() < Duration::from_secs(2), "{answer:?}");
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(format!("{answer:?}").contains("out of space"), "{answer:?}");
}

#[tokio::test]
async fn a_store_that_refuses_for_a_moment_is_asked_again() {
    let busy = || GatewayError::StoreRefused("busy".to_owned());
    let refusals = std::iter::repeat_with(busy).take(3);
    let (served, _) = Served::leading(ScriptedDispatcher::failing(refusals)).await;
    let body = graph().encode_to_vec();
    let answer = served
        .ask(Method::POST, "/v1/jobs", &[PROTOBUF], body)
        .await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{answer:?}");
}

#[tokio::test]
async fn what_a_job_begins_from_is_handed_to_the_leader() {
    use pb::restore_request::From;
    let (served, leader) = Served::leading(ScriptedDispatcher::default()).await;
    let job = JobId::from_bits(9).to_string();
    let cases = [
        (
            "savepoint-path=/save%20points/a".to_owned(),
            From::Path("/save points/a".to_owned()),
            false,
        ),
        (
            "savepoint-path=file:///a&allow-non-restored-state=true".to_owned(),
            From::Path("/a".to_owned()),
            true,
        ),
        (
            format!("savepoint-path=job:{job}&allow-non-restored-state"),
            From::JobId(job.clone()),
            true,
        ),
    ];
    for (query, from, allow_non_restored_state) in cases {
        for (kind, body) in [
            (PROTOBUF, graph().encode_to_vec()),
            (YAML, JOB_FILE.as_bytes().to_vec()),
        ] {
            let path = format!("/v1/jobs?{query}");
            let answer = served.ask(Method::POST, &path, &[kind], body).await;
            assert_eq!(answer.status, StatusCode::ACCEPTED, "{answer:?}");
            let submitted = leader.submissions.lock().pop().expect("one");
            let expected = pb::RestoreRequest {
                from: Some(from.clone()),
                allow_non_restored_state,
                ..pb::RestoreRequest::default()
            };
            assert_eq!(submitted.restore, Some(expected), "{query}");
        }
    }
    let wrong = [
        ("savepoint-path=", "is empty"),
        ("savepoint-path=a", "is no absolute path"),
        ("savepoint-path=job:7", "names no job"),
        (
            "savepoint-path=/a&allow-non-restored-state=perhaps",
            "is neither true nor false",
        ),
        (
            "savepoint-path=/a&claim-mode=LEGACY",
            "`claim-mode=LEGACY` is not supported",
        ),
        ("claim-mode=some", "is no claim mode: write `NO_CLAIM`"),
        ("allow-non-restored-state=true", "add `savepoint-path`"),
    ];
    for (query, text) in wrong {
        let path = format!("/v1/jobs?{query}");
        let body = graph().encode_to_vec();
        let answer = served.ask(Method::POST, &path, &[PROTOBUF], body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}");
        let error = answer.body["errors"][0].as_str().expect("a text");
        assert!(error.contains(text), "{query}: {error}");
    }
    assert!(leader.submissions.lock().is_empty());
}

#[tokio::test]
async fn a_job_file_that_names_nothing_begins_as_the_configuration_of_the_jobmanager_says() {
    use pb::restore_request::From;
    let leader = Arc::new(ScriptedDispatcher::default());
    let options = RestServerOptions {
        state_recovery: StateRecoveryOptions {
            path: Some("/configured".parse().expect("a path")),
            ignore_unclaimed_state: true,
            claim_mode: ClaimMode::Claim,
        },
        ..RestServerOptions::default()
    };
    let served = Served::over(Some(leader.clone()), options).await;
    let begins = async |query: &str, kind, body: Vec<u8>| {
        let path = format!("/v1/jobs{query}");
        let answer = served.ask(Method::POST, &path, &[kind], body).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{answer:?}");
        leader.submissions.lock().pop().expect("one").restore
    };
    let from = |path: &str, allow_non_restored_state, claim_mode: pb::RecoveryClaimMode| {
        Some(pb::RestoreRequest {
            from: Some(From::Path(path.to_owned())),
            allow_non_restored_state,
            claim_mode: claim_mode.into(),
        })
    };
    let [kept, claimed] = [pb::RecoveryClaimMode::NoClaim, pb::RecoveryClaimMode::Claim];
    let file = || JOB_FILE.as_bytes().to_vec();
    let configured = begins("", YAML, file()).await;
    assert_eq!(configured, from("/configured", true, claimed));
    for (query, claim_mode) in [
        ("", kept),
        ("&claim-mode=NO_CLAIM", kept),
        ("&claim-mode=CLAIM", claimed),
    ] {
        let named = begins(&format!("?savepoint-path=/a{query}"), YAML, file()).await;
        assert_eq!(named, from("/a", true, claim_mode), "{query}");
    }
    let not_claimed = begins("?claim-mode=NO_CLAIM", YAML, file()).await;
    assert_eq!(not_claimed, from("/configured", true, kept));
    let strict = begins("?allow-non-restored-state=false", YAML, file()).await;
    assert_eq!(strict, from("/configured", false, claimed));
    // The client that compiled a graph has decided what it begins from.
    assert_eq!(begins("", PROTOBUF, graph().encode_to_vec()).await, None);
}

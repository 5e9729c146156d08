//! The handler of submissions. The body is a JobGraph as protobuf, or a job file, which is compiled here. Nothing
//! is kept here: the Dispatcher knows which submissions it has.
//!
//! Headers: `Idempotency-Key` is the token that repeated attempts have in common; a submission without one gets
//! one before it is forwarded, so that a change of leader meanwhile does not create a second job.
//! `Tanist-Deadline` and `Tanist-Deadline-Epoch` say after which time the submission has no effect any more
//! ([`Deadline`]).
//!
//! Query: `savepoint-path`, the path of a savepoint or `job:` and the id of a job, `allow-non-restored-state` and
//! `claim-mode` say what the job begins from. For a job file they default to `execution.state-recovery` of this
//! process, as for Flink's `/jars/:id/run`. A client that sends a graph has applied its own configuration when it
//! compiled the graph.
//!
//! Query of a job file: `job-id`, `parallelism`, and `param.NAME` for each of its parameters. Without `job-id` the
//! id follows from the token, so that repeated attempts submit the same job.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tanist_compile::{ChainingOptions, CompileOptions, JobFile, JobFileError, compile};
use tanist_config::{ClaimMode, RestoreFrom, StateRecoveryOptions};
use tanist_gateway::GatewayError;
use tanist_gateway::remote_files::embed_remote;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_rest_model::headers::IDEMPOTENCY_KEY;
use tanist_rest_model::{Submitted, paths};

use super::ask::Context;
use super::deadline::Deadline;
use super::error::RestError;
use super::extract::{Parameters, header_text, read_body};
use super::json::job_id;
use super::server::RestServerOptions;

/// Maximum length of a token.
const MAX_TOKEN_LENGTH: usize = 255;

pub(super) async fn submit(
    State(context): State<Context>,
    headers: HeaderMap,
    parameters: Parameters,
    body: Body,
) -> Result<(StatusCode, Json<Submitted>), RestError> {
    if let Some(reason) = &context.options.refuses_submissions {
        return Err(RestError::new(StatusCode::FORBIDDEN, reason.as_str()));
    }
    let token = token(&headers)?;
    let kind = Kind::of(&headers)?;
    check_names(&kind, &parameters)?;
    let restore = match kind {
        Kind::Graph => restore(&parameters, &StateRecoveryOptions::default())?,
        Kind::JobFile => restore(&parameters, &context.options.state_recovery)?,
    };
    let deadline = Deadline::of(&headers, &context.options)?;
    let body = read_body(&headers, body, context.options.max_content_length).await?;
    let graph = read_graph(kind, &parameters, &token, body, &context.options, deadline).await?;
    let request = pb::SubmitJobRequest {
        graph: Some(graph),
        submission_token: token,
        restore,
        ..pb::SubmitJobRequest::default()
    };
    let answer = context.ask(async |dispatcher| {
        let request = deadline.in_request(request.clone(), &*dispatcher).await?;
        match dispatcher.submit_job(request).await {
            // Only the client can repeat it, with a deadline by the clock of the current leader.
            Err(error @ GatewayError::Outdated { .. }) if deadline.is_clients() => Ok(Err(error)),
            answer => answer.map(Ok),
        }
    });
    let answer = answer.await??;
    let submitted = Submitted {
        job: job_id(&answer.job_id),
        job_url: paths::job(answer.job_id),
        repeated: answer.repeated,
    };
    Ok((StatusCode::ACCEPTED, Json(submitted)))
}

fn token(headers: &HeaderMap) -> Result<String, RestError> {
    match header_text(headers, IDEMPOTENCY_KEY)?.map(str::trim) {
        None => Ok(format!("{:032x}", rand::random::<u128>())),
        Some(token) if token.is_empty() || token.len() > MAX_TOKEN_LENGTH => {
            let text = format!("an Idempotency-Key has 1 to {MAX_TOKEN_LENGTH} characters");
            Err(RestError::bad_request(text))
        }
        Some(token) => Ok(token.to_owned()),
    }
}

/// Names of query parameters.
const SAVEPOINT_PATH: &str = "savepoint-path";
const ALLOW_NON_RESTORED_STATE: &str = "allow-non-restored-state";
const CLAIM_MODE: &str = "claim-mode";
/// Those of a job file.
const JOB_ID: &str = "job-id";
const PARALLELISM: &str = "parallelism";
/// Before the name of a parameter of the job file.
const PARAMETER: &str = "param.";

/// Refuses query parameters that have no effect on such a body.
fn check_names(kind: &Kind, parameters: &Parameters) -> Result<(), RestError> {
    let has_effect = |name: &str| match name {
        SAVEPOINT_PATH | ALLOW_NON_RESTORED_STATE | CLAIM_MODE => true,
        JOB_ID | PARALLELISM => matches!(kind, Kind::JobFile),
        other => matches!(kind, Kind::JobFile) && other.starts_with(PARAMETER),
    };
    let names = parameters.0.keys().filter(|name| !has_effect(name));
    let mut without_effect: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if without_effect.is_empty() {
        return Ok(());
    }
    without_effect.sort_unstable();
    let names = without_effect.join(", ");
    let known = format!("`{SAVEPOINT_PATH}`, `{ALLOW_NON_RESTORED_STATE}`, `{CLAIM_MODE}`");
    Err(RestError::bad_request(match kind {
        Kind::Graph => format!(
            "{names}: no query parameter of a job graph, which states such things itself: only {known} are known"
        ),
        Kind::JobFile => format!(
            "{names}: no query parameter of a job file: {known}, `{JOB_ID}`, `{PARALLELISM}` and `{PARAMETER}NAME` are \
             known"
        ),
    }))
}

/// What the job begins from; `None`: from the start. `recovery` has what the query leaves out.
fn restore(
    parameters: &Parameters,
    recovery: &StateRecoveryOptions,
) -> Result<Option<pb::RestoreRequest>, RestError> {
    use pb::restore_request::From;
    let wrong = |name: &str, text: &str, wrong: String| {
        RestError::bad_request(format!("the query parameter `{name}={text}` {wrong}"))
    };
    let claim_mode = match parameters.0.get(CLAIM_MODE) {
        // The configured claim mode belongs to the configured path.
        None if parameters.0.contains_key(SAVEPOINT_PATH) => ClaimMode::NoClaim,
        None => recovery.claim_mode,
        Some(text) => text
            .parse()
            .map_err(|error| wrong(CLAIM_MODE, text, error))?,
    };
    let allowed_here = parameters.flag(ALLOW_NON_RESTORED_STATE)?;
    let allow_non_restored_state = allowed_here.unwrap_or(recovery.ignore_unclaimed_state);
    let named = parameters.0.get(SAVEPOINT_PATH);
    let named = named.map(|text| {
        let from = text.parse::<RestoreFrom>();
        from.map_err(|error| wrong(SAVEPOINT_PATH, text, error))
    });
    let from = named.transpose()?.or_else(|| recovery.path.clone());
    let Some(from) = from else {
        return if allowed_here == Some(true) {
            Err(RestError::bad_request(format!(
                "the query parameter `{ALLOW_NON_RESTORED_STATE}` is for a job that begins from a savepoint: add \
                 `{SAVEPOINT_PATH}`"
            )))
        } else {
            Ok(None)
        };
    };
    let from = match from {
        RestoreFrom::Savepoint(path) => From::Path(path.to_string()),
        RestoreFrom::Job(job) => From::JobId(job.to_string()),
    };
    Ok(Some(pb::RestoreRequest {
        from: Some(from),
        allow_non_restored_state,
        claim_mode: match claim_mode {
            ClaimMode::NoClaim => pb::RecoveryClaimMode::NoClaim,
            ClaimMode::Claim => pb::RecoveryClaimMode::Claim,
        }
        .into(),
    }))
}

/// The job id of a job file that is submitted with this token and without a job id.
fn job_of(token: &str) -> JobId {
    let mut digest = Sha256::new();
    digest.update(b"tanist submission\0");
    digest.update(token.as_bytes());
    let digest = digest.finalize();
    let mut bits = [0; 16];
    bits.copy_from_slice(&digest[..16]);
    JobId::from_bits(u128::from_be_bytes(bits))
}

/// What a body is.
enum Kind {
    Graph,
    JobFile,
}

impl Kind {
    fn of(headers: &HeaderMap) -> Result<Kind, RestError> {
        let content_type = header_text(headers, header::CONTENT_TYPE.as_str())?.unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default();
        match essence.trim().to_ascii_lowercase().as_str() {
            "application/x-protobuf" | "application/protobuf" => Ok(Kind::Graph),
            "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(Kind::JobFile),
            other => Err(RestError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                format!(
                    "a job can't be read from `{other}`: send a job file as application/yaml or a job \
                     graph as application/x-protobuf"
                ),
            )),
        }
    }
}

async fn read_graph(
    kind: Kind,
    parameters: &Parameters,
    token: &str,
    body: Bytes,
    options: &RestServerOptions,
    deadline: Deadline,
) -> Result<pb::JobGraph, RestError> {
    match kind {
        Kind::Graph => pb::JobGraph::decode(body)
            .map_err(|error| RestError::bad_request(format!("the body is no job graph: {error}"))),
        Kind::JobFile => {
            let compile_options = compile_options(parameters, token, options)?;
            let compiling = tokio::task::spawn_blocking(move || {
                let text = String::from_utf8(body.into())
                    .map_err(|_| RestError::bad_request("the job file is not UTF-8"))?;
                let graph = compile(&JobFile::new("job file", text), &compile_options)
                    .map_err(job_file_error)?;
                for warning in tanist_compile::warnings(&graph) {
                    tracing::warn!(warning, "a job file was submitted that has a warning");
                }
                Ok(graph)
            });
            let compiled = compiling.await.unwrap_or_else(|error| {
                let text = format!("compiling the job file failed: {error}");
                Err(RestError::new(StatusCode::INTERNAL_SERVER_ERROR, text))
            });
            fetch_artifacts(compiled?, deadline.left(options)).await
        }
    }
}

/// Fetches the artifacts that a job file names by an address, and puts their content into the graph. Only the
/// process that compiles the file can do so.
async fn fetch_artifacts(
    mut graph: pb::JobGraph,
    left: Duration,
) -> Result<pb::JobGraph, RestError> {
    match tokio::time::timeout(left, embed_remote(&mut graph)).await {
        Ok(Ok(())) => Ok(graph),
        Ok(Err(error)) if error.is_passing() => Err(RestError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            error.to_string(),
        )),
        Ok(Err(error)) => Err(RestError::bad_request(error.to_string())),
        Err(_elapsed) => Err(RestError::bad_request(
            "the job's artifacts could not be fetched in time: submit it with `tanist run`, \
             which fetches them before",
        )),
    }
}

/// One text for each problem.
fn job_file_error(error: JobFileError) -> RestError {
    let errors = match &error {
        JobFileError::Syntax { .. } => vec![error.to_string()],
        JobFileError::Invalid(invalid) => {
            invalid.problems.iter().map(ToString::to_string).collect()
        }
    };
    RestError {
        status: StatusCode::BAD_REQUEST,
        errors,
        is_busy: false,
    }
}

fn compile_options(
    parameters: &Parameters,
    token: &str,
    options: &RestServerOptions,
) -> Result<CompileOptions, RestError> {
    let values = parameters.0.iter().filter_map(|(name, value)| {
        let parameter = name.strip_prefix(PARAMETER)?;
        Some((parameter.to_owned(), value.clone()))
    });
    let values: BTreeMap<String, String> = values.collect();
    let job_id = parameters.get(JOB_ID)?;
    Ok(CompileOptions {
        parallelism: parameters.number(PARALLELISM)?,
        default_parallelism: options.default_parallelism,
        max_parallelism: options.max_parallelism,
        chaining: ChainingOptions {
            enabled: options.operator_chaining,
        },
        parameters: values,
        job_id: job_id.unwrap_or_else(|| job_of(token)),
        artifact_dir: None,
        working_dir: None,
        upload_above: None,
    })
}

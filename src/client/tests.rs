//! The client against a server that follows a script, one step per connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tanist_config::Configuration;
use tanist_ha::election::{Epoch, LeaderInformation, ProcessId};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::id::JobId;
use tanist_proto::v1::{Artifact, JobGraph, JobStatus};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::finder::FollowedLeader;
use super::*;

/// Reaction of the server to a request.
enum Step {
    /// Answers with this status and body.
    Answer(u16, String),
    /// Answers "busy" after this time, with this reason.
    Busy(Duration, &'static str),
    /// Reads the request and closes the connection without an answer.
    Lose,
    /// Reads the request and never answers.
    Hang,
}

/// What a server says of the time of its term: with a clock far away from ours.
const TIME: &str = r#"{"epoch":7,"now":5000000,"longest":15000}"#;

/// Answers by its script, then with 500, and records the requests. Answers `/ha/time` in addition to the script.
struct Scripted {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
    server: AbortHandle,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Scripted {
    async fn server(script: impl IntoIterator<Item = Step>) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let mut script: VecDeque<Step> = script.into_iter().collect();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = requests.clone();
        let server = tokio::spawn(async move {
            let mut hanging = Vec::new();
            while let Ok((mut connection, _)) = listener.accept().await {
                let request = read_request(&mut connection).await;
                if request.starts_with("GET /v1/ha/time ") {
                    answer(&mut connection, 200, TIME).await;
                    continue;
                }
                seen.lock().push(request);
                let step = script.pop_front();
                match step.unwrap_or_else(|| Step::Answer(500, "{}".to_owned())) {
                    Step::Answer(status, body) => answer(&mut connection, status, &body).await,
                    Step::Busy(after, reason) => {
                        tokio::time::sleep(after).await;
                        let text = format!(
                            "HTTP/1.1 503 x\r\ntanist-busy: {reason}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                        );
                        let written = connection.write_all(text.as_bytes()).await;
                        written.expect("the client reads");
                    }
                    Step::Lose => drop(connection),
                    Step::Hang => hanging.push(connection),
                }
            }
        });
        Scripted {
            address,
            requests,
            server: server.abort_handle(),
        }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }
}

/// Reads the whole request; the body is lossy text.
async fn read_request(connection: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |text| text.parse().expect("a number"));
            if bytes.len() >= head.len() + 4 + length {
                return text;
            }
        }
        let mut buffer = [0; 4096];
        let read = connection.read(&mut buffer).await.expect("a request");
        assert!(read > 0, "the client closed before its request was whole");
        bytes.extend_from_slice(&buffer[..read]);
    }
}

async fn answer(connection: &mut TcpStream, status: u16, body: &str) {
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    connection
        .write_all(text.as_bytes())
        .await
        .expect("the client reads");
}

const TIMEOUT: Duration = Duration::from_secs(20);

fn client(addresses: &[&str]) -> JobClient {
    let addresses = addresses.iter().map(ToString::to_string).collect();
    client_of(StaticAddresses(addresses), TIMEOUT)
}

fn client_of(finder: impl LeaderFinder, timeout: Duration) -> JobClient {
    client_with(finder, timeout, timeout)
}

fn client_with(
    finder: impl LeaderFinder,
    timeout: Duration,
    request_timeout: Duration,
) -> JobClient {
    let options = RetryOptions {
        timeout,
        retry_period: Duration::from_millis(1),
        request_timeout,
        ..RetryOptions::default()
    };
    JobClient::new(RestClient::new(Arc::new(finder), options))
}

/// Returns an address where no process listens.
async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    listener.local_addr().expect("it is bound").to_string()
}

fn unavailable() -> Step {
    Step::Answer(503, r#"{"errors":["leader election"]}"#.to_owned())
}

fn status(name: &str) -> Step {
    Step::Answer(200, format!(r#"{{"status":"{name}"}}"#))
}

fn job() -> JobId {
    JobId::from_bits(3)
}

fn header(request: &str, name: &str) -> String {
    let prefix = format!("{name}: ");
    let value = request.lines().find_map(|line| line.strip_prefix(&prefix));
    value.expect("the header is there").to_owned()
}

#[tokio::test]
async fn a_submission_is_repeated_with_the_same_id_and_token_until_it_is_answered() {
    let accepted = format!(r#"{{"jobid":"{}","jobUrl":"x","repeated":true}}"#, job());
    let script = [
        unavailable(),
        Step::Lose,
        Step::Hang,
        Step::Answer(202, accepted),
    ];
    let server = Scripted::server(script).await;
    let dead = nobody().await;
    let graph = JobGraph {
        job_id: job().to_string(),
        ..JobGraph::default()
    };
    let addresses = StaticAddresses(vec![dead, server.address.clone()]);
    let client = client_with(addresses, TIMEOUT, Duration::from_secs(1));
    let submitted = client.submit(&graph).await;
    let expected = Submitted {
        job: job(),
        job_url: "x".to_owned(),
        repeated: true,
    };
    assert_eq!(submitted, Ok(expected));
    let requests = server.requests();
    assert_eq!(requests.len(), 4, "accepted once, not sent again");
    assert!(requests[0].starts_with("POST /v1/jobs "), "{}", requests[0]);
    assert_eq!(header(&requests[0], "idempotency-key").len(), 32);
    for request in &requests {
        assert!(request.contains(&job().to_string()));
        let name = "idempotency-key";
        assert_eq!(header(request, name), header(&requests[0], name));
        assert_eq!(header(request, "tanist-deadline-epoch"), "7");
        // The maximum that is allowed; 20 s are left.
        assert_eq!(header(request, "tanist-deadline"), "5015000");
    }
}

#[tokio::test]
async fn the_next_address_is_asked_when_one_does_not_answer() {
    let first = Scripted::server([Step::Lose, unavailable()]).await;
    let second = Scripted::server([unavailable(), status("RUNNING"), status("FINISHED")]).await;
    let client = client(&[&first.address, &second.address]);
    assert_eq!(client.status(job()).await, Ok(JobStatus::Running));
    assert_eq!(first.requests().len(), 2);
    assert_eq!(client.status(job()).await, Ok(JobStatus::Finished));
    assert_eq!(first.requests().len(), 2, "who answered is asked first");
}

#[tokio::test]
async fn a_refusal_is_final_and_carries_the_clusters_words() {
    let body = r#"{"errors":["no such job","look elsewhere"]}"#.to_owned();
    let server = Scripted::server([Step::Answer(404, body)]).await;
    let error = client(&[&server.address])
        .cancel(job())
        .await
        .expect_err("refused");
    assert!(error.is_not_found());
    assert_eq!(error.to_string(), "no such job\nlook elsewhere");
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    let start = format!("PATCH /v1/jobs/{}?mode=cancel ", job());
    assert!(requests[0].starts_with(&start), "{}", requests[0]);
}

#[tokio::test]
async fn what_a_job_names_by_an_address_is_fetched_before_it_is_submitted_or_it_is_not() {
    let files = Scripted::server([Step::Answer(200, "content of a model".to_owned())]).await;
    let accepted = format!(r#"{{"jobid":"{}","jobUrl":"x"}}"#, job());
    let cluster = Scripted::server([Step::Answer(202, accepted)]).await;
    let graph = || JobGraph {
        job_id: job().to_string(),
        artifacts: vec![Artifact {
            name: "model".to_owned(),
            url: format!("http://{}/model?signed", files.address),
            ..Artifact::default()
        }],
        ..JobGraph::default()
    };
    let client = client(&[&cluster.address]);
    let submitted = client.submit(&graph()).await;
    assert_eq!(submitted.expect("accepted").job, job());
    let sent = cluster.requests();
    assert!(sent[0].contains("content of a model"), "{sent:?}");
    assert!(!sent[0].contains("signed"), "the address must not be sent");
    // From here on the server fails, and the error body is not fetched as the file.
    let error = client.submit(&graph()).await.expect_err("500");
    let text = error.to_string();
    assert!(
        text.contains("artifact `model`") && text.contains("500"),
        "{text}"
    );
    assert_eq!(cluster.requests().len(), 1, "nothing was submitted");
}

#[tokio::test]
async fn a_file_under_two_names_is_uploaded_once() {
    let uploaded = r#"{"object":"the-only-object","pieces":1,"size":7}"#;
    let accepted = format!(r#"{{"jobid":"{}","jobUrl":"x"}}"#, job());
    let script = [
        Step::Answer(201, uploaded.to_owned()),
        Step::Answer(202, accepted),
    ];
    let cluster = Scripted::server(script).await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "content").expect("written");
    let artifact = |name: &str| Artifact {
        name: name.to_owned(),
        sha256: vec![7; 32].into(),
        local_path: file.path().to_string_lossy().into_owned(),
        ..Artifact::default()
    };
    let graph = JobGraph {
        job_id: job().to_string(),
        artifacts: vec![artifact("model"), artifact("same")],
        ..JobGraph::default()
    };
    let submitted = client(&[&cluster.address]).submit(&graph).await;
    assert_eq!(submitted.expect("accepted").job, job());
    let sent = cluster.requests();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert!(sent[0].starts_with("PUT ") && sent[0].contains("content"));
    assert_eq!(sent[1].matches("the-only-object").count(), 2, "{}", sent[1]);
}

#[tokio::test(start_paused = true)]
async fn an_upload_waits_for_its_turn_as_long_as_that_takes() {
    let (pause, reason) = (Duration::from_millis(100), "others are taken");
    let busy = std::iter::repeat_with(|| Step::Busy(pause, reason));
    let uploaded = r#"{"object":"an-object","pieces":1,"size":7}"#;
    let accepted = format!(r#"{{"jobid":"{}","jobUrl":"x"}}"#, job());
    let taken = [
        Step::Answer(201, uploaded.to_owned()),
        Step::Answer(202, accepted),
    ];
    // Longer than all other timeouts.
    let cluster = Scripted::server(busy.take(1000).chain(taken)).await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "content").expect("written");
    let graph = JobGraph {
        job_id: job().to_string(),
        artifacts: vec![Artifact {
            name: "model".to_owned(),
            sha256: vec![7; 32].into(),
            local_path: file.path().to_string_lossy().into_owned(),
            ..Artifact::default()
        }],
        ..JobGraph::default()
    };
    let client = client(&[&cluster.address]);
    let mut waits = client.waits();
    let told = async {
        let told = waits.wait_for(Option::is_some).await;
        told.expect("the client lives").clone()
    };
    let (submitted, told) = tokio::join!(client.submit(&graph), told);
    assert_eq!(submitted.expect("accepted").job, job());
    assert_eq!(told.as_deref(), Some(reason));
    assert_eq!(*client.waits().borrow(), None, "it waits no longer");
}

#[tokio::test]
async fn when_the_time_is_up_the_last_failure_is_told() {
    let dead = nobody().await;
    let addresses = StaticAddresses(vec![dead.clone()]);
    let client = client_of(addresses, Duration::from_millis(50));
    let error = client.list().await.expect_err("no server is there");
    let text = error.to_string();
    assert!(matches!(error, ClientError::Unreachable { .. }));
    assert!(
        text.contains(&dead) && text.contains("refused"),
        "where and why: {text}"
    );
}

#[tokio::test]
async fn a_submission_that_no_jobmanager_can_have_got_is_known_as_such() {
    let graph = JobGraph {
        job_id: job().to_string(),
        ..JobGraph::default()
    };
    let dead = nobody().await;
    let unheard = client_of(StaticAddresses(vec![dead]), Duration::from_millis(50));
    let error = unheard
        .submit(&graph)
        .await
        .expect_err("no server is there");
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    assert!(!unheard.may_have_submitted());
    let server = Scripted::server((0..1_000).map(|_| Step::Lose)).await;
    let addresses = StaticAddresses(vec![server.address.clone()]);
    let cut_off = client_of(addresses, Duration::from_secs(1));
    let error = cut_off.submit(&graph).await.expect_err("no answer");
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    assert!(cut_off.may_have_submitted());
}

#[tokio::test]
async fn a_server_that_refuses_in_words_of_its_own_is_named_with_what_it_was_asked_for() {
    let page = "<h1>Not Found</h1>".to_owned();
    let server = Scripted::server([Step::Answer(404, page)]).await;
    let listed = client(&[&server.address]).list().await;
    let error = listed.expect_err("no JobManager").to_string();
    let path = "/v1/jobs/overview";
    for said in [
        &*server.address,
        "does not answer as a JobManager",
        path,
        "404",
    ] {
        assert!(error.contains(said), "{said} is not in: {error}");
    }
}

#[tokio::test]
async fn what_a_client_waits_for_is_told_once_while_nobody_leads() {
    let (store, leaders) = watch::channel(LeaderView::default());
    let client = client_of(FollowedLeader(leaders), Duration::from_secs(30));
    let mut waits = client.waits();
    let told = async {
        let told = waits.wait_for(Option::is_some).await;
        told.expect("the client lives").clone()
    };
    tokio::select! {
        answer = client.status(job()) => panic!("no server can answer: {answer:?}"),
        told = told => assert_eq!(told.as_deref(), Some("no leader is known")),
    }
    drop(store);
}

#[tokio::test]
async fn an_answer_that_is_none_of_ours_is_told_as_such() {
    let server = Scripted::server([Step::Answer(200, "<html>".to_owned())]).await;
    let error = client(&[&server.address])
        .list()
        .await
        .expect_err("no list");
    assert!(
        matches!(&error, ClientError::BadAnswer { address, .. } if *address == server.address),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_job_is_waited_for_until_it_has_ended() {
    let info = |state: &str| {
        let body = format!(
            r#"{{"jid":"{}","name":"count","state":"{state}","start-time":1,"end-time":-1,
                "duration":5,"vertices":[{{"id":"a","name":"b","parallelism":2,"status":"RUNNING",
                "tasks":{{"RUNNING":1,"FINISHED":1,"CREATED":0}},
                "metrics":{{"read-records":1,"write-records":9}}}}]}}"#,
            job()
        );
        Step::Answer(200, body)
    };
    let script = [
        info("CREATED"),
        unavailable(),
        info("RUNNING"),
        info("FAILED"),
    ];
    let server = Scripted::server(script).await;
    let mut states = Vec::new();
    let ended = client(&[&server.address])
        .wait_for_end(job(), |info| states.push(info.state))
        .await
        .expect("it ends");
    assert_eq!(
        states,
        [JobStatus::Created, JobStatus::Running, JobStatus::Failed]
    );
    assert_eq!(ended.parallelism(), 2);
    assert_eq!(
        (ended.running(), ended.finished(), ended.records()),
        (1, 1, 9)
    );
}

#[tokio::test]
async fn a_followed_leader_is_asked_where_the_store_says_that_it_is() {
    let server = Scripted::server([status("RUNNING")]).await;
    let (store, leaders) = watch::channel(LeaderView::default());
    let client = client_of(FollowedLeader(leaders), Duration::from_secs(20));
    let asking = client.status(job());
    let (answer, ()) = tokio::join!(asking, async {
        let leader = LeaderInformation {
            epoch: Epoch::new(1),
            process: ProcessId::new("jm"),
            addresses: [("rest".to_owned(), server.address.clone())].into(),
            since_ms: 0,
        };
        store.send_replace(LeaderView {
            leader: Some(leader),
            ..LeaderView::default()
        });
    });
    assert_eq!(answer, Ok(JobStatus::Running));
}

/// A client for a command that reads.
fn reading(addresses: &[&str], timeout: Duration) -> JobClient {
    let addresses = addresses.iter().map(ToString::to_string).collect();
    let options = RetryOptions {
        timeout,
        retry_period: Duration::from_millis(1),
        reach_timeout: Some(Duration::from_millis(50)),
        ..RetryOptions::default()
    };
    let finder = Arc::new(StaticAddresses(addresses));
    JobClient::new(RestClient::new(finder, options))
}

#[tokio::test]
async fn a_read_without_a_cluster_ends_soon_and_says_at_once_that_nobody_listens() {
    let client = reading(&[&nobody().await], Duration::from_secs(600));
    let waits = client.waits();
    let error = client.list().await.expect_err("no server listens");
    let ClientError::Unreachable { waited, last } = error else {
        panic!("{error}")
    };
    assert_eq!(waited, Duration::from_millis(50));
    assert!(last.contains("refused"), "{last}");
    let told = waits.borrow().clone();
    assert!(told.is_some_and(|told| told.contains("refused")));
}

#[tokio::test]
async fn a_read_goes_on_while_a_job_manager_takes_connections_and_so_does_what_changes_something() {
    let mut script: Vec<Step> = (0..100).map(|_| unavailable()).collect();
    script.push(status("RUNNING"));
    let server = Scripted::server(script).await;
    let client = reading(&[server.address.as_str()], Duration::from_secs(60));
    assert_eq!(client.status(job()).await, Ok(JobStatus::Running));

    let client = reading(&[&nobody().await], Duration::from_millis(200));
    let error = client.cancel(job()).await.expect_err("no server listens");
    let whole = Duration::from_millis(200);
    assert!(
        matches!(error, ClientError::Unreachable { waited, .. } if waited == whole),
        "{error}"
    );
}

/// The body of a request, as JSON.
fn body_of(request: &str) -> serde_json::Value {
    let (_, body) = request.split_once("\r\n\r\n").expect("a whole request");
    serde_json::from_str(body).expect("a JSON body")
}

#[tokio::test]
async fn a_savepoint_is_asked_for_with_one_id_and_waited_for() {
    let trigger = "7".repeat(32);
    let accepted = format!(r#"{{"request-id":"{trigger}"}}"#);
    let in_progress = r#"{"status":{"id":"IN_PROGRESS"},"waits-for":"lines does not run"}"#;
    let completed = r#"{"status":{"id":"COMPLETED"},"operation":{"location":"/savepoints/a"}}"#;
    let server = Scripted::server([
        Step::Lose,
        Step::Answer(202, accepted.clone()),
        Step::Answer(200, in_progress.to_owned()),
        Step::Answer(200, completed.to_owned()),
    ])
    .await;
    let client = client(&[&server.address]);
    let id = client.trigger_savepoint(job(), Some("/savepoints")).await;
    assert_eq!(id.as_deref(), Ok(&*trigger));
    let mut seen = Vec::new();
    let taken = client.wait_for_savepoint(job(), &trigger, |awaited| {
        seen.push(awaited.map(str::to_owned));
    });
    assert_eq!(taken.await.as_deref(), Ok("/savepoints/a"));
    assert_eq!(seen, [Some("lines does not run".to_owned())]);
    let requests = server.requests();
    let [lost, repeated, first, _] = &requests[..] else {
        panic!("{requests:?}")
    };
    assert_eq!(body_of(lost), body_of(repeated));
    assert_eq!(body_of(lost)["target-directory"], "/savepoints");
    let chosen = body_of(lost)["triggerId"].as_str().map(str::len);
    assert_eq!(chosen, Some(32));
    let path = format!("GET /v1/jobs/{}/savepoints/{trigger} ", job());
    assert!(first.starts_with(&path), "{first}");
}

#[tokio::test]
async fn why_there_is_no_savepoint_is_told() {
    let failed = r#"{"status":{"id":"COMPLETED"},"operation":{"failure-cause":{"class":"c","stack-trace":"no space"}}}"#;
    let refused = r#"{"errors":["the job has ended"]}"#;
    let server = Scripted::server([
        Step::Answer(200, failed.to_owned()),
        Step::Answer(409, refused.to_owned()),
    ])
    .await;
    let client = client(&[&server.address]);
    let reason = "no space".to_owned();
    assert_eq!(
        client.wait_for_savepoint(job(), "7", |_| {}).await,
        Err(SavepointFailure::Failed { reason })
    );
    let error = client.stop_with_savepoint(job(), None).await;
    let error = error.expect_err("the job has ended").to_string();
    assert_eq!(error, "the job has ended");
    let requests = server.requests();
    let body = body_of(&requests[1]);
    assert_eq!(body["drain"], false);
    assert!(body.get("targetDirectory").is_none(), "{body}");
}

#[tokio::test]
async fn a_stop_without_a_savepoint_says_so() {
    let server = Scripted::server([Step::Answer(202, r#"{"request-id":"7"}"#.to_owned())]).await;
    let client = client(&[&server.address]);
    assert_eq!(client.stop(job()).await, Ok(()));
    let body = body_of(&server.requests()[0]);
    assert_eq!(body, serde_json::json!({"drain": true}));
}

#[tokio::test]
async fn what_a_job_begins_from_is_part_of_its_submission() {
    let answer = format!(r#"{{"jobid":"{}"}}"#, job());
    let server = Scripted::server([Step::Answer(202, answer)]).await;
    let client = client(&[&server.address]);
    let graph = JobGraph {
        job_id: job().to_string(),
        ..JobGraph::default()
    };
    let from = "/savepoints/a".parse().expect("a path");
    let restore = Restore::new(from).allowing_non_restored_state(true);
    let submitted = client.submit_from(&graph, "token", Some(&restore)).await;
    submitted.expect("it is accepted");
    let request = server.requests().remove(0);
    let line = "POST /v1/jobs?savepoint-path=/savepoints/a&allow-non-restored-state=true ";
    assert!(request.starts_with(line), "{request}");
}

#[tokio::test]
async fn a_job_that_names_nothing_begins_as_the_configuration_says() {
    let accepted = format!(r#"{{"jobid":"{}","jobUrl":"x","repeated":false}}"#, job());
    let script = [
        Step::Answer(202, accepted.clone()),
        Step::Answer(202, accepted),
    ];
    let server = Scripted::server(script).await;
    let load = tanist_config::LoadOptions::default()
        .with("execution.state-recovery.path", "/configured")
        .with("execution.state-recovery.ignore-unclaimed-state", "true");
    let configuration = Configuration::load(load).expect("valid");
    let addresses = [server.address.clone()];
    let cluster = ClusterClient::connect_to(&configuration, &addresses).await;
    let cluster = cluster.expect("no store is needed");
    let numbers = || {
        let steps = tanist_compile::JobBuilder::new("numbers");
        let steps = steps.datagen("numbers", None, Some(1), 1, 1);
        Job::from(steps.discard("out").build())
    };
    let named = Restore::new("/named".parse().expect("a path"));
    for job in [numbers(), numbers().beginning_from(named)] {
        cluster.execute_async(job).await.expect("accepted");
    }
    let requests = server.requests();
    for (request, query) in requests.iter().zip([
        "savepoint-path=/configured&allow-non-restored-state=true",
        "savepoint-path=/named&allow-non-restored-state=false",
    ]) {
        let line = format!("POST /v1/jobs?{query} ");
        assert!(request.starts_with(&line), "{request}");
    }
}

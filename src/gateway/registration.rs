//! Registration of one component at another: repeats attempts until an answer is definite.
//!
//! Used for every connection. Each attempt builds its message again, with its own registration number and a
//! current report. An attempt has a timeout, which doubles each time; after an error or a refusal there is a
//! delay. The caller's wake-up ends a delay at once. It also ends an attempt that takes longer than the first
//! timeout, whose message may have been lost long ago. The future is cancelled by dropping it; a late answer is
//! dropped with it.
//!
//! The first timeout is long, because a message on an open connection does not get lost: it waits, and the message of
//! the next attempt would wait behind it. An attempt that is given up while the other side processes it leaves a
//! registration there that this side does not know of.
//!
//! Registrations are numbered. The other side accepts none at or below the highest number that it has seen, and
//! returns that number; the caller's next attempt, which follows at once, must have a higher one.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use rand::Rng as _;
use tanist_proto::v1 as pb;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{GatewayError, GatewayResult};

/// Timeouts of attempts and delays between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrationOptions {
    /// `cluster.registration.initial-timeout`: timeout of the first attempt.
    pub initial_timeout: Duration,
    /// `cluster.registration.max-timeout`: maximum timeout.
    pub max_timeout: Duration,
    /// `cluster.registration.error-delay`: maximum delay after errors, which doubles up to this.
    pub error_delay: Duration,
    /// `cluster.registration.refused-registration-delay`: delay after a refusal.
    pub refused_delay: Duration,
}

impl Default for RegistrationOptions {
    fn default() -> RegistrationOptions {
        RegistrationOptions {
            initial_timeout: Duration::from_secs(10),
            max_timeout: Duration::from_secs(30),
            error_delay: Duration::from_secs(10),
            refused_delay: Duration::from_secs(30),
        }
    }
}

/// First delay after an error.
const FIRST_DELAY: Duration = Duration::from_millis(100);

/// Maximum delay after the answer "not yet".
const NOT_YET_DELAY: Duration = Duration::from_secs(1);

/// Answer to an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer<S> {
    /// Registered.
    Success(S),
    /// Refused this time.
    Failure(String),
    /// The number is too low: registrations up to `highest` were seen.
    TooLow {
        /// Highest number that was seen.
        highest: u64,
    },
    /// Rejected permanently.
    Rejection(String),
}

impl Answer<pb::RegistrationSuccess> {
    /// Reads the answer from the message.
    pub fn from_message(message: pb::RegistrationResponse) -> GatewayResult<Self> {
        use pb::registration_response::Answer as Message;
        match message.answer {
            Some(Message::Success(success)) => Ok(Answer::Success(success)),
            Some(Message::Failure(failure)) => Ok(match failure.highest_registration {
                0 => Answer::Failure(failure.reason),
                highest => Answer::TooLow { highest },
            }),
            Some(Message::Rejection(rejection)) => Ok(Answer::Rejection(rejection.reason)),
            None => Err(GatewayError::Invalid(
                "the answer to the registration is empty".to_owned(),
            )),
        }
    }

    /// Returns the answer as a message of a process of this cluster incarnation.
    pub fn into_message(self, cluster_incarnation: &str) -> pb::RegistrationResponse {
        use pb::registration_response::Answer as Message;
        let answer = match self {
            Answer::Success(success) => Message::Success(success),
            Answer::Failure(reason) => Message::Failure(pb::RegistrationFailure {
                reason,
                highest_registration: 0,
            }),
            Answer::TooLow { highest } => Message::Failure(pb::RegistrationFailure {
                reason: format!("a registration with number {highest} was seen before"),
                highest_registration: highest,
            }),
            Answer::Rejection(reason) => Message::Rejection(pb::RegistrationRejection { reason }),
        };
        pb::RegistrationResponse {
            answer: Some(answer),
            cluster_incarnation: cluster_incarnation.to_owned(),
        }
    }
}

impl<S> Answer<S> {
    /// Converts the value of a success.
    pub fn map<T>(self, change: impl FnOnce(S) -> T) -> Answer<T> {
        match self {
            Answer::Success(success) => Answer::Success(change(success)),
            Answer::Failure(reason) => Answer::Failure(reason),
            Answer::TooLow { highest } => Answer::TooLow { highest },
            Answer::Rejection(reason) => Answer::Rejection(reason),
        }
    }
}

/// Outcome of a registration.
#[derive(Debug, Clone, PartialEq)]
pub enum Registered<S> {
    /// Registered.
    Success(S),
    /// The other side will never accept this one.
    Rejected(String),
}

/// Refuses an answer of another cluster: the address now belongs to a process of that cluster, whose answers
/// say nothing about this cluster or its jobs.
pub fn check_cluster(
    response: &pb::RegistrationResponse,
    asked: Option<&pb::Sender>,
    target: &str,
) -> GatewayResult<()> {
    let ours = asked.map_or("", |sender| sender.cluster_incarnation.as_str());
    let theirs = response.cluster_incarnation.as_str();
    if theirs == ours {
        return Ok(());
    }
    tracing::warn!(
        target_address = target,
        ours,
        theirs,
        "a process of another cluster listens at the leader's address"
    );
    Err(GatewayError::Unreachable {
        target: target.to_owned(),
        reason: format!("a process of cluster incarnation {theirs} listens there"),
    })
}

/// Repeats attempts until the answer is definite. `wake` ends a delay at once, including the delay after the
/// attempt in progress. It also resets the timeouts to the first one, including that of the attempt in
/// progress.
pub async fn register<S, F>(
    options: &RegistrationOptions,
    target: &str,
    wake: &Notify,
    mut attempt: impl FnMut() -> F,
) -> Registered<S>
where
    F: Future<Output = GatewayResult<Answer<S>>>,
{
    let mut timeout = options.initial_timeout;
    let mut error_delay = FIRST_DELAY.min(options.error_delay);
    let mut was_too_low = false;
    loop {
        let mut is_woken = false;
        let answered = {
            let begun = Instant::now();
            let mut until = begun + timeout;
            let mut attempt = pin!(attempt());
            loop {
                tokio::select! {
                    biased;
                    answer = &mut attempt => break Ok(answer),
                    () = tokio::time::sleep_until(until) => break Err(Elapsed),
                    () = wake.notified() => {
                        is_woken = true;
                        timeout = options.initial_timeout;
                        error_delay = FIRST_DELAY.min(options.error_delay);
                        until = until.min(begun + timeout);
                    }
                }
            }
        };
        // The order of the two arms for `TooLow` matters: the first one takes the first such answer.
        let delay = match answered {
            Ok(Ok(Answer::Success(success))) => return Registered::Success(success),
            Ok(Ok(Answer::Rejection(reason))) => return Registered::Rejected(reason),
            Ok(Ok(Answer::Failure(reason))) => {
                tracing::info!(
                    target_address = target,
                    reason,
                    "the registration was refused"
                );
                options.refused_delay
            }
            Ok(Ok(Answer::TooLow { highest })) if !std::mem::replace(&mut was_too_low, true) => {
                tracing::info!(
                    target_address = target,
                    highest,
                    "the registration's number is too low: retrying with a higher one"
                );
                Duration::ZERO
            }
            // The number was above the last one that was seen, so another process has the same id.
            Ok(Ok(Answer::TooLow { highest })) => {
                tracing::warn!(
                    target_address = target,
                    highest,
                    "the registration's number is too low again: check that no other process has this id"
                );
                let delay = error_delay;
                error_delay = error_delay.saturating_mul(2).min(options.error_delay);
                delay
            }
            Ok(Err(error)) => {
                tracing::debug!(target_address = target, %error, "registration failed");
                // A recovering leader is ready soon: backoff must not lengthen a takeover. `NotFound` may come
                // from any process that listens there, so it is not definite.
                let is_soon = matches!(error, GatewayError::NotYet(_) | GatewayError::NotFound(_));
                let delay = if is_soon {
                    error_delay.min(NOT_YET_DELAY)
                } else {
                    error_delay
                };
                error_delay = error_delay.saturating_mul(2).min(options.error_delay);
                delay
            }
            Err(Elapsed) => {
                tracing::debug!(
                    target_address = target,
                    ?timeout,
                    "the registration was not answered"
                );
                if !is_woken {
                    timeout = timeout.saturating_mul(2).min(options.max_timeout);
                }
                Duration::ZERO
            }
        };
        if delay.is_zero() || is_woken {
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(jittered(delay)) => {}
            () = wake.notified() => {
                timeout = options.initial_timeout;
                error_delay = FIRST_DELAY.min(options.error_delay);
            }
        }
    }
}

/// Timeout of an attempt.
struct Elapsed;

/// Returns 75 to 100 % of `delay`, so that many processes that lost the same target do not return at the same moment.
fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(rand::rng().random_range(0.75..=1.0))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn short_timeouts() -> RegistrationOptions {
        RegistrationOptions {
            initial_timeout: Duration::from_millis(100),
            ..RegistrationOptions::default()
        }
    }

    /// Registers against scripted answers (`None`: never answered). Returns the outcome and the start time of
    /// each attempt.
    async fn run(
        script: Vec<Option<GatewayResult<Answer<u8>>>>,
        wake: &Notify,
    ) -> (Registered<u8>, Vec<Duration>) {
        let start = Instant::now();
        let begun = RefCell::new(Vec::new());
        let script = RefCell::new(script.into_iter());
        let attempt = || {
            begun.borrow_mut().push(start.elapsed());
            let next = script
                .borrow_mut()
                .next()
                .expect("no more attempts than scripted");
            async move {
                match next {
                    Some(answer) => answer,
                    None => std::future::pending().await,
                }
            }
        };
        let result = register(&short_timeouts(), "rm", wake, attempt).await;
        let begun = begun.borrow().clone();
        (result, begun)
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_without_answer_is_followed_at_once_by_one_with_twice_the_time() {
        let script = vec![None, None, None, Some(Ok(Answer::Success(7)))];
        let (result, begun) = run(script, &Notify::new()).await;
        assert_eq!(result, Registered::Success(7));
        assert_eq!(
            begun.iter().map(Duration::as_millis).collect::<Vec<_>>(),
            [0, 100, 300, 700]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_tried_again_after_its_delay_and_a_rejection_is_not() {
        let script = vec![
            Some(Ok(Answer::Failure("busy".to_owned()))),
            Some(Ok(Answer::Rejection("wrong cluster".to_owned()))),
        ];
        let (result, begun) = run(script, &Notify::new()).await;
        assert_eq!(result, Registered::Rejected("wrong cluster".to_owned()));
        assert!((22..=30).contains(&begun[1].as_secs()), "{begun:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_number_that_was_too_low_is_followed_by_the_next_at_once_but_not_for_ever() {
        let too_low = || Some(Ok(Answer::TooLow { highest: 9 }));
        let script = vec![too_low(), too_low(), Some(Ok(Answer::Success(1)))];
        let (result, begun) = run(script, &Notify::new()).await;
        assert_eq!(result, Registered::Success(1));
        assert_eq!(begun[1], Duration::ZERO);
        assert!(begun[2] >= Duration::from_millis(75), "{begun:?}");
    }

    #[test]
    fn an_answer_is_the_same_after_its_way_as_a_message() {
        for answer in [
            Answer::Success(pb::RegistrationSuccess::default()),
            Answer::Failure("busy".to_owned()),
            Answer::TooLow { highest: 7 },
            Answer::Rejection("wrong cluster".to_owned()),
        ] {
            assert_eq!(
                Answer::from_message(answer.clone().into_message("c1")),
                Ok(answer)
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn delays_after_errors_grow_from_a_small_one() {
        let error = || Some(Err(GatewayError::gone("rm")));
        let script = vec![error(), error(), error(), Some(Ok(Answer::Success(1)))];
        let (_, begun) = run(script, &Notify::new()).await;
        assert!(begun[1] <= Duration::from_millis(100), "{begun:?}");
        assert!(begun[3] >= Duration::from_millis(500), "{begun:?}");
        assert!(begun[3] <= Duration::from_millis(700), "{begun:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_not_ready_yet_is_asked_at_least_once_a_second() {
        let not_yet = || Some(Err(GatewayError::NotYet("recovering".to_owned())));
        let mut script: Vec<_> = (0..20).map(|_| not_yet()).collect();
        script.push(Some(Ok(Answer::Success(1))));
        let (_, begun) = run(script, &Notify::new()).await;
        let longest = begun.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(longest <= Some(Duration::from_secs(1)), "{begun:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn that_there_is_nobody_to_register_at_is_no_answer() {
        let missing = || Some(Err(GatewayError::NotFound("no such job".to_owned())));
        let script = vec![missing(), missing(), Some(Ok(Answer::Success(1)))];
        let (result, begun) = run(script, &Notify::new()).await;
        assert_eq!(result, Registered::Success(1));
        assert!(begun[2] <= Duration::from_millis(300), "{begun:?}");
    }

    #[test]
    fn only_an_answer_of_the_cluster_that_was_asked_counts() {
        let asked = pb::Sender {
            cluster_incarnation: "c1".to_owned(),
            ..pb::Sender::default()
        };
        let rejection = Answer::<pb::RegistrationSuccess>::Rejection("no".to_owned());
        for (theirs, counts) in [("c1", true), ("", false), ("c2", false)] {
            let response = rejection.clone().into_message(theirs);
            let checked = check_cluster(&response, Some(&asked), "jm:1");
            assert_eq!(checked.is_ok(), counts, "{theirs:?}: {checked:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_registration_in_its_delay_is_woken() {
        let script = vec![
            Some(Ok(Answer::Failure("busy".to_owned()))),
            Some(Ok(Answer::Success(1))),
        ];
        let wake = Notify::new();
        let ring = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            wake.notify_waiters();
        };
        let ((result, begun), ()) = tokio::join!(run(script, &wake), ring);
        assert_eq!(result, Registered::Success(1));
        assert_eq!(begun[1], Duration::from_millis(5));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_was_lost_is_given_up_when_it_is_woken() {
        let lost = std::iter::repeat_n(None, 9);
        let script = lost.chain([Some(Ok(Answer::Success(1)))]).collect();
        let wake = Notify::new();
        let ring = async {
            // In the middle of the ninth attempt, whose timeout is 25.6 s.
            tokio::time::sleep(Duration::from_secs(30)).await;
            wake.notify_one();
        };
        let ((result, begun), ()) = tokio::join!(run(script, &wake), ring);
        assert_eq!(result, Registered::Success(1));
        assert_eq!(begun[9], Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_is_woken_keeps_the_time_of_a_first_one() {
        let wake = Notify::new();
        let asked = RefCell::new(0);
        let attempt = || {
            *asked.borrow_mut() += 1;
            async {
                tokio::time::sleep(Duration::from_millis(90)).await;
                Ok(Answer::Success(1))
            }
        };
        let ring = async {
            for _ in 0..8 {
                tokio::time::sleep(Duration::from_millis(10)).await;
                wake.notify_one();
            }
        };
        let options = short_timeouts();
        let (result, ()) = tokio::join!(register(&options, "rm", &wake, attempt), ring);
        assert_eq!(result, Registered::Success(1));
        assert_eq!(*asked.borrow(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_takes_seconds_is_waited_for_whoever_wakes_it() {
        let wake = Notify::new();
        let asked = RefCell::new(0);
        let attempt = || {
            *asked.borrow_mut() += 1;
            async {
                tokio::time::sleep(Duration::from_secs(8)).await;
                Ok(Answer::Success(1))
            }
        };
        let ring = async {
            for _ in 0..70 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                wake.notify_one();
            }
        };
        let options = RegistrationOptions::default();
        let (result, ()) = tokio::join!(register(&options, "rm", &wake, attempt), ring);
        assert_eq!(result, Registered::Success(1));
        assert_eq!(*asked.borrow(), 1);
    }
}

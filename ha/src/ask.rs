//! Requests to an actor: sends a message with a reply channel to the actor's mailbox, and waits for the
//! answer.
//!
//! A message that is sent while the receiver drops the mailbox may stay in the channel unread until the last
//! sender is gone: the receiver drains the messages that are there, but does not wait for one that is being
//! sent. A caller that holds a sender and waits only for the answer would wait forever. So the end of the
//! mailbox also ends the wait.

use tokio::sync::{mpsc, oneshot};

/// The reason why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// The mailbox was already closed: no actor has read the message.
    NotSent,
    /// The actor has ended, or dropped the message without an answer. It may have read the message.
    Ended,
}

/// Sends the message that `message` builds from the reply channel, and waits for the answer. The actor
/// answers before it closes the mailbox, or never.
pub async fn ask<M, T>(
    mailbox: &mpsc::Sender<M>,
    message: impl FnOnce(oneshot::Sender<T>) -> M,
) -> Result<T, Unanswered> {
    let (reply, mut answer) = oneshot::channel();
    let sent = mailbox.send(message(reply)).await;
    sent.map_err(|_| Unanswered::NotSent)?;
    // An actor may answer and end before this task runs again: then both are ready, and the answer counts. If the
    // actor answers after the first branch was polled, the second branch reads the answer.
    tokio::select! {
        biased;
        answered = &mut answer => answered.map_err(|_| Unanswered::Ended),
        () = mailbox.closed() => answer.try_recv().map_err(|_| Unanswered::Ended),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};
    use std::{hint, thread};

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn an_answer_arrives_also_from_an_actor_that_ends_with_it() {
        let (mailbox, mut messages) = mpsc::channel::<oneshot::Sender<u8>>(1);
        tokio::spawn(async move {
            let reply = messages.recv().await.expect("asked");
            reply.send(7).expect("waited for");
        });
        assert_eq!(ask(&mailbox, |reply| reply).await, Ok(7));
        mailbox.closed().await;
        assert_eq!(ask(&mailbox, |reply| reply).await, Err(Unanswered::NotSent));
    }

    #[tokio::test]
    async fn an_actor_that_reads_a_message_and_drops_it_counts_as_ended() {
        let (mailbox, mut messages) = mpsc::channel::<oneshot::Sender<u8>>(1);
        tokio::spawn(async move {
            drop(messages.recv().await);
            std::future::pending::<()>().await;
        });
        assert_eq!(ask(&mailbox, |reply| reply).await, Err(Unanswered::Ended));
    }

    /// A thread drops the mailbox while messages are sent to it. A request unanswered by then is never
    /// answered.
    #[test]
    fn no_request_waits_for_an_actor_that_ends_meanwhile() {
        for round in 0..500 {
            let (mailbox, messages) = mpsc::channel::<oneshot::Sender<u8>>(10_000);
            let start = Arc::new(Barrier::new(2));
            let ending = {
                let start = start.clone();
                thread::spawn(move || {
                    start.wait();
                    for _ in 0..(round % 50) * 20 {
                        hint::spin_loop();
                    }
                    drop(messages);
                })
            };
            start.wait();
            let mut asked = Vec::new();
            while asked.len() < 10_000 {
                let mut asking = Box::pin(ask(&mailbox, |reply| reply));
                match (&mut asking).now_or_never() {
                    None => asked.push(asking),
                    Some(answer) => {
                        answer.expect_err("it never answers");
                        break;
                    }
                }
            }
            ending.join().expect("it ends");
            for asking in asked {
                let answer = asking.now_or_never();
                assert_eq!(answer, Some(Err(Unanswered::Ended)), "round {round}");
            }
        }
    }
}

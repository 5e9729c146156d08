//! Asking an actor: a message with a place for its answer goes into the actor's mailbox, and the answer is waited for.
//!
//! A message that is sent just while the mailbox is dropped may stay in the channel, read by nobody, for as long as there is a sender: the
//! receiver drains what is there, and does not wait for what is being put there. Whoever waited for the answer alone, and had a sender, would
//! wait for ever. So the mailbox's end ends the waiting too.

use tokio::sync::{mpsc, oneshot};

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// There was no mailbox any more: nobody has read the message.
    NotSent,
    /// The actor has ended, or does not answer. It may have read the message.
    Ended,
}

/// Sends what `message` makes of the place for the answer, and waits for the answer, which is sent before the mailbox is closed or never.
pub async fn ask<M, T>(
    mailbox: &mpsc::Sender<M>,
    message: impl FnOnce(oneshot::Sender<T>) -> M,
) -> Result<T, Unanswered> {
    let (reply, mut answer) = oneshot::channel();
    let sent = mailbox.send(message(reply)).await;
    sent.map_err(|_| Unanswered::NotSent)?;
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
    async fn who_has_read_a_message_and_does_not_answer_it_has_ended() {
        let (mailbox, mut messages) = mpsc::channel::<oneshot::Sender<u8>>(1);
        tokio::spawn(async move {
            drop(messages.recv().await);
            std::future::pending::<()>().await;
        });
        assert_eq!(ask(&mailbox, |reply| reply).await, Err(Unanswered::Ended));
    }

    /// A thread drops the mailbox while messages are put into it. What is not answered then never is.
    #[test]
    fn nobody_waits_for_an_actor_that_ended_while_it_was_asked() {
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

//! Waits for the operators of a chain that emit without input.
//!
//! They are polled from the last to the first, and one emits only while all behind it have room. So a program
//! that does not read its input, or a server that does not accept lines, holds back the operator before it, and
//! finally the task's input.

use std::future::{pending, poll_fn};
use std::task::{Context, Poll};

use super::chain::Chain;
use super::error::TaskError;
use crate::operator::{ExternalStatus, Output};

/// What the task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// All operators accept another batch, or the chain emitted something.
    Room,
    /// An operator emitted something without input, within the chain or out of it.
    Emission,
    /// The operator with this index is done, or the chain emitted something.
    DoneBy(usize),
}

/// Waits, and returns what the chain emitted; empty if the condition came first. Cancel-safe: nothing is lost.
pub(super) async fn wait(chain: &mut Chain, until: Until) -> Result<Output, TaskError> {
    loop {
        let room = chain.without_room();
        let is_full = room.is_some();
        let has_room = async {
            match &room {
                Some(room) => room.notified().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            polled = poll_fn(|cx| poll(chain, cx, until, is_full)) => {
                if let Some(emitted) = polled? {
                    return Ok(emitted);
                }
            }
            () = has_room => {}
        }
    }
}

/// Polls the operators so that they write what they hold, and lets none emit. Returns only an error of one of them.
pub(super) async fn write_on(chain: &mut Chain) -> TaskError {
    poll_fn(|cx| {
        // Empty: none of them may emit.
        let mut emitted = Output::default();
        for index in (0..chain.len()).rev() {
            if let Err(error) = chain.poll_external(index, cx, false, &mut emitted) {
                return Poll::Ready(error);
            }
        }
        Poll::Pending
    })
    .await
}

/// Polls the operators. `None`: an operator became full or got room again, so the caller must wait for another
/// signal.
fn poll(
    chain: &mut Chain,
    cx: &mut Context<'_>,
    until: Until,
    is_full: bool,
) -> Poll<Result<Option<Output>, TaskError>> {
    let mut emitted = Output::default();
    loop {
        if chain.without_room().is_some() != is_full {
            return Poll::Ready(Ok(None));
        }
        let (mut all_have_room, mut is_done, mut has_moved) = (!is_full, false, false);
        for index in (0..chain.len()).rev() {
            let polled = match chain.poll_external(index, cx, all_have_room, &mut emitted) {
                Ok(polled) => polled,
                Err(error) => return Poll::Ready(Err(error)),
            };
            let Some((status, has_emitted)) = polled else {
                continue;
            };
            all_have_room &= status != ExternalStatus::Full;
            has_moved |= has_emitted;
            is_done |= status == ExternalStatus::Done && until == Until::DoneBy(index);
        }
        let is_over = match until {
            Until::Room => all_have_room && !has_moved,
            Until::Emission => has_moved,
            Until::DoneBy(_) => is_done,
        };
        if is_over || !emitted.is_empty() {
            return Poll::Ready(Ok(Some(emitted)));
        }
        if !has_moved {
            return Poll::Pending;
        }
        // An operator emitted to a later one, which must be polled again.
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use arrow_array::RecordBatch;
    use futures::FutureExt as _;
    use tokio::sync::Notify;

    use super::*;
    use crate::operator::{External, Operator, OperatorError};
    use crate::testing::texts;

    /// Emits this number of batches without input.
    struct Emitter(usize);

    impl External for Emitter {
        fn poll(
            &mut self,
            _cx: &mut Context<'_>,
            may_emit: bool,
            output: &mut Output,
        ) -> Result<ExternalStatus, OperatorError> {
            if may_emit && self.0 > 0 {
                self.0 -= 1;
                output.emit(texts("w", &["a"]));
            }
            Ok(if self.0 == 0 {
                ExternalStatus::Done
            } else {
                ExternalStatus::Room
            })
        }
    }

    impl Operator for Emitter {
        fn process(&mut self, _: RecordBatch, _: &mut Output) -> Result<(), OperatorError> {
            Ok(())
        }

        fn external(&mut self) -> Option<&mut dyn External> {
            Some(self)
        }
    }

    /// Has room for one batch.
    #[derive(Clone, Default)]
    struct Tank {
        held: Arc<AtomicUsize>,
        room: Arc<Notify>,
    }

    impl Operator for Tank {
        fn process(&mut self, _: RecordBatch, _: &mut Output) -> Result<(), OperatorError> {
            self.held.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn without_room(&self) -> Option<Arc<Notify>> {
            let is_full = self.held.load(Ordering::Relaxed) > 0;
            is_full.then(|| Arc::clone(&self.room))
        }
    }

    #[tokio::test]
    async fn who_emits_by_himself_waits_for_room_behind_him() {
        let tank = Tank::default();
        let mut chain = Chain::of(vec![Box::new(Emitter(3)), Box::new(tank.clone())]);
        let mut waiting = pin!(wait(&mut chain, Until::DoneBy(0)));
        for left in [2, 1, 0] {
            let ended = waiting.as_mut().now_or_never();
            assert_eq!(ended.is_some(), left == 0);
            assert_eq!(tank.held.swap(0, Ordering::Relaxed), 1);
            tank.room.notify_one();
        }
    }

    #[tokio::test]
    async fn there_is_room_when_the_last_has_some_again() {
        let tank = Tank::default();
        let mut chain = Chain::of(vec![Box::new(tank.clone())]);
        let mut room_in = |held: usize| {
            tank.held.store(held, Ordering::Relaxed);
            wait(&mut chain, Until::Room).now_or_never().is_some()
        };
        assert!(room_in(0));
        assert!(!room_in(1));
        assert!(room_in(0));
    }
}

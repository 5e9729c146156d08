//! Waits for the operators of a chain that work by themselves.
//!
//! They are looked at from the last to the first, and one emits only while all behind it have room: so a program that does not
//! read holds back the one before it, and in the end the task's input.

use std::future::poll_fn;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;

use super::chain::Chain;
use super::run::TaskError;
use crate::dataflow::operator::Standing;

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// All take another batch, or something came out of the chain.
    Room,
    /// Something came out of the chain.
    Emission,
    /// This operator has done all it will, or something came out of the chain.
    DoneBy(usize),
}

/// What came out of the chain; empty if what was waited for came first. Can be dropped at any moment: nothing is lost.
pub(super) async fn wait(chain: &mut Chain, until: Until) -> Result<Vec<RecordBatch>, TaskError> {
    poll_fn(|cx| poll(chain, cx, until)).await
}

fn poll(
    chain: &mut Chain,
    cx: &mut Context<'_>,
    until: Until,
) -> Poll<Result<Vec<RecordBatch>, TaskError>> {
    loop {
        let mut emitted = Vec::new();
        let (mut all_have_room, mut is_done, mut has_moved) = (true, false, false);
        for index in (0..chain.len()).rev() {
            let polled = match chain.poll_external(index, cx, all_have_room, &mut emitted) {
                Ok(polled) => polled,
                Err(error) => return Poll::Ready(Err(error)),
            };
            let Some((standing, has_emitted)) = polled else {
                continue;
            };
            all_have_room &= standing != Standing::Full;
            has_moved |= has_emitted;
            is_done |= standing == Standing::Done && until == Until::DoneBy(index);
        }
        let is_over = match until {
            Until::Room => all_have_room && !has_moved,
            Until::Emission => false,
            Until::DoneBy(_) => is_done,
        };
        if is_over || !emitted.is_empty() {
            return Poll::Ready(Ok(emitted));
        }
        if !has_moved {
            return Poll::Pending;
        }
        // What an operator emitted went into one behind it, which has to be looked at again.
    }
}

//! Gets the splits of a file source from its coordinator, one after the other. The next one is requested before the
//! current one is read to its end, so that a change of the leader does not delay reading. Without a leader a request
//! waits; an answer that can never come is an error of the source.

use std::task::{Context, Poll, Waker};

use tanist_dataflow::{CoordinatorLine, OperatorContext, OperatorError, PendingAnswer};
use tanist_proto::v1::ask_coordinator_response::Answer;

use super::file_source::FileRange;

/// The next split is requested when at most half of the current one is left, and at most this many bytes.
const AHEAD: u64 = 8 * 1024 * 1024;

/// What a subtask reads next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum More {
    /// These ranges, in order.
    Ranges(Vec<FileRange>),
    /// The next split is not known yet.
    NotYet,
    /// There are no more splits.
    Never,
}

/// What is known about the next split.
enum Next {
    /// It has not been requested.
    Unknown,
    Asked(PendingAnswer),
    Answered(Result<Answer, String>),
    /// There is none.
    Exhausted,
}

pub(super) struct Splits {
    line: CoordinatorLine,
    /// Number of the last request.
    asked: u64,
    next: Next,
    /// Bytes of the current split.
    present: u64,
}

impl Splits {
    pub(super) fn new(context: &OperatorContext) -> Result<Splits, OperatorError> {
        let line = context.coordinator.clone();
        let line = line.ok_or_else(|| {
            OperatorError::Coordinator("this process has no connection to it".to_owned())
        })?;
        Ok(Splits {
            line,
            asked: 0,
            next: Next::Unknown,
            present: 0,
        })
    }

    /// Number of the last request whose split [`Splits::next`] has returned. It is not that of the request which was
    /// answered that there are no more: the coordinator answers no request behind that one.
    pub(super) fn taken(&self) -> u64 {
        match self.next {
            Next::Unknown => self.asked,
            Next::Asked(_) | Next::Answered(_) | Next::Exhausted => self.asked.saturating_sub(1),
        }
    }

    /// Continues behind that request, with these bytes of its split left. The coordinator answers later requests as
    /// before.
    pub(super) fn continue_behind(&mut self, taken: u64, left: u64) {
        self.asked = taken;
        self.present = left;
    }

    /// Requests the next split if the `left` bytes of the current one are few enough.
    pub(super) fn ask_ahead(&mut self, left: u64) {
        if matches!(self.next, Next::Unknown) && left <= AHEAD.min(self.present / 2) {
            self.asked += 1;
            self.next = Next::Asked(self.line.ask(self.asked));
        }
    }

    /// Returns the next split, if it is known.
    pub(super) fn next(&mut self) -> Result<More, OperatorError> {
        self.ask_ahead(0);
        if self
            .poll_ready(&mut Context::from_waker(Waker::noop()))
            .is_pending()
        {
            return Ok(More::NotYet);
        }
        match std::mem::replace(&mut self.next, Next::Unknown) {
            Next::Answered(Ok(Answer::FileSplit(split))) => {
                let ranges: Vec<FileRange> =
                    split.ranges.into_iter().map(FileRange::from).collect();
                self.present = ranges.iter().map(|range| range.end - range.start).sum();
                Ok(More::Ranges(ranges))
            }
            Next::Answered(Ok(Answer::Exhausted(_))) | Next::Exhausted => {
                self.next = Next::Exhausted;
                Ok(More::Never)
            }
            Next::Answered(Err(why)) => Err(OperatorError::Coordinator(why)),
            next @ (Next::Unknown | Next::Asked(_)) => {
                self.next = next;
                Ok(More::NotYet)
            }
        }
    }

    /// Ready when [`Splits::next`] has a result.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Next::Asked(asking) = &mut self.next {
            match asking.poll(cx) {
                Poll::Ready(answer) => self.next = Next::Answered(answer),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

//! Pending requests to end another process's term: the caller that waits for each, and the reason. Owned by the
//! election's actor.
//!
//! Each request has a number, so that cancelling one leaves other and later ones alone. The store says whether a
//! term is over; nothing here decides that.

use std::fmt;

use tokio::sync::oneshot;

use crate::election::driver::Epoch;
use crate::election::takeover::Evidence;
use crate::error::{Error, Result};

/// The number of a depose request, unique in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeposeRequest(pub(super) u64);

impl fmt::Display for DeposeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Debug)]
struct Waiting {
    request: DeposeRequest,
    epoch: Epoch,
    evidence: Option<Evidence>,
    reply: oneshot::Sender<Result<Epoch>>,
}

/// Pending requests, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct DeposeRequests {
    waiting: Vec<Waiting>,
}

impl DeposeRequests {
    pub(super) fn add(
        &mut self,
        request: DeposeRequest,
        epoch: Epoch,
        evidence: Option<Evidence>,
        reply: oneshot::Sender<Result<Epoch>>,
    ) {
        self.waiting.push(Waiting {
            request,
            epoch,
            evidence,
            reply,
        });
    }

    /// Cancels a request. Returns its epoch if no other request for that term is left.
    pub(super) fn withdraw(&mut self, request: DeposeRequest) -> Option<Epoch> {
        let place = self.waiting.iter().position(|one| one.request == request)?;
        let Waiting { epoch, reply, .. } = self.waiting.remove(place);
        let text = "the depose request was cancelled";
        let _: Result<_, _> = reply.send(Err(Error::Misconfigured(text.into())));
        let wanted = self.waiting.iter().any(|one| one.epoch == epoch);
        (!wanted).then_some(epoch)
    }

    /// The evidence of the latest request to end the term of that epoch. The outer `None`: there is no
    /// request.
    pub(super) fn reason(&self, epoch: Epoch) -> Option<Option<&Evidence>> {
        let requests = self.waiting.iter().rev();
        let mut requests = requests.filter(|one| one.epoch == epoch);
        requests.next().map(|one| one.evidence.as_ref())
    }

    /// Answers the requests whose term is over.
    pub(super) fn answer(&mut self, highest: Epoch) {
        for one in self
            .waiting
            .extract_if(.., |waiting| highest > waiting.epoch)
        {
            let _ = one.reply.send(Ok(highest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancelling_a_request_leaves_later_ones_alone() {
        let mut requests = DeposeRequests::default();
        let epoch = Epoch::new(7);
        let (first, mut first_answer) = oneshot::channel();
        let (second, mut second_answer) = oneshot::channel();
        requests.add(DeposeRequest(1), epoch, None, first);
        requests.add(DeposeRequest(2), epoch, None, second);
        assert_eq!(
            requests.withdraw(DeposeRequest(1)),
            None,
            "the second is still there"
        );
        assert!(matches!(first_answer.try_recv(), Ok(Err(_))));
        assert_eq!(
            requests.withdraw(DeposeRequest(1)),
            None,
            "it is gone already"
        );
        assert!(second_answer.try_recv().is_err(), "it waits");
        assert!(requests.reason(epoch).is_some());
        assert_eq!(requests.withdraw(DeposeRequest(2)), Some(epoch));
        assert!(requests.reason(epoch).is_none());
    }

    #[test]
    fn those_whose_term_is_over_are_answered() {
        let mut requests = DeposeRequests::default();
        let (reply, mut answer) = oneshot::channel();
        requests.add(DeposeRequest(1), Epoch::new(7), None, reply);
        requests.answer(Epoch::new(7));
        assert!(answer.try_recv().is_err());
        requests.answer(Epoch::new(9));
        assert!(matches!(answer.try_recv(), Ok(Ok(highest)) if highest == Epoch::new(9)));
    }
}

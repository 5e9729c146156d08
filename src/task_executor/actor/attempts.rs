//! A run of attempts to register at the leader. Each attempt asks the actor for its message.

use std::sync::Arc;

use tanist_gateway::registration::{Answer, RegistrationOptions, check_cluster, register};
use tanist_gateway::{GatewayError, GatewayResult, JobMasterGateway, ResourceManagerGateway};
use tanist_ha::ask::ask;
use tanist_proto::id::JobId;
use tokio::sync::{Notify, mpsc};

use super::{Called, Message, Reply};
use crate::core::Event;

/// A run of attempts to register.
pub(super) struct Attempts {
    options: RegistrationOptions,
    mailbox: mpsc::Sender<Message>,
    wake: Arc<Notify>,
    address: String,
    run: u64,
}

impl Attempts {
    /// A run at this address. `wake` ends a delay between two attempts.
    pub(super) fn new(
        options: RegistrationOptions,
        mailbox: mpsc::Sender<Message>,
        wake: Arc<Notify>,
        address: String,
        run: u64,
    ) -> Attempts {
        Attempts {
            options,
            mailbox,
            wake,
            address,
            run,
        }
    }

    pub(super) async fn at_resource_manager(
        self,
        gateway: Arc<dyn ResourceManagerGateway>,
    ) -> Called {
        let attempt = || async {
            let prepare = |reply| Message::PrepareResourceManager {
                run: self.run,
                reply,
            };
            let request = self.prepare(prepare).await?;
            let sender = request.sender.clone();
            let response = gateway.register_task_executor(request).await?;
            check_cluster(&response, sender.as_ref(), &self.address)?;
            self.raise_number(Answer::from_message(response)?).await
        };
        let result = register(&self.options, &self.address, &self.wake, attempt).await;
        let run = self.run;
        Called::Event(Event::RegisteredAtResourceManager { run, result })
    }

    pub(super) async fn at_job_master(
        self,
        job: JobId,
        gateway: Arc<dyn JobMasterGateway>,
    ) -> Called {
        let attempt = || async {
            let prepare = |reply| Message::PrepareJobMaster {
                job,
                run: self.run,
                reply,
            };
            let request = self.prepare(prepare).await?;
            let sender = request.sender.clone();
            let response = gateway.register_task_manager(request).await?;
            let incarnation = response.job_incarnation;
            let registration = response.registration.unwrap_or_default();
            check_cluster(&registration, sender.as_ref(), &self.address)?;
            let answer = Answer::from_message(registration)?;
            let answer = self.raise_number(answer).await?;
            Ok(answer.map(|success| (success, incarnation)))
        };
        let result = register(&self.options, &self.address, &self.wake, attempt).await;
        let run = self.run;
        Called::Event(Event::RegisteredAtJobMaster { job, run, result })
    }

    /// If the number was too low, makes the next attempt use one above the highest that the leader has seen.
    async fn raise_number<S>(&self, answer: Answer<S>) -> GatewayResult<Answer<S>> {
        if let Answer::TooLow { highest } = answer {
            let sent = self.mailbox.send(Message::RegistrationSeen(highest)).await;
            sent.map_err(|_| GatewayError::gone("TaskExecutor"))?;
        }
        Ok(answer)
    }

    async fn prepare<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> GatewayResult<T> {
        let answer = ask(&self.mailbox, message).await;
        answer.map_err(|_| GatewayError::gone("TaskExecutor"))?
    }
}

//! A confirmed term: all processes find it. It leads until it is over, its application has ended, or this process can't
//! lead: its Dispatcher or ResourceManager failed, or the store's data contradicts the term. Work beside that is
//! dropped with the term.

use std::convert::Infallible;
use std::time::Duration;

use tanist_dispatcher::StorageUser;
use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::LeaderSession;
use tanist_ha::{Error, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::info;

use super::started::StartedTerm;
use super::{Grant, millis};
use crate::adoptions::Adoptions;
use crate::application_term::attend_application;
use crate::history::{HistoryRecord, TermRecord};
use crate::peers::{HandOverOptions, hand_over_when_cut_off, probe_actors, probe_deposed_leaders};
use crate::{orphan_gc, recovery_phases, version_handover};

/// See the module.
pub(super) struct ConfirmedTerm<'a> {
    pub started: StartedTerm<'a>,
}

impl ConfirmedTerm<'_> {
    /// Leads until the term is over, or its application has ended. An error: this process can't lead at present.
    pub(super) async fn run(&mut self) -> Result<()> {
        self.note_confirmation().await;
        let upkeep = StorageUpkeep::start(&self.started);
        let ended = self.lead().await;
        upkeep.stop();
        ended
    }

    async fn note_confirmation(&self) {
        let started = &self.started;
        let (jobs, phases, recovery) = (started.jobs, started.phases.clone(), started.recovery);
        let confirmed = |record: &mut HistoryRecord| {
            record.since_ms = wall_clock_ms();
            record.jobs = jobs;
            record.phases = phases;
            record.recovery = Some(recovery);
        };
        started.record.note(confirmed).await;
    }

    async fn lead(&mut self) -> Result<()> {
        let StartedTerm {
            grant,
            components,
            resource_manager,
            adoptions,
            pipeline,
            store,
            record,
            jobs,
            suspects,
            found_application,
            refused,
            ..
        } = &mut self.started;
        let Grant {
            services,
            session,
            at,
        } = *grant;
        let options = &services.options;
        let dispatcher = &components.dispatcher;
        let resources = resource_manager.handle();
        let hand_over = HandOverOptions {
            interval: options.heartbeat.interval,
            timeout: options.heartbeat.timeout,
        };
        // Without jobs the record says so from the beginning.
        let has_recovered = watch::Sender::new(*jobs == 0);
        let attending = attend_application(
            services,
            components,
            resources.clone(),
            store,
            found_application.clone(),
            has_recovered.subscribe(),
        );
        let peers = services.peers.as_ref();
        // None of these ends the term; they end with it, by being dropped.
        let upkeep = async {
            tokio::join!(
                note_adoption(adoptions, session, at, record),
                probe_deposed_leaders(peers, session, &*services.ha.store, record),
                version_handover::hand_over_when_possible(services, session, store),
                recovery_phases::finish_recovery(
                    *jobs,
                    std::mem::take(suspects),
                    dispatcher,
                    adoptions,
                    record,
                    &has_recovered,
                ),
                probe_actors(
                    services.reports(),
                    dispatcher,
                    &resources,
                    options.ha.stall_timeout,
                ),
                hand_over_when_cut_off(peers, &resources, session, hand_over, refused),
            )
            .0
        };
        tokio::select! {
            () = session.over() => Ok(()),
            () = attending => Ok(()),
            () = pipeline.ended() => Err(Error::Misconfigured(
                "the store's data contradicts this term".into(),
            )),
            () = dispatcher.ended() => {
                Err(Error::Misconfigured("its Dispatcher failed".into()))
            }
            () = resources.ended() => {
                Err(Error::Misconfigured("its ResourceManager failed".into()))
            }
            never = upkeep => match never {},
        }
    }
}

/// Work on the storage of a term, in the background: nothing waits for it, and it delays nothing.
struct StorageUpkeep {
    watching: JoinHandle<()>,
    sweep: JoinHandle<()>,
}

impl StorageUpkeep {
    fn start(term: &StartedTerm<'_>) -> StorageUpkeep {
        let Grant {
            services, session, ..
        } = term.grant;
        let options = &services.options.ha;
        tokio::spawn({
            let (record, store) = (term.record.clone(), services.ha.store.clone());
            async move { record.remove_older(&*store).await }
        });
        let grace = options.blob_orphan_grace;
        let user = StorageUser::of(session, options.cluster_id.as_str());
        let watching = orphan_gc::watch_storage(term.store.clone(), session.clone(), user, grace);
        let watching = tokio::spawn(watching);
        let sweep = tokio::spawn({
            let dispatcher = term.components.dispatcher.clone();
            let sweeping = orphan_gc::sweep(term.store.clone(), session.clone(), grace);
            async move {
                // Objects that results name must not be swept, so results are read first; an error: the term is
                // over.
                if dispatcher.read_results().await.is_ok() {
                    sweeping.await;
                }
            }
        });
        StorageUpkeep { watching, sweep }
    }

    fn stop(self) {
        self.sweep.abort();
        self.watching.abort();
    }
}

/// Logs when all running tasks of recovered jobs are accounted for, and writes it into the term's record. Ends
/// with the term, by being dropped.
async fn note_adoption(
    adoptions: &Adoptions,
    session: &LeaderSession,
    granted: Instant,
    record: &TermRecord,
) -> Infallible {
    let adoption = adoptions.reconciled().await;
    info!(
        epoch = %session.epoch(),
        adopted = adoption.tasks_adopted,
        restarted = adoption.tasks_restarted,
        first_at_ms = adoption.first_adopted_at_ms,
        last_at_ms = adoption.last_adopted_at_ms,
        took_ms = millis(granted),
        "all recorded running tasks are adopted or restarted"
    );
    if adoption.tasks_adopted + adoption.tasks_restarted > 0 {
        let granted_at_ms =
            Duration::from_millis(wall_clock_ms()).saturating_sub(granted.elapsed());
        let since_grant = |at_ms: u64| {
            let since = Duration::from_millis(at_ms).saturating_sub(granted_at_ms);
            since.as_secs_f64() * 1000.0
        };
        let of_adoption = |record: &mut HistoryRecord| {
            record.tasks_adopted = usize::try_from(adoption.tasks_adopted).ok();
            record.tasks_restarted = usize::try_from(adoption.tasks_restarted).ok();
            record.phases.first_adopted_ms = adoption.first_adopted_at_ms.map(since_grant);
            record.phases.last_adopted_ms = adoption.last_adopted_at_ms.map(since_grant);
        };
        record.note(of_adoption).await;
    }
    std::future::pending().await
}

//! Sequences of terms that die, and the plans that the next terms make from their records.

use tanist_proto::id::JobId;

use super::crash_loop::{Death, FormerTerm, JobRange, Suspicion, TermPhase, next_group, plan};
use super::history::HistoryRecord;

fn ids(bits: impl Iterator<Item = u128>) -> Vec<JobId> {
    bits.map(JobId::from_bits).collect()
}

fn died(epoch: u64) -> FormerTerm {
    FormerTerm {
        epoch,
        process: "a".to_owned(),
        has_died: true,
    }
}

fn record(epoch: u64, phase: TermPhase, suspicion: Suspicion) -> HistoryRecord {
    HistoryRecord {
        epoch,
        phase: Some(phase),
        suspicion,
        ..HistoryRecord::default()
    }
}

/// Result of a term.
enum Went {
    /// It died while it started these.
    Died(Vec<JobId>),
    /// All its JobMasters have begun.
    Leads,
}

/// A sequence of terms, with jobs of which some end the process that starts them.
struct Search {
    jobs: Vec<JobId>,
    killers: Vec<JobId>,
    records: Vec<HistoryRecord>,
    set_aside: Vec<JobId>,
}

impl Search {
    fn of(count: u32, killers: impl Iterator<Item = u128>) -> Search {
        Search {
            jobs: ids(1..=u128::from(count)),
            killers: ids(killers),
            records: Vec::new(),
            set_aside: Vec::new(),
        }
    }

    /// The next term, with the steps of `recovery_phases.rs`. `is_hit`: whether it is killed from outside while it
    /// starts these.
    fn term(&mut self, is_hit: impl Fn(&[JobId]) -> bool) -> Went {
        let epoch = self.records.len() as u64 + 1;
        let former = (epoch > 1).then(|| died(epoch - 1));
        let plan = plan(&self.records, former.as_ref());
        if let Some((job, evidence)) = plan.culprit {
            assert!(evidence.len() >= 2);
            self.set_aside.push(job);
        }
        let mut suspicion = plan.suspicion;
        let range = suspicion.suspects;
        let is_suspect = |job: &JobId| range.is_some_and(|range| range.contains(*job));
        let led = self.jobs.iter().filter(|job| !self.set_aside.contains(job));
        let (mut suspects, others): (Vec<JobId>, Vec<JobId>) = led.partition(|job| is_suspect(job));
        let narrowed = suspicion.narrowed;
        let kills =
            |group: &[JobId]| is_hit(group) || group.iter().any(|job| self.killers.contains(job));
        let mut group = others;
        while !kills(&group) {
            if suspects.is_empty() {
                let well = record(epoch, TermPhase::Leading, Suspicion::default());
                self.records.push(well);
                return Went::Leads;
            }
            group = next_group(&suspects, narrowed).to_vec();
            suspicion.suspects = JobRange::of(&suspects);
            suspicion.starting = JobRange::of(&group);
            suspects.drain(..group.len());
        }
        self.records
            .push(record(epoch, TermPhase::Recovering, suspicion));
        Went::Died(group)
    }
}

fn logarithm(count: u32) -> usize {
    usize::try_from(count.next_power_of_two().ilog2()).expect("small")
}

#[test]
fn whichever_job_it_is_it_is_alone_after_the_logarithm_of_all_and_two_more_terms() {
    for count in 1..=33_u32 {
        for culprit in 1..=u128::from(count) {
            let mut search = Search::of(count, std::iter::once(culprit));
            let alone = ids(std::iter::once(culprit));
            let is_alone = |went: &Went| matches!(went, Went::Died(group) if *group == alone);
            // A single job is alone from the beginning.
            let first = (1..).find(|term| is_alone(&search.term(|_| false)) && *term > 2);
            assert!(
                first.expect("found") <= logarithm(count) + 3,
                "{culprit} of {count}"
            );
            while let Went::Died(group) = search.term(|_| false) {
                assert_eq!(group, alone);
            }
            assert_eq!(search.set_aside, alone);
        }
    }
}

#[test]
fn several_are_found_one_after_the_other() {
    for count in 2..=17_u32 {
        for first in 1..=u128::from(count) {
            for second in first..=u128::from(count) {
                let killers = [first, second, u128::from(count)];
                let mut search = Search::of(count, killers.into_iter());
                let bound = killers.len() * (logarithm(count) + 4);
                let terms =
                    (0..=bound).take_while(|_| !matches!(search.term(|_| false), Went::Leads));
                assert!(terms.count() <= bound, "{killers:?} of {count}");
                let mut wanted = search.killers.clone();
                wanted.dedup();
                assert_eq!(search.set_aside, wanted, "of {count}");
            }
        }
    }
}

#[test]
fn a_term_that_is_killed_from_outside_hides_no_culprit() {
    let count = 16_u32;
    for culprit in 1..=u128::from(count) {
        for hit in 3..=8 {
            let mut search = Search::of(count, std::iter::once(culprit));
            let mut term = 0;
            let leads = (0..40).any(|_| {
                term += 1;
                matches!(search.term(|_| term == hit), Went::Leads)
            });
            assert!(leads, "{culprit}, and term {hit} is hit");
            assert_eq!(
                search.set_aside,
                ids(std::iter::once(culprit)),
                "term {hit} is hit"
            );
        }
    }
}

#[test]
fn a_new_job_that_ends_a_crash_loop_recovery_is_found_too() {
    let mut search = Search::of(8, std::iter::once(2));
    while search
        .records
        .last()
        .is_none_or(|it| it.suspicion.narrowed.is_none())
    {
        search.term(|_| false);
    }
    // It was submitted and started while the others were being searched.
    search.jobs.push(JobId::from_bits(9));
    search.killers.push(JobId::from_bits(9));
    let leads = (0..40).any(|_| matches!(search.term(|_| false), Went::Leads));
    assert!(leads);
    assert_eq!(search.set_aside, search.killers);
}

#[test]
fn a_term_that_resigned_accuses_no_job_and_passes_the_range_on() {
    let range = JobRange::of(&ids(3..=4));
    let suspicion = Suspicion {
        died: vec![Death::default(), Death::default()],
        suspects: range,
        narrowed: range,
        starting: JobRange::of(&ids(3..=3)),
    };
    let records = [record(7, TermPhase::Recovering, suspicion.clone())];
    let resigned = FormerTerm {
        has_died: false,
        ..died(7)
    };
    let plan = plan(&records, Some(&resigned));
    let handed_on = Suspicion {
        starting: None,
        ..suspicion
    };
    assert_eq!((plan.suspicion, plan.culprit), (handed_on, None));
}

#[test]
fn a_death_while_leading_and_a_single_one_in_recovery_change_nothing() {
    let leading = [record(7, TermPhase::Leading, Suspicion::default())];
    let after = plan(&leading, Some(&died(7)));
    assert!(after.follows_recovered_term && after.suspicion == Suspicion::default());
    let once = [record(8, TermPhase::Recovering, Suspicion::default())];
    let after = plan(&once, Some(&died(8)));
    assert_eq!(after.suspicion.suspects, None);
    assert_eq!(after.suspicion.died.len(), 1);
    assert!(!after.follows_recovered_term);
}

#[test]
fn a_term_that_died_before_it_left_a_record_counts_too() {
    let leading = [record(7, TermPhase::Leading, Suspicion::default())];
    let after = plan(&leading, Some(&died(8)));
    assert_eq!(after.suspicion.died[0].epoch, 8);
    assert!(!after.follows_recovered_term);
}

#[test]
fn terms_that_had_no_jobs_to_recover_accuse_none() {
    let mut records = Vec::new();
    for epoch in 1..=4 {
        let former = (epoch > 1).then(|| died(epoch - 1));
        let plan = plan(&records, former.as_ref()).without_jobs();
        records.push(record(epoch, plan.phase(), plan.suspicion));
    }
    // Then there is a job.
    let after = plan(&records, Some(&died(4)));
    assert_eq!(after.suspicion, Suspicion::default());
    assert!(after.follows_recovered_term);
    assert_eq!(after.phase(), TermPhase::Recovering);
    // A term without jobs forgets what it knew of earlier deaths.
    let accused = plan(&records, Some(&died(5)));
    assert_eq!(accused.suspicion.died.len(), 1);
    assert_eq!(accused.without_jobs().suspicion, Suspicion::default());
}

#[test]
fn records_of_versions_without_phases_accuse_no_job() {
    let old = HistoryRecord {
        epoch: 7,
        ..HistoryRecord::default()
    };
    let after = plan(&[old], Some(&died(7)));
    assert_eq!(after.suspicion, Suspicion::default());
}

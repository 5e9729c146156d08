//! Properties of the proof of terms, with messages of leaders and of liars, late watches, and overlapping
//! reads: a process accepts only an epoch that its store has shown, or one that the store can still reject.

use proptest::prelude::*;
use tanist_ha::election::{ClusterIncarnation, Epoch, ProcessId, StoreIdentity, TermHolder};

use super::proof::*;

/// An event that a process sees.
#[derive(Debug, Clone)]
enum Step {
    /// A process takes the next epoch.
    Take,
    /// The watch shows the store's state of some epochs ago.
    Watch { ago: u64 },
    /// A read begins.
    Ask,
    /// The oldest read is answered with the store's state of some epochs ago, but not older than the read.
    /// `guard`: the answer contains only the epoch.
    Answer { ago: u64, guard: bool },
    /// The holder of the highest epoch sends a message that names its store.
    Leader { silent: bool },
    /// A process names another holder's epoch, or one that no process took.
    Liar {
        above: i64,
        names_store: bool,
        silent: bool,
    },
    /// A TaskManager, whose messages name no holder, uses an epoch above or below the highest.
    Follower { above: i64 },
    /// The store is restored to its state of some epochs ago.
    Restore { ago: u64 },
}

fn steps(restores: bool) -> impl Strategy<Value = Vec<Step>> {
    let restore = if restores { 1 } else { 0 };
    let step = prop_oneof![
        2 => Just(Step::Take),
        2 => (0u64..4).prop_map(|ago| Step::Watch { ago }),
        3 => Just(Step::Ask),
        3 => (0u64..4, any::<bool>()).prop_map(|(ago, guard)| Step::Answer { ago, guard }),
        3 => any::<bool>().prop_map(|silent| Step::Leader { silent }),
        3 => (-2i64..4, any::<bool>(), any::<bool>())
            .prop_map(|(above, names_store, silent)| Step::Liar { above, names_store, silent }),
        2 => (-2i64..4).prop_map(|above| Step::Follower { above }),
        restore => (1u64..4).prop_map(|ago| Step::Restore { ago }),
    ];
    prop::collection::vec(step, 1..60)
}

struct Read {
    baseline: ReadBaseline,
    /// Epoch of the store when the read began.
    from: u64,
    /// Whether any answer contradicts the belief of that time.
    liar_accepted: bool,
}

struct World {
    proof: Proof,
    /// Highest epoch of the store.
    stored: u64,
    /// The store was restored to an earlier state; answers in transit from before are lost.
    has_restored: bool,
    reads: Vec<Read>,
    /// Whether a liar's term is accepted, because the store did not answer and the liar named it.
    liar_accepted: bool,
}

fn incarnation() -> ClusterIncarnation {
    ClusterIncarnation::new("c1")
}

fn holder(name: &str, epoch: u64) -> TermHolder {
    TermHolder {
        process: ProcessId::new(name),
        start: epoch.to_string(),
    }
}

fn store() -> Option<StoreIdentity> {
    Some(StoreIdentity::new("s1"))
}

fn shown(epoch: u64) -> Shown {
    Shown {
        incarnation: (epoch > 0).then(incarnation),
        epoch: Epoch::new(epoch),
        details: Some(Details {
            holder: Some(holder("jm", epoch)),
            store: store(),
        }),
    }
}

fn claim(name: &str, epoch: u64, store: Option<StoreIdentity>) -> Claim {
    Claim {
        incarnation: incarnation(),
        epoch: Epoch::new(epoch),
        holder: Some(holder(name, epoch)),
        store,
    }
}

impl World {
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Take => self.stored += 1,
            Step::Watch { ago } => {
                let before = self.proof.youngest();
                let _late = self.proof.show(&shown(self.stored.saturating_sub(ago)));
                self.forget_liar();
                prop_assert!(self.liar_gone_or(before), "a late watch took an epoch back");
            }
            Step::Ask => self.reads.push(Read {
                baseline: self.proof.read_baseline(),
                from: self.stored,
                liar_accepted: self.liar_accepted,
            }),
            Step::Answer { ago, guard } => self.answer(ago, guard)?,
            Step::Leader { silent } => {
                let claim = claim("jm", self.stored, store());
                self.hear(&claim, silent, true)?;
            }
            Step::Liar {
                above,
                names_store,
                silent,
            } => {
                let epoch = self.stored.saturating_add_signed(above);
                let named = match names_store {
                    true => store(),
                    false => Some(StoreIdentity::new("a copy")),
                };
                self.hear(&claim("liar", epoch, named), silent, false)?;
            }
            Step::Follower { above } => {
                let claim = Claim {
                    holder: None,
                    ..claim("nobody", self.stored.saturating_add_signed(above), None)
                };
                let before = self.proof.clone();
                let is_admitted = self.proof.check(&claim) == Verdict::Admitted;
                let is_youngest = claim.epoch == before.youngest();
                prop_assert!(is_youngest || !is_admitted, "{claim:?} in {before:?}");
                prop_assert!(
                    !self.proof.accept_provisionally(&claim),
                    "a claim without holder was believed"
                );
                prop_assert_eq!(&self.proof, &before);
            }
            Step::Restore { ago } => {
                self.stored = self.stored.saturating_sub(ago).max(1);
                self.has_restored = true;
                // Answers in transit from the former store are lost.
                self.reads.clear();
            }
        }
        self.check()
    }

    /// Updates the flag: a belief ends once the store has shown as much.
    fn forget_liar(&mut self) {
        self.liar_accepted &= self.proof.is_provisional();
    }

    fn liar_gone_or(&self, before: Epoch) -> bool {
        self.proof.youngest() >= before || !self.proof.is_provisional()
    }

    fn answer(&mut self, ago: u64, guard: bool) -> Result<(), TestCaseError> {
        if self.reads.is_empty() {
            return Ok(());
        }
        let read = self.reads.remove(0);
        let shows = self
            .stored
            .saturating_sub(ago)
            .max(read.from)
            .min(self.stored);
        let was_provisional = self.proof.is_provisional();
        let mut answer = shown(shows);
        if guard {
            answer.details = None;
        }
        self.proof.answered(&answer, &read.baseline);
        // A guard does not name the holder of its epoch.
        if read.liar_accepted && self.liar_accepted && was_provisional && !guard {
            let is_over = !self.proof.is_provisional() || self.proof.youngest().get() > shows;
            prop_assert!(is_over, "the store answered, and a liar is still believed");
        }
        self.forget_liar();
        Ok(())
    }

    /// Feeds a message to the gate and checks the reaction.
    fn hear(&mut self, claim: &Claim, silent: bool, is_true: bool) -> Result<(), TestCaseError> {
        let before = self.proof.clone();
        let verdict = self.proof.check(claim);
        if !is_true && !self.liar_accepted {
            prop_assert!(
                verdict != Verdict::Admitted,
                "a liar was admitted: {claim:?}"
            );
        }
        if is_true && !self.has_restored && !self.liar_accepted {
            let is_refused = matches!(verdict, Verdict::Refused(_));
            prop_assert!(!is_refused, "the leader was refused: {verdict:?}");
        }
        if verdict == Verdict::Unproven && silent && self.proof.accept_provisionally(claim) {
            prop_assert_eq!(self.proof.check(claim), Verdict::Admitted);
            prop_assert_eq!(self.proof.proven(), before.proven());
            prop_assert_eq!(claim.store.clone(), store(), "another store was believed");
            self.liar_accepted = !is_true;
            return Ok(());
        }
        prop_assert_eq!(
            &self.proof,
            &before,
            "a message that was not believed changed something"
        );
        if verdict == Verdict::Unproven {
            // The gate reads the store, and no process takes an epoch meanwhile.
            let baseline = self.proof.read_baseline();
            self.proof.answered(&shown(self.stored), &baseline);
            self.forget_liar();
            let verdict = self.proof.check(claim);
            if is_true && !self.has_restored && self.stored > 0 {
                prop_assert_eq!(verdict, Verdict::Admitted, "a leader was not proven");
            } else if !is_true {
                prop_assert!(verdict != Verdict::Admitted, "a liar was proven: {claim:?}");
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        if !self.has_restored {
            prop_assert!(
                self.proof.proven().get() <= self.stored,
                "more than the store ever showed"
            );
            prop_assert_eq!(self.proof.went_back(), None, "the store did not go back");
        }
        if !self.proof.is_provisional() {
            prop_assert_eq!(self.proof.youngest(), self.proof.proven());
        }
        Ok(())
    }
}

fn run(steps: &[Step]) -> Result<World, TestCaseError> {
    let mut world = World {
        proof: Proof::default(),
        stored: 1,
        has_restored: false,
        reads: Vec::new(),
        liar_accepted: false,
    };
    for step in steps {
        world.step(step)?;
    }
    Ok(world)
}

proptest! {
    #[test]
    fn only_what_the_store_shows_counts_for_good(steps in steps(false)) {
        run(&steps)?;
    }

    #[test]
    fn a_store_that_went_back_is_found_by_the_next_read(steps in steps(true), ago in 1u64..4) {
        let mut world = run(&steps)?;
        let proven = world.proof.proven().get();
        let shows = proven.saturating_sub(ago).max(1);
        let baseline = world.proof.read_baseline();
        // A watch alone proves nothing: it may be late.
        let before = world.proof.went_back();
        let _late = world.proof.show(&shown(shows));
        prop_assert_eq!(world.proof.went_back(), before);
        world.proof.answered(&shown(shows), &baseline);
        prop_assert_eq!(world.proof.went_back().is_some(), shows < proven || before.is_some());
    }
}

#[test]
fn an_answer_that_was_asked_for_before_an_epoch_was_shown_says_nothing_about_it() {
    let mut proof = Proof::default();
    proof.show(&shown(1)).expect("the first");
    let baseline = proof.read_baseline();
    proof.show(&shown(2)).expect("a younger one");
    proof.answered(&shown(1), &baseline);
    assert_eq!((proof.proven(), proof.went_back()), (Epoch::new(2), None));
}

#[test]
fn the_same_epoch_of_another_start_is_refused_and_one_that_names_no_holder_is_not() {
    let mut proof = Proof::default();
    proof.show(&shown(2)).expect("the first");
    let mut other = claim("jm", 2, store());
    assert_eq!(proof.check(&other), Verdict::Admitted);
    other.holder = Some(holder("jm", 7));
    let refused = proof.check(&other);
    assert!(
        matches!(refused, Verdict::Refused(Refusal::OtherHolder { .. })),
        "{refused:?}"
    );
    other.holder = None;
    assert_eq!(proof.check(&other), Verdict::Admitted);
}

#[test]
fn the_holder_of_an_epoch_is_read_before_a_process_counts_as_holder() {
    let mut proof = Proof::default();
    let guard = Shown {
        details: None,
        ..shown(2)
    };
    proof.show(&guard).expect("the first");
    let leader = claim("jm", 2, store());
    assert_eq!(proof.check(&leader), Verdict::Unproven);
    assert!(
        !proof.accept_provisionally(&leader),
        "the store's identity is not known"
    );
    let baseline = proof.read_baseline();
    proof.answered(&shown(2), &baseline);
    assert_eq!(proof.check(&leader), Verdict::Admitted);
}

#[test]
fn a_belief_ends_with_the_first_answer_that_was_asked_for_after_it() {
    let mut proof = Proof::default();
    proof.show(&shown(2)).expect("the first");
    let before = proof.read_baseline();
    let liar = claim("liar", 5, store());
    assert!(proof.accept_provisionally(&liar));
    let former = claim("jm", 2, store());
    assert_eq!(
        proof.check(&former),
        Verdict::Refused(Refusal::Older {
            offered: Epoch::new(2),
            youngest: Epoch::new(5)
        })
    );
    proof.answered(&shown(2), &before);
    assert!(
        proof.is_provisional(),
        "the epoch may have been taken since"
    );
    let after = proof.read_baseline();
    proof.answered(&shown(2), &after);
    assert_eq!(proof.contradicted().map(|it| it.epoch), Some(Epoch::new(5)));
    assert_eq!(proof.check(&former), Verdict::Admitted);
    assert_eq!(proof.check(&liar), Verdict::Unproven);
}

#[test]
fn the_holder_that_the_store_names_ends_the_belief_in_another_one_of_the_same_epoch() {
    let mut proof = Proof::default();
    proof.show(&shown(2)).expect("the first");
    assert!(proof.accept_provisionally(&claim("liar", 3, store())));
    proof.show(&shown(3)).expect("a younger one");
    assert_eq!(proof.contradicted().map(|it| it.epoch), Some(Epoch::new(3)));
    assert_eq!(proof.check(&claim("jm", 3, store())), Verdict::Admitted);
}

#[test]
fn a_store_without_an_identity_is_taken_for_the_same_and_a_named_one_is_not() {
    let mut proof = Proof::default();
    let nameless = Shown {
        details: Some(Details {
            holder: Some(holder("jm", 1)),
            store: None,
        }),
        ..shown(1)
    };
    proof.show(&nameless).expect("the first");
    assert!(!proof.is_credible(&claim("jm", 2, store())));
    assert!(proof.is_credible(&claim("jm", 2, None)));
}

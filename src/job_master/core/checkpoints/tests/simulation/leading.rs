//! What a JobMaster does around the checkpoints' core: it places regions, starts executions, adopts regions, and writes
//! ends.

use super::super::super::{Effect, Event};
use super::execution::{Execution, Life};
use super::invariants::{Checked, k5_number_is_not_below_the_floor};
use super::world::{Placement, StoreWrite, World, te_of};

impl World {
    /// A leader takes the next answer of the store or the blob store.
    pub(super) fn answer(&mut self, leader: usize) -> Checked {
        let Some(event) = self.leaders[leader].answers.pop_front() else {
            return Ok(());
        };
        if self.leaders[leader].is_dead {
            return Ok(());
        }
        match &event {
            Event::RegionPlaced {
                region, generation, ..
            } => {
                let (region, generation) = (*region, *generation);
                self.leaders[leader].placements[region] = Placement::Placed { runs: false };
                self.hear(leader, event)?;
                self.deploy(leader, region, generation);
            }
            Event::RegionFinished { region, .. } => {
                let region = *region;
                let placement = self.leaders[leader].placements[region];
                if matches!(placement, Placement::Awaited | Placement::Placed { .. }) {
                    self.leaders[leader].placements[region] = Placement::Finished;
                    self.hear(leader, event)?;
                }
            }
            _ => {
                self.hear(leader, event)?;
            }
        }
        Ok(())
    }

    /// Executions of a durable placement start, on TaskExecutors that serve this leader.
    pub(super) fn deploy(&mut self, leader: usize, region: usize, generation: u64) {
        let stored = &self.stored[region];
        if stored.generation != generation {
            return;
        }
        let (number, snapshot) = self.restore_point(region);
        self.reached.restored += u64::from(number > 0);
        self.reached.from_origin += u64::from(number > 0 && self.newest_snapshot(region).0 == 0);
        let places = self.stored[region].places.clone();
        let sources = self.sources_of(region);
        let mut ended = Vec::new();
        for (index, (task, te)) in places.into_iter().enumerate() {
            if self.tes[te].leader != Some(leader) {
                continue;
            }
            let inputs = if index < sources { 0 } else { sources };
            let name = (self.tasks[task].vertex_id.clone(), 0);
            let of = (region, generation);
            let mut execution = Execution::new((task, name), of, te, inputs);
            execution.highest = number;
            if let Some(snapshot) = &snapshot {
                let saved = &snapshot.subtasks[index];
                if saved.ended {
                    let before = self.last_positions.get(&(task, snapshot.generation));
                    execution.position = before.copied().unwrap_or_default();
                    ended.push(self.executions.len());
                } else {
                    execution.restore(number, saved);
                }
            }
            self.executions.push(execution);
        }
        for at in ended {
            // It is restored as ended: it opens nothing and ends its outputs.
            let execution = &self.executions[at];
            if execution.inputs.is_empty() {
                self.end_input(at);
            } else {
                self.executions[at].life = Life::InputEnded;
            }
        }
    }

    /// The present leader, or sometimes a former one.
    pub(super) fn any_leader(&mut self) -> usize {
        match self.random.one_in(4) {
            true => self.random.below(self.leaders.len()),
            false => self.present(),
        }
    }

    /// A leader decides about one of its regions.
    pub(super) fn lead(&mut self) -> Checked {
        let leader = self.any_leader();
        let region = self.random.below(self.regions.len());
        self.lead_region(leader, region)
    }

    pub(super) fn lead_region(&mut self, leader: usize, region: usize) -> Checked {
        if self.leaders[leader].is_dead {
            return Ok(());
        }
        self.end_if_stopped(leader)?;
        let generation = self.leaders[leader].generations[region];
        let find = |task: usize| {
            let mut all = self.executions.iter();
            all.find(|it| (it.task, it.generation) == (task, generation) && it.life != Life::Dead)
        };
        let stored = &self.stored[region];
        let has_ended =
            |task: &usize| stored.generation == generation && stored.ends.contains_key(task);
        let mut tasks = self.regions[region].iter();
        let is_whole = tasks.all(|task| find(*task).is_some() || has_ended(task));
        let is_registered = |te: usize| self.tes[te].leader == Some(leader);
        match self.leaders[leader].placements[region] {
            // Nothing is placed after the end is decided.
            Placement::Waiting if self.is_end_decided => Ok(()),
            Placement::Waiting => {
                let Some(restored) = self.restored_from(leader, region) else {
                    return Ok(());
                };
                let tes = (0..self.tes.len()).filter(|te| is_registered(*te));
                let tes: Vec<usize> = tes.collect();
                if tes.is_empty() {
                    return Ok(());
                }
                let mut places = Vec::new();
                for task in self.regions[region].clone() {
                    places.extend(self.random.pick(&tes).map(|te| (task, te)));
                }
                let at = &mut self.leaders[leader];
                at.generations[region] += 1;
                at.placements[region] = Placement::Placing;
                let generation = at.generations[region];
                at.writes.push_back(StoreWrite::Place {
                    region,
                    generation,
                    restored,
                    places,
                });
                Ok(())
            }
            Placement::Awaited => {
                let places = &self.stored[region].places;
                let all_registered = places.iter().all(|(_, te)| is_registered(*te));
                if !is_whole && all_registered {
                    return self.fail_region(leader, region);
                }
                if is_whole && all_registered {
                    let runs = Placement::Placed { runs: false };
                    self.leaders[leader].placements[region] = runs;
                    let effects = self.hear(leader, Event::RegionAdopted { region })?;
                    // Also one that what its tasks saved makes it abort at once.
                    let aborted = effects.iter().filter_map(|effect| match effect {
                        Effect::Aborted { number, .. } => Some(*number),
                        _ => None,
                    });
                    let core = &self.leaders[leader].core;
                    let floor = core.durable().floor;
                    for number in aborted.chain(core.in_flight(region)) {
                        k5_number_is_not_below_the_floor(number, floor)?;
                    }
                }
                Ok(())
            }
            Placement::Placed { .. } if !is_whole => self.fail_region(leader, region),
            Placement::Placed { runs: false } => {
                let runs = Placement::Placed { runs: true };
                self.leaders[leader].placements[region] = runs;
                self.hear(leader, Event::RegionRunning { region, generation })?;
                Ok(())
            }
            Placement::Placed { runs: true } | Placement::Placing | Placement::Finished => Ok(()),
        }
    }

    /// Tasks that their leaders gave up are cancelled at last.
    pub(super) fn cancel_old(&mut self) {
        for execution in &mut self.executions {
            if execution.generation < self.stored[execution.region].generation {
                execution.life = Life::Dead;
            }
        }
        self.executions.retain(|it| it.life != Life::Dead);
    }

    /// A leader hears of an end, and writes it.
    pub(super) fn hear_of_end(&mut self, leader: usize, event: Event) -> Checked {
        let Event::TaskEnded {
            connection,
            task,
            generation,
            end,
        } = event.clone()
        else {
            return Ok(());
        };
        self.hear(leader, event)?;
        let region = self.tasks[task].region;
        let is_present = connection == self.connection(te_of(&connection));
        let at = &mut self.leaders[leader];
        let is_placed = matches!(
            at.placements[region],
            Placement::Awaited | Placement::Placed { .. }
        );
        let is_of_it = is_placed && at.generations[region] == generation && is_present;
        if is_of_it && !at.is_dead && at.ends.insert((task, generation)) {
            at.writes.push_back(StoreWrite::End {
                region,
                generation,
                task,
                end,
            });
        }
        Ok(())
    }
}

//! Random steps, then an end without faults.

use proptest::prelude::*;

use super::steps::KINDS;
use super::world::{SITUATIONS, World};

#[test]
fn no_order_of_requests_and_faults_breaks_an_invariant_and_every_job_ends() {
    let steps = prop::collection::vec((0..KINDS, any::<u16>()), 0..300);
    let inputs = (steps, any::<u16>());
    tanist_property_tests::run_cases(
        1000,
        file!(),
        inputs,
        |(steps, last), reached: &mut [u32; SITUATIONS]| {
            let mut world = World::new();
            for (kind, pick) in steps {
                world.step(kind, pick);
            }
            world.come_to_an_end(last);
            let all = reached.iter_mut().zip(world.reached);
            all.for_each(|(all, of_case)| *all += of_case);
            Ok(())
        },
    );
}

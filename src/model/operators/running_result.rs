//! What `count` and `sum` share: each is one result by key over the whole input, with keys and the time of its
//! emission. Over windows both are an [`Aggregate`](super::Aggregate).

use super::check_keys;
use crate::{Column, Schema};

/// The methods of a [`Declaration`](super::Declaration) that are the same for each result: those of its `keys` and
/// `emit`.
macro_rules! declare_running_result {
    ($name:literal) => {
        fn kind(&self) -> &'static str {
            $name
        }

        fn state(&self) -> StateUse {
            StateUse::Saved
        }

        fn problems(&self) -> Vec<String> {
            missing_keys(&self.keys).into_iter().collect()
        }

        fn complete(&mut self, input: &Input<'_>) -> Result<(), String> {
            complete_keys(&mut self.keys, input);
            self.emit.get_or_insert(Emit::implied(input));
            Ok(())
        }

        fn keys(&self) -> Option<&[String]> {
            Some(&self.keys)
        }

        fn keyed_results(&self) -> Option<String> {
            Some($name.to_owned())
        }

        fn waits_for_the_end(&self) -> bool {
            self.emit == Some(Emit::Final)
        }

        fn set_emit(&mut self, emit: Emit) {
            self.emit = Some(emit);
        }
    };
}
pub(super) use declare_running_result;

/// The text of the documentation about what is saved.
pub(super) const CHECKPOINTS: &str =
    "The results of all keys are saved. Over windows, so are the open windows and the event time.";

/// The key columns and one result, or the problems of the keys.
pub(super) fn by_key(
    input: &Schema,
    keys: &[String],
    result: Column,
) -> Result<Schema, Vec<String>> {
    let mut problems = check_keys(input, keys);
    if keys.contains(&result.name) {
        problems.push(format!(
            "its result is a column `{0}`, but a key column is called `{0}` too: key by other columns",
            result.name
        ));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let keys = keys.iter().filter_map(|key| input.column(key).cloned());
    Ok(Schema::new(keys.chain([result]).collect()))
}

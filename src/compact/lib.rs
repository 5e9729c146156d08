//! Containers that use less memory than those of std and tokio. For state that exists once for each job: a leader may
//! hold ten thousand jobs.
//!
//! Each file names the type that it replaces and the condition under which it is smaller. `docs/adr/0054` has the
//! numbers. Not here: what one component encodes or packs for itself, such as the JobMaster's `kept_graph`.

mod shrinking;
mod small_map;
mod small_set;
mod watch_cell;

pub use shrinking::{shrink_graph, shrink_state};
pub use small_map::SmallMap;
pub use small_set::SmallSet;
pub use watch_cell::WatchCell;

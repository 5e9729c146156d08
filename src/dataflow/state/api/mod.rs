//! The state of custom operators, by kind. Each is thin: keyed kinds are a [`StateTable`](super::StateTable), the
//! others are states without keys that say themselves how they are divided among another number of subtasks.
//!
//! ```text
//! KeyedStates ──▶ ValueState, ListState, MapState    by namespace and key
//!     ├─────────▶ EventTimers                        by time and key; due when the watermark passes
//!     └─────────▶ ProcessingTimers                   by time and key; due when the clock passes
//! OperatorList                                       a subtask's own elements, divided as a list or a union
//! BroadcastState                                     a map that each subtask has
//! ```
//!
//! Values are of any type with [`StateValue`]. The name of a state stays the same over versions of a program. Its
//! signature is a text that says what the values are; it changes with their meaning or encoding, and then nothing of
//! the former is restored.

mod broadcast;
mod keyed;
mod operator_list;
#[cfg(test)]
mod tests;
mod timers;
mod value;

pub use broadcast::BroadcastState;
pub use keyed::{EntryKey, KeyedState, KeyedStates, ListState, MapState, ValueState};
pub use operator_list::OperatorList;
pub use timers::{EventTimers, ProcessingTimers};
pub use value::StateValue;

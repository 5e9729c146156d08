//! What runs inside a TaskManager: records, operators, the exchange between tasks, and the task itself.

pub mod key;
pub mod operator;
pub mod record;
pub mod sink;

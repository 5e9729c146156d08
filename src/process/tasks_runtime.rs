//! The runtime of a TaskManager's tasks, owned by the TaskManager. It is separate, so that tasks that block a thread
//! delay nothing else in the process. Its end does not wait for them: such a task ends with the process.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

/// See the module.
#[derive(Debug)]
pub(super) struct TasksRuntime {
    runtime: Option<Runtime>,
}

impl TasksRuntime {
    pub(super) fn start() -> io::Result<TasksRuntime> {
        let runtime = Builder::new_multi_thread()
            .thread_name("tasks")
            .enable_all()
            .build()?;
        Ok(TasksRuntime {
            runtime: Some(runtime),
        })
    }

    pub(super) fn handle(&self) -> Handle {
        self.runtime
            .as_ref()
            .expect("it is there until it is dropped")
            .handle()
            .clone()
    }

    pub(super) fn shut_down(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for TasksRuntime {
    fn drop(&mut self) {
        // Dropping a runtime waits for it, which is not allowed within another one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

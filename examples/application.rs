//! An application: a program with a cluster of its own that ends with its jobs.
//!
//! ```text
//! cargo build --example application
//! target/debug/examples/application local --param 'input=books/*.txt' --param output=/tmp/counts
//! ```
//!
//! As a cluster: `application jobmanager --param ...` on as many hosts as are to lead or stand by, `application taskmanager` on
//! those that are to work, all with the same `high-availability.*`. See docs/applications.md.

use std::process::ExitCode;

use tanist::application::Application;
use tanist::job::{Comparison, JobBuilder};

fn main() -> ExitCode {
    Application::new("words")
        .program(|context| async move {
            let input = context
                .parameter("input")
                .ok_or("give --param input=GLOB")?;
            let output = context
                .parameter("output")
                .ok_or("give --param output=DIRECTORY")?;
            let counts = JobBuilder::new("counts")
                .file_source("lines", [input])
                .split_words("words", "line")
                .key_by("by-word", ["word"])
                .count("counts")
                .file_sink("out", format!("{output}/all"))
                .build();
            // Submitted once, however often this program is run again after a failover.
            context.execute(counts).await?;
            let long = JobBuilder::new("words with q")
                .file_source("lines", [input])
                .split_words("words", "line")
                .filter("with-q", "word", Comparison::Contains, "q")
                .file_sink("out", format!("{output}/q"))
                .build();
            context.execute(long).await?;
            Ok(())
        })
        .main()
}

//! `socket-sink`: lines to a TCP server.

use serde::{Deserialize, Serialize};

use super::socket_source::{ADDRESS, address_problem};
use super::{Declaration, Redistribution, Role, Section, StateUse, Step, Transformation};
use crate::job_file::{Fields, Reader};

/// Connects to a TCP server and writes records as lines, with columns separated by a space.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketSink {
    /// host:port
    pub address: String,
}

impl Declaration for SocketSink {
    fn kind(&self) -> &'static str {
        "socket-sink"
    }

    fn state(&self) -> StateUse {
        StateUse::Saved
    }

    fn redistribution(&self) -> Redistribution {
        Redistribution::List
    }

    fn role(&self) -> Role {
        Role::Sink
    }

    fn problems(&self) -> Vec<String> {
        address_problem(&self.address).into_iter().collect()
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "socket-sink",
    section: Section::Sinks,
    text: "\
Connects to a TCP server and writes records as lines, with columns separated by a space. If the connection breaks or
the server closes its side, it reconnects, without a time limit, and then writes the last 1 MiB again. It reads the
server's answers and drops them. When all records are written, it closes its side. It finishes when the server closes
its side, or has sent nothing for 30 s since then. A connection that breaks before that is handled like any broken
connection.",
    fields: &[ADDRESS],
    checkpoints: "\
Lines that are not written yet, and those that a broken connection would repeat, are saved. A line may be
written twice after a restore.",
    example: "\
- datagen: { count: 1000 }
- socket-sink: { address: \"localhost:9000\" }
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let address = fields.required("address", "localhost:9000", reader, Reader::text)?;
    Some(SocketSink { address }.into())
}

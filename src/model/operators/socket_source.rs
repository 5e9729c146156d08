//! `socket-source`: lines of a TCP server.

use serde::{Deserialize, Serialize};

use super::columns::line;
use super::{Declaration, ExpressionTypes, Role, Section, StateUse, Step, Transformation};
use crate::Schema;
use crate::job_file::{Fields, Reader};

/// Connects to a TCP server and reads lines. Emits `line: string`. One subtask.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketSource {
    /// host:port
    pub address: String,
    /// Whether it connects again when the connection ends. If not, the input ends then.
    pub reconnect: bool,
}

impl Declaration for SocketSource {
    fn kind(&self) -> &'static str {
        "socket-source"
    }

    fn state(&self) -> StateUse {
        StateUse::Saved
    }

    fn has_position(&self) -> bool {
        false
    }

    fn role(&self) -> Role {
        Role::Source {
            bounded: !self.reconnect,
        }
    }

    fn problems(&self) -> Vec<String> {
        address_problem(&self.address).into_iter().collect()
    }

    /// Several connections to a server that serves lines would read its lines several times.
    fn is_single(&self) -> bool {
        true
    }

    fn output(&self, _input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        Ok(line())
    }
}

/// Returns the problem of the address of a server.
pub(super) fn address_problem(address: &str) -> Option<String> {
    let parts = address.rsplit_once(':');
    let sound = parts.is_some_and(|(host, port)| {
        !host.is_empty()
            && address.len() <= 300
            && !host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/')
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    (!sound).then(|| format!("`address` is {address:?}: write `host:port`"))
}

/// The field with the address of a server.
pub(super) const ADDRESS: &[&str] = &[
    "`address` | `HOST:PORT` | required | the server; while it can't be reached, `tanist info` and `list` report it",
];

pub(super) const STEPS: &[Step] = &[Step {
    name: "socket-source",
    section: Section::Sources,
    text: "\
Connects to a TCP server and reads lines. One subtask. Emits `line: string`. It reconnects after 100 ms up to 10 s and
never ends, unless `reconnect` is `false`.",
    fields: &[
        ADDRESS,
        &["`reconnect` | `true`, `false` | `true` | `false`: the end of the connection is the end of the input, and an error fails the task"],
    ],
    checkpoints: "\
No position is saved: what was received after the checkpoint is lost when the job is restored.",
    example: "\
- socket-source: { address: \"localhost:9000\" }
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let address = fields.required("address", "localhost:9000", reader, Reader::text);
    let reconnect = fields.optional_value("reconnect", reader, Reader::bool);
    let spec = SocketSource {
        address: address?,
        reconnect: reconnect.unwrap_or(true),
    };
    Some(spec.into())
}

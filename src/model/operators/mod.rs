//! The operators of a job. Each is declared in one file of this folder: its specification, which travels as JSON in the
//! job graph, its rules ([`Declaration`]), and how its step is read from a job file and described ([`Step`]).
//! `tanist-operators` has one file for the code that runs it. These are two files because JobManagers and clients build
//! without Arrow. `docs/adr/0059` has the reasons.
//!
//! The list in this file names them all, and nothing else matches over all operators: other crates ask the declaration,
//! or use [`with_operator!`](crate::with_operator).
//!
//! Specifications are persisted in job graphs, and vertex ids are hashes of their JSON. So the names and the order of
//! fields never change, and a field that is added has a default and is omitted where it has that.

mod aggregate;
mod aggregation;
mod columns;
mod computed;
mod count;
mod custom;
mod datagen;
mod declaration;
mod discard;
mod emission;
mod event_time;
mod exec;
mod exec_sink;
mod exec_source;
mod file_sink;
mod file_source;
mod filter;
mod flat_map_regex;
mod follow_files;
mod format_csv;
mod format_json;
mod key_by;
mod map;
mod parse_csv;
mod parse_json;
mod print;
mod project;
mod reading;
mod reference;
mod running_result;
mod sample;
mod socket_sink;
mod socket_source;
mod split_words;
mod stdin_source;
mod step;
mod sum;
mod watermarks;
mod where_sql;

use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

pub use aggregation::{AggregateFunction, Aggregation};
pub use columns::{check_keys, plain_column, text_column, wrong_type};
pub use custom::{CustomRedistribution, CustomRole};
pub use declaration::{
    Declaration, ExpressionTypes, Input, PathUse, Redistribution, Role, StateUse,
};
pub use emission::{Emit, Trigger, Windows};
pub use event_time::EventTime;
pub use file_sink::{Commit, Roll};
pub use filter::Comparison;
pub use key_by::KeyBy;
pub use reading::{DeclaredColumn, OnError, Reading, value_in_type};
pub use reference::reference;
pub use step::{Section, Step, Transformation};

/// Makes the specification of all operators, and the table of steps, of the list below.
macro_rules! operators {
    ($d:tt $($module:ident $(=> $variant:ident($spec:ident))?,)+) => {
        $($(pub use $module::$spec;)?)+

        /// The specification of an operator in the job graph: JSON, tagged by `type`.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
        pub enum OperatorSpec {
            $($(
                #[doc = concat!("See [`", stringify!($spec), "`].")]
                $variant($spec),
            )?)+
        }

        $($(
            impl From<$spec> for OperatorSpec {
                fn from(spec: $spec) -> OperatorSpec {
                    OperatorSpec::$variant(spec)
                }
            }
        )?)+

        impl OperatorSpec {
            /// What the operator declares.
            pub fn declaration(&self) -> &(dyn Declaration + 'static) {
                match self {
                    $($(OperatorSpec::$variant(spec) => spec,)?)+
                }
            }

            fn declaration_mut(&mut self) -> &mut (dyn Declaration + 'static) {
                match self {
                    $($(OperatorSpec::$variant(spec) => spec,)?)+
                }
            }
        }

        /// The steps that each file declares.
        const STEPS: &[&[Step]] = &[$($module::STEPS),+];

        /// Evaluates an expression with the specification of any operator: `with_operator!(spec, it => it.build())`.
        #[macro_export]
        macro_rules! with_operator {
            ($d spec:expr, $d operator:ident => $d body:expr) => {
                match $d spec {
                    $($($crate::OperatorSpec::$variant($d operator) => $d body,)?)+
                }
            };
        }
    };
}

// The list. Its order is that in messages. A file without a variant declares a step that is no operator.
operators! { $
    file_source => FileSource(FileSource),
    follow_files => FollowFiles(FollowFiles),
    datagen => Datagen(Datagen),
    split_words => SplitWords(SplitWords),
    filter => Filter(Filter),
    where_sql => Where(Where),
    sample => Sample(Sample),
    map => Map(Map),
    project => Project(Project),
    key_by,
    count => Count(Count),
    sum => Sum(Sum),
    print => Print(Print),
    file_sink => FileSink(FileSink),
    discard => Discard(Discard),
    stdin_source => StdinSource(StdinSource),
    socket_source => SocketSource(SocketSource),
    parse_json => ParseJson(ParseJson),
    parse_csv => ParseCsv(ParseCsv),
    format_json => FormatJson(FormatJson),
    format_csv => FormatCsv(FormatCsv),
    flat_map_regex => FlatMapRegex(FlatMapRegex),
    watermarks => Watermarks(Watermarks),
    aggregate => Aggregate(Aggregate),
    socket_sink => SocketSink(SocketSink),
    exec => Exec(Exec),
    exec_source => ExecSource(ExecSource),
    exec_sink => ExecSink(ExecSink),
    custom => Custom(CustomSpec),
}

impl Deref for OperatorSpec {
    type Target = dyn Declaration;

    fn deref(&self) -> &Self::Target {
        self.declaration()
    }
}

impl DerefMut for OperatorSpec {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.declaration_mut()
    }
}

/// All steps of a job file, in the order of the list.
pub fn steps() -> impl Iterator<Item = &'static Step> + Clone {
    STEPS.iter().copied().flatten()
}

/// The step of this name.
pub fn step(name: &str) -> Option<&'static Step> {
    steps().find(|step| step.name == name)
}

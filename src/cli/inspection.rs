//! The content of a savepoint, for `tanist savepoint inspect`: the steps with their kinds of state and sizes.
//!
//! It follows from the manifest alone. A manifest may come from elsewhere and have any numbers, so sums saturate.
//! Positions of the built-in sources are decoded. Only its own step understands another position, or the bytes of a
//! state.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Value, json};
use tanist_gateway::savepoints;
use tanist_operators::saved_positions;
use tanist_proto::manifest;
use tanist_proto::pieces::Piece;
use tanist_proto::segments::covered;
use tanist_proto::v1::{
    CheckpointManifest, ManifestStep, SourcePosition, StateRedistribution, StateSegment,
    SubtaskSnapshot,
};

use super::output::{Table, bytes, field};

/// A kind of state of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct StateSize {
    /// Number of key groups for which it has segments; 0: it has no keys.
    key_groups: u64,
    /// Number of its pieces: positions, entries of a list, segments.
    pieces: u64,
    bytes: u64,
    kind: &'static str,
    /// The signature that the operator gave the state. Empty: it is in the objects, which are not read.
    signature: String,
    /// By range of key groups, or by subtask if it has no keys.
    parts: BTreeMap<(u32, u32), u64>,
}

impl StateSize {
    fn add(&mut self, kind: &'static str, part: (u32, u32), length: u64) {
        self.kind = kind;
        self.pieces += 1;
        let bytes = self.parts.entry(part).or_default();
        *bytes = bytes.saturating_add(length);
        self.bytes = self.bytes.saturating_add(length);
    }
}

/// The states of one step by name. The positions of a source have the name [`POSITIONS`].
type States = BTreeMap<String, StateSize>;

const POSITIONS: &str = "positions";

/// How a state without keys is divided among another number of subtasks.
fn kind_of(redistribution: StateRedistribution) -> &'static str {
    match redistribution {
        StateRedistribution::Unspecified => "of the step",
        StateRedistribution::List => "list",
        StateRedistribution::Union => "union",
        StateRedistribution::Broadcast => "broadcast",
    }
}

/// How far a subtask of a source had read.
#[derive(Debug, Clone)]
struct Position {
    uid: String,
    subtask: u32,
    text: String,
    /// Null: it is not decoded.
    json: Value,
}

impl Position {
    fn of(position: &SourcePosition, subtask: u32) -> Position {
        let decoded = saved_positions::position(&position.position);
        let (text, json) = match (decoded, &position.place) {
            _ if position.ended => ("all of its input".to_owned(), json!({ "ended": true })),
            (Some(decoded), _) => (decoded.text, decoded.json),
            (None, Some(_)) => ("in an object".to_owned(), Value::Null),
            (None, None) => {
                let length = position.position.len();
                (
                    format!("{length} bytes, known to the source alone"),
                    Value::Null,
                )
            }
        };
        Position {
            uid: position.uid.clone(),
            subtask,
            text,
            json,
        }
    }
}

/// The content of a savepoint.
#[derive(Debug, Clone)]
pub(super) struct Inspection {
    path: String,
    job_id: String,
    number: u64,
    is_verified: bool,
    steps: Vec<(ManifestStep, States)>,
    positions: Vec<Position>,
    /// Of `_metadata`, and of the manifest in it.
    formats: (u16, u16),
    /// Names of its objects.
    objects: BTreeSet<String>,
    bytes: u64,
    /// Number of subtasks that had ended.
    ended: usize,
}

impl Inspection {
    /// Describes the savepoint at this path.
    pub(super) fn new(path: &str, manifest: &CheckpointManifest, is_verified: bool) -> Inspection {
        let mut found: BTreeMap<&str, States> = BTreeMap::new();
        let mut segments: BTreeMap<(&str, &str), Vec<&StateSegment>> = BTreeMap::new();
        let mut objects = BTreeSet::new();
        let mut positions = Vec::new();
        let mut total = 0;
        let mut add = |piece: Piece<'_>| {
            objects.extend(piece.object().map(str::to_owned));
            let size = piece.size();
            total = u64::saturating_add(total, size);
            size
        };
        for subtask in subtasks(manifest) {
            for position in &subtask.positions {
                let states = found.entry(&position.uid).or_default();
                let length = add(Piece::Position(position));
                let part = (subtask.subtask, subtask.subtask);
                let state = states.entry(POSITIONS.to_owned()).or_default();
                state.add("positions", part, length);
                positions.push(Position::of(position, subtask.subtask));
            }
            for operator in &subtask.operators {
                let states = found.entry(&operator.uid).or_default();
                let length = add(Piece::State(operator));
                let part = (subtask.subtask, subtask.subtask);
                let state = states.entry(operator.name.clone()).or_default();
                state.add(kind_of(operator.redistribution()), part, length);
                if let Some(signature) = saved_positions::signature(&operator.content) {
                    state.signature = signature;
                }
            }
            for segment in &subtask.segments {
                let length = add(Piece::Segment(segment));
                let states = found.entry(&segment.uid).or_default();
                let range = (segment.first_key_group, segment.end_key_group);
                let state = states.entry(segment.name.clone()).or_default();
                state.add("keyed", range, length);
                let of_state = segments.entry((&segment.uid, &segment.name));
                of_state.or_default().push(segment);
            }
            for segment in &subtask.channels {
                add(Piece::Segment(segment));
            }
        }
        for ((uid, name), segments) in segments {
            let states = found.get_mut(uid);
            if let Some(state) = states.and_then(|states| states.get_mut(name)) {
                state.key_groups = covered(segments);
            }
        }
        let mut steps: Vec<(ManifestStep, States)> = manifest
            .steps
            .iter()
            .map(|step| {
                let states = found.remove(step.uid.as_str()).unwrap_or_default();
                (step.clone(), states)
            })
            .collect();
        steps.extend(found.into_iter().map(|(uid, states)| {
            let step = ManifestStep {
                uid: uid.to_owned(),
                ..ManifestStep::default()
            };
            (step, states)
        }));
        Inspection {
            path: path.to_owned(),
            job_id: manifest.job_id.clone(),
            number: manifest.number,
            is_verified,
            steps,
            positions,
            formats: (savepoints::FORMAT, manifest::lowest_format(manifest)),
            objects,
            bytes: total,
            ended: subtasks(manifest).filter(|it| it.ended).count(),
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        field(&mut text, "Savepoint", &self.path);
        field(&mut text, "Job", &self.job_id);
        field(&mut text, "Checkpoint", &self.number.to_string());
        let (savepoint, manifest) = self.formats;
        let formats = format!("{savepoint}, of its manifest {manifest}");
        field(&mut text, "Format", &formats);
        let size = format!("{} in {} objects", bytes(self.bytes), self.objects.len());
        field(&mut text, "State", &size);
        if self.ended > 0 {
            let ended = format!("{} subtasks, which stay so", self.ended);
            field(&mut text, "Ended", &ended);
        }
        if self.is_verified {
            field(
                &mut text,
                "Verified",
                "all of it was read, and is as it was written",
            );
        }
        let mut table = Table::new([
            "STEP",
            "KIND",
            "PARALLELISM",
            "MAXIMUM",
            "STATE",
            "TYPE",
            "PIECES",
            "SIZE",
            "KEY GROUPS",
        ]);
        for (step, states) in &self.steps {
            let number = |number: u32| match number {
                0 => "-".to_owned(),
                number => number.to_string(),
            };
            let row = |name: &str, kind: &str, pieces: String, size: String, groups: String| {
                [
                    step.uid.clone(),
                    step.kind.clone(),
                    number(step.parallelism),
                    number(step.max_parallelism),
                    name.to_owned(),
                    kind.to_owned(),
                    pieces,
                    size,
                    groups,
                ]
            };
            if states.is_empty() {
                let nothing = String::new;
                table.row(row("-", "", nothing(), nothing(), nothing()));
            }
            for (name, state) in states {
                let groups = match state.key_groups {
                    0 => String::new(),
                    groups => format!("{groups}/{}", step.max_parallelism),
                };
                table.row(row(
                    name,
                    state.kind,
                    state.pieces.to_string(),
                    bytes(state.bytes),
                    groups,
                ));
            }
        }
        write!(text, "\n{table}").expect("writing to a string succeeds");
        if !self.positions.is_empty() {
            let mut table = Table::new(["SOURCE", "SUBTASK", "POSITION"]);
            for position in &self.positions {
                table.row([
                    position.uid.clone(),
                    position.subtask.to_string(),
                    position.text.clone(),
                ]);
            }
            write!(text, "\n{table}").expect("writing to a string succeeds");
        }
        text
    }

    /// The same for programs.
    pub(super) fn json(&self) -> Value {
        let steps: Vec<Value> = self
            .steps
            .iter()
            .map(|(step, states)| {
                let states: Vec<Value> = states
                    .iter()
                    .map(|(name, state)| {
                        let parts = state.parts.iter();
                        let parts = parts.map(|((first, end), bytes)| match state.kind {
                            "keyed" => json!({
                                "first-key-group": first, "end-key-group": end, "bytes": bytes
                            }),
                            _ => json!({ "subtask": first, "bytes": bytes }),
                        });
                        json!({
                            "name": name, "type": state.kind, "signature": state.signature,
                            "pieces": state.pieces, "bytes": state.bytes, "key-groups": state.key_groups,
                            "parts": parts.collect::<Vec<_>>()
                        })
                    })
                    .collect();
                json!({
                    "uid": step.uid, "name": step.name, "kind": step.kind, "vertex": step.vertex_id,
                    "parallelism": step.parallelism, "max-parallelism": step.max_parallelism,
                    "states": states
                })
            })
            .collect();
        let positions = self.positions.iter();
        let positions: Vec<Value> = positions
            .map(|it| json!({ "uid": it.uid, "subtask": it.subtask, "position": it.json }))
            .collect();
        json!({
            "path": self.path, "job": self.job_id, "checkpoint": self.number, "bytes": self.bytes,
            "objects": self.objects.len(), "ended-subtasks": self.ended, "verified": self.is_verified,
            "steps": steps, "positions": positions,
            "format": self.formats.0, "manifest-format": self.formats.1
        })
    }
}

fn subtasks(manifest: &CheckpointManifest) -> impl Iterator<Item = &SubtaskSnapshot> {
    manifest.regions.iter().flat_map(|region| &region.subtasks)
}

#[cfg(test)]
mod tests {
    use tanist_proto::v1 as pb;

    use super::*;

    fn manifest() -> CheckpointManifest {
        let step = |uid: &str, kind: &str| ManifestStep {
            uid: uid.to_owned(),
            name: uid.to_owned(),
            kind: kind.to_owned(),
            vertex_id: "0".repeat(32),
            parallelism: 2,
            max_parallelism: 128,
            keyed: String::new(),
        };
        let segment = |object: &str, range: (u32, u32)| StateSegment {
            uid: "counts".to_owned(),
            name: "count".to_owned(),
            object: object.to_owned(),
            length: 1024,
            first_key_group: range.0,
            end_key_group: range.1,
            ..StateSegment::default()
        };
        let snapshot = |subtask: u32, range| SubtaskSnapshot {
            subtask,
            positions: vec![pb::SourcePosition {
                uid: "numbers".to_owned(),
                position: vec![1, 2, 3],
                ..pb::SourcePosition::default()
            }],
            segments: vec![segment("a", range)],
            ..SubtaskSnapshot::default()
        };
        CheckpointManifest {
            job_id: "0123456789abcdef0123456789abcdef".to_owned(),
            number: 18,
            regions: vec![pb::RegionSnapshot {
                subtasks: vec![
                    snapshot(0, (0, 64)),
                    snapshot(1, (64, 100)),
                    SubtaskSnapshot {
                        ended: true,
                        ..SubtaskSnapshot::default()
                    },
                ],
                ..pb::RegionSnapshot::default()
            }],
            steps: vec![
                step("numbers", "datagen"),
                step("counts", "count"),
                step("out", "discard"),
            ],
            ..CheckpointManifest::default()
        }
    }

    #[test]
    fn a_savepoint_is_shown_by_step_and_state() {
        let inspection = Inspection::new("/savepoints/a", &manifest(), true);
        let expected = "\
Savepoint    /savepoints/a
Job          0123456789abcdef0123456789abcdef
Checkpoint   18
Format       1, of its manifest 1
State        2.0 KiB in 1 objects
Ended        1 subtasks, which stay so
Verified     all of it was read, and is as it was written

STEP     KIND     PARALLELISM  MAXIMUM  STATE      TYPE       PIECES  SIZE     KEY GROUPS
numbers  datagen  2            128      positions  positions  2       6 B
counts   count    2            128      count      keyed      2       2.0 KiB  100/128
out      discard  2            128      -

SOURCE   SUBTASK  POSITION
numbers  0        3 bytes, known to the source alone
numbers  1        3 bytes, known to the source alone
";
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed(&inspection.text()), squeezed(expected));
        let json = inspection.json();
        assert_eq!(json["checkpoint"], 18);
        assert_eq!(json["bytes"], 2054);
        let counts = &json["steps"][1]["states"][0];
        assert_eq!(counts["key-groups"], 100);
        let parts = json!([
            {"first-key-group": 0, "end-key-group": 64, "bytes": 1024},
            {"first-key-group": 64, "end-key-group": 100, "bytes": 1024}
        ]);
        assert_eq!(
            (&counts["type"], &counts["parts"]),
            (&json!("keyed"), &parts)
        );
        assert_eq!(
            (&json["format"], &json["manifest-format"]),
            (&json!(1), &json!(1))
        );
        assert_eq!(json["positions"][1]["subtask"], 1);
    }

    #[test]
    fn pieces_without_keys_that_are_in_objects_count_as_those_in_the_manifest() {
        let place = |object: &str, length| {
            Some(pb::ObjectPlace {
                object: object.to_owned(),
                length,
                ..pb::ObjectPlace::default()
            })
        };
        let mut manifest = manifest();
        let subtask = &mut manifest.regions[0].subtasks[0];
        subtask.positions[0].position.clear();
        subtask.positions[0].place = place("b", 5_000);
        subtask.operators.push(pb::OperatorState {
            uid: "out".to_owned(),
            name: "unwritten".to_owned(),
            place: place("c", 7_000),
            ..pb::OperatorState::default()
        });
        let shown = Inspection::new("/savepoints/a", &manifest, false).json();
        assert_eq!(shown["objects"], 3);
        assert_eq!(shown["bytes"], 2_048 + 3 + 5_000 + 7_000);
        assert_eq!(shown["steps"][0]["states"][0]["bytes"], 5_003);
        assert_eq!(shown["steps"][2]["states"][0]["bytes"], 7_000);
    }

    #[test]
    fn key_groups_and_lengths_that_no_savepoint_has_are_shown_within_its_own_size() {
        let mut hostile = manifest();
        for step in &mut hostile.steps {
            (step.parallelism, step.max_parallelism) = (u32::MAX, u32::MAX);
        }
        let subtasks = &mut hostile.regions[0].subtasks;
        for segment in subtasks.iter_mut().flat_map(|it| &mut it.segments) {
            (segment.first_key_group, segment.end_key_group) = (0, u32::MAX);
            segment.length = u64::MAX;
        }
        let mut shown = None;
        let allocated = allocation_counter::measure(|| {
            shown = Some(Inspection::new("/savepoints/a", &hostile, false).json());
        });
        assert!(allocated.bytes_max < 64 * 1024, "{allocated:?}");
        let shown = shown.expect("it was shown");
        assert_eq!(shown["bytes"], u64::MAX);
        assert_eq!(shown["steps"][1]["states"][0]["key-groups"], u32::MAX);
    }

    #[test]
    fn state_of_a_step_that_is_not_listed_is_shown_all_the_same() {
        let mut manifest = manifest();
        manifest.steps.retain(|step| step.uid != "counts");
        let text = Inspection::new("/savepoints/a", &manifest, false).text();
        assert!(
            text.lines().any(|line| line.starts_with("counts")),
            "{text}"
        );
        assert!(!text.contains("Verified"), "{text}");
    }
}

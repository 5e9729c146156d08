//! Decodes saved positions and the signatures of states, for display.

use prost::Message as _;
use serde_json::{Value, json};
use tanist_dataflow::opened_state;
use tanist_proto::v1::{DatagenPosition, FileSourcePosition, FollowedFiles};

use super::{datagen, file_source, follow_files};

/// How far a source has read.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedPosition {
    /// For people.
    pub text: String,
    /// For programs.
    pub json: Value,
}

/// The position that a source of this project has saved. `None`: these bytes are known to their source alone.
pub fn position(bytes: &[u8]) -> Option<SavedPosition> {
    let (signature, content) = opened_state("position", bytes).ok()?;
    match signature.as_str() {
        datagen::SIGNATURE => Some(of_datagen(&DatagenPosition::decode(&*content).ok()?)),
        file_source::SIGNATURE => Some(of_files(&FileSourcePosition::decode(&*content).ok()?)),
        follow_files::SIGNATURE => Some(of_followed(&FollowedFiles::decode(&*content).ok()?)),
        _ => None,
    }
}

/// The signature of a state without keys. `None`: only its operator can read these bytes.
pub fn signature(bytes: &[u8]) -> Option<String> {
    let (signature, _) = opened_state("state", bytes).ok()?;
    Some(signature)
}

fn of_datagen(position: &DatagenPosition) -> SavedPosition {
    let rest = position.rest.iter();
    let before: Vec<String> = rest
        .map(|it| {
            format!(
                "{} in steps of {} below {}, then ",
                it.next, it.step, it.end
            )
        })
        .collect();
    let rest = position.rest.iter();
    let rest: Vec<Value> = rest
        .map(|it| json!({ "next": it.next, "step": it.step, "end": it.end }))
        .collect();
    SavedPosition {
        text: format!(
            "numbers from {}{} in steps of {}",
            before.concat(),
            position.next,
            position.step
        ),
        json: json!({ "next": position.next, "step": position.step, "rest": rest }),
    }
}

fn of_files(position: &FileSourcePosition) -> SavedPosition {
    let left: Vec<_> = position
        .left
        .iter()
        .map(|it| (String::from_utf8_lossy(&it.path), it))
        .collect();
    let texts = left.iter();
    let texts: Vec<String> = texts
        .map(|(path, it)| format!("{path} from {} to {}", it.start, it.end))
        .collect();
    let values = left.iter();
    let values: Vec<Value> = values
        .map(|(path, it)| json!({ "path": path, "start": it.start, "end": it.end }))
        .collect();
    SavedPosition {
        text: match texts.is_empty() {
            true => "nothing is left of its splits".to_owned(),
            false => format!("left: {}", texts.join(", ")),
        },
        json: json!({ "left": values }),
    }
}

fn of_followed(position: &FollowedFiles) -> SavedPosition {
    let files: Vec<_> = position
        .files
        .iter()
        .map(|it| (String::from_utf8_lossy(&it.path), it))
        .collect();
    let texts = files.iter();
    let texts: Vec<String> = texts
        .map(|(path, it)| format!("{path} at {}", it.offset))
        .collect();
    let values = files.iter();
    let values: Vec<Value> = values
        .map(|(path, it)| {
            json!({ "path": path, "offset": it.offset, "device": it.device, "inode": it.inode })
        })
        .collect();
    SavedPosition {
        text: match texts.is_empty() {
            true => "no file".to_owned(),
            false => texts.join(", "),
        },
        json: json!({ "files": values }),
    }
}

#[cfg(test)]
mod tests {
    use tanist_dataflow::Snapshot;
    use tanist_proto::v1::{DatagenRange, FileRange, FollowedFile, SubtaskSnapshot};

    use super::*;

    fn saved(signature: &str, position: &impl prost::Message) -> Option<SavedPosition> {
        let mut snapshot = Snapshot::default();
        snapshot.save_position_message(signature, position);
        let mut subtask = SubtaskSnapshot::default();
        let added = snapshot.add_to(&mut subtask, "source");
        added.expect("nothing is keyed");
        super::position(&subtask.positions[0].position)
    }

    #[test]
    fn positions_of_the_projects_sources_are_shown_and_others_are_not_guessed() {
        let position = DatagenPosition {
            next: 120,
            step: 2,
            rest: vec![DatagenRange {
                next: 7,
                step: 3,
                end: 20,
            }],
        };
        let shown = saved(datagen::SIGNATURE, &position).expect("known");
        let text = "numbers from 7 in steps of 3 below 20, then 120 in steps of 2";
        assert_eq!(
            (shown.text.as_str(), &shown.json["next"]),
            (text, &json!(120))
        );
        let position = FileSourcePosition {
            left: vec![FileRange {
                path: b"/in/a.csv".to_vec(),
                start: 10,
                end: 30,
                size: 30,
            }],
        };
        let shown = saved(file_source::SIGNATURE, &position).expect("known");
        assert_eq!(shown.text, "left: /in/a.csv from 10 to 30");
        let position = FollowedFiles {
            files: vec![FollowedFile {
                path: b"/in/b.log".to_vec(),
                offset: 99,
                ..FollowedFile::default()
            }],
        };
        let shown = saved(follow_files::SIGNATURE, &position).expect("known");
        assert_eq!(shown.text, "/in/b.log at 99");
        assert_eq!(saved("another", &position), None);
        assert_eq!(super::position(&[1, 2, 3]), None);
    }
}

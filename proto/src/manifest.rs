//! The bytes of a checkpoint's manifest: magic, format, checksum, message.
//!
//! The bytes stand in the record `checkpoints/<job>` or in an object. What a manifest means is not checked here, only
//! that it is the one that was written. Invariants: damaged or truncated bytes are [`ManifestError::Damaged`], never
//! another manifest; intact ones of a later format are [`ManifestError::TooNew`], never damaged. A manifest is written
//! in the lowest format that can say it, so that as many versions as possible read it.
//!
//! ```text
//! 0       magic: "tnCM"
//! 4..6    format, u16, little endian
//! 6..14   XXH3 (64 bit), little endian, of bytes 0..6 followed by bytes 14..
//! 14..    the message CheckpointManifest
//! ```

use prost::Message as _;

use crate::checksum;
use crate::v1::CheckpointManifest;

/// The newest format that this version reads.
pub const FORMAT: u16 = 1;

const MAGIC: [u8; 4] = *b"tnCM";
const PREFIX: usize = MAGIC.len() + 2;
const HEADER: usize = PREFIX + 8;

/// Why bytes are not a manifest that this version reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The bytes are not those that were written; the reason.
    #[error("the manifest is damaged: {0}")]
    Damaged(String),
    /// A later version wrote it. Nothing is wrong with it.
    #[error(
        "the manifest has format {found}, and this version reads formats up to {FORMAT}: use a later version"
    )]
    TooNew {
        /// Its format.
        found: u16,
    },
}

/// Encodes a manifest in the lowest format that can say it.
pub fn encode(manifest: &CheckpointManifest) -> Vec<u8> {
    seal(lowest_format(manifest), &manifest.encode_to_vec())
}

/// Decodes a manifest.
pub fn decode(bytes: &[u8]) -> Result<CheckpointManifest, ManifestError> {
    let damaged = |reason: String| Err(ManifestError::Damaged(reason));
    let Some((header, message)) = bytes.split_first_chunk::<HEADER>() else {
        return damaged(format!("{} bytes are too few", bytes.len()));
    };
    let [magic @ .., low, high] = header.first_chunk::<PREFIX>().expect("longer").to_owned();
    if magic != MAGIC {
        return damaged("it does not begin like a manifest".to_owned());
    }
    // Before the format: with damaged bytes that is any number, and the manifest would count as too new.
    let sum = header.last_chunk::<8>().expect("longer");
    if checksum(&header[..PREFIX], message) != u64::from_le_bytes(*sum) {
        return damaged("its checksum does not match".to_owned());
    }
    let found = u16::from_le_bytes([low, high]);
    if found > FORMAT {
        return Err(ManifestError::TooNew { found });
    }
    CheckpointManifest::decode(message)
        .or_else(|error| damaged(format!("its message can't be decoded: {error}")))
}

/// The lowest format that can say everything in the manifest. There is only one format; a manifest that uses a field of
/// a later one must get that format here, or an earlier version would read it without the field.
pub fn lowest_format(_: &CheckpointManifest) -> u16 {
    FORMAT
}

fn seal(format: u16, message: &[u8]) -> Vec<u8> {
    let [low, high] = format.to_le_bytes();
    let mut bytes = MAGIC.to_vec();
    bytes.extend([low, high]);
    let sum = checksum(&bytes, message);
    bytes.extend(sum.to_le_bytes());
    bytes.extend(message);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::v1 as pb;

    /// A manifest that uses each message once.
    fn sample() -> CheckpointManifest {
        let committable = |content: &[u8]| pb::CheckpointCommittable {
            uid: "sink".to_owned(),
            kind: "file".to_owned(),
            content: content.to_vec(),
        };
        let segment = |object: &str| pb::StateSegment {
            uid: "count".to_owned(),
            name: "counts".to_owned(),
            object: object.to_owned(),
            offset: 4096,
            length: 65_536,
            checksum: 0x0123_4567_89ab_cdef,
            content: Vec::new(),
            first_key_group: 0,
            end_key_group: 64,
            ..pb::StateSegment::default()
        };
        let working = pb::SubtaskSnapshot {
            vertex_id: "0000000000000000000000000000000a".to_owned(),
            subtask: 1,
            ended: false,
            positions: vec![pb::SourcePosition {
                uid: "numbers".to_owned(),
                position: vec![1, 2, 3],
                ..pb::SourcePosition::default()
            }],
            operators: vec![pb::OperatorState {
                uid: "count".to_owned(),
                name: "seen".to_owned(),
                content: vec![4],
                place: None,
                redistribution: 0,
            }],
            segments: vec![segment("7-2-0123456789abcdef")],
            channels: vec![segment("7-2-fedcba9876543210")],
            committables: vec![committable(b"part-1")],
            output: Vec::new(),
            files: vec![b"/out/.tanist/a".to_vec()],
            from_start: false,
        };
        let ended = pb::SubtaskSnapshot {
            vertex_id: "0000000000000000000000000000000a".to_owned(),
            subtask: 2,
            ended: true,
            committables: vec![committable(b"part-2")],
            output: vec![pb::Committable {
                pending_path: "/out/.tanist/b".to_owned(),
                final_path: "/out/part-2".to_owned(),
            }],
            ..pb::SubtaskSnapshot::default()
        };
        let kind = |kind: pb::RegionSnapshotKind| pb::RegionSnapshot {
            kind: kind.into(),
            ..pb::RegionSnapshot::default()
        };
        CheckpointManifest {
            job_id: "0000000000000000000000000000000b".to_owned(),
            number: 7,
            layout: 1,
            regions: vec![
                pb::RegionSnapshot {
                    number: 7,
                    generation: 2,
                    subtasks: vec![working, ended],
                    ..kind(pb::RegionSnapshotKind::Taken)
                },
                kind(pb::RegionSnapshotKind::FromOrigin),
                kind(pb::RegionSnapshotKind::FromStart),
            ],
            coordinators: vec![pb::CoordinatorState {
                vertex_id: "0000000000000000000000000000000c".to_owned(),
                operator: "files".to_owned(),
                generation: 2,
                state: None,
            }],
            uncommitted: vec![committable(b"part-0"), committable(b"part-1")],
            steps: vec![pb::ManifestStep {
                uid: "count".to_owned(),
                name: "Count".to_owned(),
                kind: "count".to_owned(),
                vertex_id: "0000000000000000000000000000000a".to_owned(),
                parallelism: 3,
                max_parallelism: 128,
                keyed: "count by word: string".to_owned(),
            }],
        }
    }

    const FORMAT_1: &str = concat!(
        "746e434d0100892a4a411eb344ab0a2030303030303030303030303030303030303030303030303030303030",
        "303030621007180122c40208011007180222de010a2030303030303030303030303030303030303030303030",
        "303030303030303030611001220e0a076e756d6265727312030102032a100a05636f756e7412047365656e1a",
        "010432370a05636f756e741206636f756e74731a14372d322d30313233343536373839616263646566208020",
        "2880800431efcdab896745230148403a370a05636f756e741206636f756e74731a14372d322d666564636261",
        "393837363534333231302080202880800431efcdab8967452301484042140a0473696e6b120466696c651a06",
        "706172742d31520e2f6f75742f2e74616e6973742f61225b0a20303030303030303030303030303030303030",
        "30303030303030303030303030611002180142140a0473696e6b120466696c651a06706172742d324a1d0a0e",
        "2f6f75742f2e74616e6973742f62120b2f6f75742f706172742d3222020802220208032a2b0a203030303030",
        "303030303030303030303030303030303030303030303030303063120566696c6573180232140a0473696e6b",
        "120466696c651a06706172742d3032140a0473696e6b120466696c651a06706172742d313a530a05636f756e",
        "741205436f756e741a05636f756e742220303030303030303030303030303030303030303030303030303030",
        "303030306128033080013a15636f756e7420627920776f72643a20737472696e67",
    );

    #[test]
    fn a_manifest_kept_from_format_one_is_still_read() {
        assert_eq!(
            decode(&hex::decode(FORMAT_1).expect("digits")),
            Ok(sample())
        );
    }

    #[test]
    fn a_manifest_is_still_written_as_it_was_in_format_one() {
        assert_eq!(hex::encode(encode(&sample())), FORMAT_1);
    }

    /// A record that uses each of its messages once.
    fn sample_record() -> pb::JobCheckpoints {
        let place = pb::stored_manifest::Place::Inline(vec![1, 2]);
        let inline = pb::StoredManifest { place: Some(place) };
        let place = pb::stored_manifest::Place::Object(pb::ManifestObject {
            name: "manifest-5-0123456789abcdef".to_owned(),
            length: 9_000,
        });
        let object = pb::StoredManifest { place: Some(place) };
        pb::JobCheckpoints {
            job_id: "0000000000000000000000000000000b".to_owned(),
            next: 23,
            floor: 6,
            layout: 1,
            retained: vec![pb::CompletedCheckpoint {
                number: 7,
                manifest: Some(inline.clone()),
                epoch: 3,
                size: 65_536,
                committed: true,
                triggered_at_ms: 0,
            }],
            removing: vec![pb::SubsumedCheckpoint {
                number: 5,
                manifest: Some(object),
            }],
            origin: Some(pb::CheckpointOrigin {
                number: 2,
                manifest: Some(inline),
                directory: "/savepoints/2".to_owned(),
            }),
            requests: vec![pb::SavepointRequest {
                trigger_id: "a".to_owned(),
                directory: "/savepoints".to_owned(),
                number: 7,
                progress: pb::SavepointProgress::Completed.into(),
                outcome: "/savepoints/7".to_owned(),
                stops: true,
                requested_at_ms: 1_000,
                from: 6,
            }],
            retention: pb::CheckpointRetention::RetainOnCancellation.into(),
            started_from: "/savepoints/2".to_owned(),
        }
    }

    const RECORD_FORMAT_1: &str = concat!(
        "0a2030303030303030303030303030303030303030303030303030303030303030621017180620012a100807",
        "12040a020102180320808004280132260805122212200a1b6d616e69666573742d352d303132333435363738",
        "3961626364656610a8463a17080212040a0201021a0d2f73617665706f696e74732f32422a0a0161120b",
        "2f73617665706f696e7473180720022a0d2f73617665706f696e74732f37300138e80740064801520d2f7361",
        "7665706f696e74732f32",
    );

    #[test]
    fn a_record_kept_from_format_one_is_still_read() {
        assert_eq!(
            hex::encode(sample_record().encode_to_vec()),
            RECORD_FORMAT_1
        );
        let bytes = hex::decode(RECORD_FORMAT_1).expect("digits");
        let read = pb::JobCheckpoints::decode(&*bytes);
        assert_eq!(read, Ok(sample_record()));
    }

    #[test]
    fn a_later_format_is_too_new_and_not_damaged() {
        let later = seal(FORMAT + 1, b"not a message of format one");
        let found = FORMAT + 1;
        assert_eq!(decode(&later), Err(ManifestError::TooNew { found }));
    }

    #[test]
    fn a_manifest_is_found_damaged_wherever_a_byte_is_changed() {
        let intact = encode(&sample());
        for at in 0..intact.len() {
            let mut damaged = intact.clone();
            damaged[at] ^= 0xff;
            let decoded = decode(&damaged);
            let is_found = matches!(decoded, Err(ManifestError::Damaged(_)));
            assert!(is_found, "byte {at}: {decoded:?}");
        }
    }

    proptest! {
        #[test]
        fn a_flipped_bit_or_a_missing_end_is_found(
            numbers in prop::collection::vec((any::<u64>(), any::<u64>()), 0..8),
            content: Vec<u8>,
            at: prop::sample::Index,
            bit in 0u8..8,
        ) {
            let mut manifest = sample();
            manifest.coordinators.clear();
            manifest.uncommitted[0].content = content;
            manifest.regions.extend(numbers.iter().map(|(number, generation)| {
                pb::RegionSnapshot { number: *number, generation: *generation, ..pb::RegionSnapshot::default() }
            }));
            let mut written = encode(&manifest);
            prop_assert_eq!(&decode(&written), &Ok(manifest));
            let at = at.index(written.len());
            let cut = decode(&written[..at]);
            prop_assert!(matches!(cut, Err(ManifestError::Damaged(_))), "{:?}", cut);
            written[at] ^= 1 << bit;
            let flipped = decode(&written);
            prop_assert!(matches!(flipped, Err(ManifestError::Damaged(_))), "{:?}", flipped);
        }

        #[test]
        fn any_bytes_are_an_error_and_no_panic(bytes: Vec<u8>) {
            prop_assert!(decode(&bytes).is_err());
        }
    }
}

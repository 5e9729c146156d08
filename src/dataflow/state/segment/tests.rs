//! What is written is read, and nothing else.

use proptest::prelude::*;

use super::*;

type Entries = BTreeMap<(i64, u64, Vec<u8>), Vec<u8>>;

fn all(max_parallelism: u32) -> KeyGroups {
    KeyGroups::of_subtask(0, 1, max_parallelism)
}

fn entries(of: &[(i64, &[u8], &[u8])]) -> Entries {
    let entries = of.iter();
    let entries = entries
        .map(|(namespace, key, value)| ((*namespace, key_hash(key), key.to_vec()), value.to_vec()));
    entries.collect()
}

/// Writes items as they are.
fn written(subject: &Subject, write: impl FnOnce(&mut SegmentWriter<'_>)) -> Vec<u8> {
    seal(|bytes| {
        let mut writer = SegmentWriter::new(bytes, subject.clone());
        write(&mut writer);
        writer.finish();
    })
}

fn encoded(entries: &Entries, groups: KeyGroups) -> Vec<u8> {
    let subject = Subject::whole("counts".to_owned(), groups, 7);
    written(&subject, |writer| {
        let mut last = None;
        for ((namespace, hash, key), value) in entries {
            if last.replace(*namespace) != Some(*namespace) {
                writer.namespace(*namespace, false);
            }
            let slice = subject.slice_of(*hash).expect("its own");
            writer.entry(slice, key, |bytes| bytes.extend_from_slice(value));
        }
    })
}

/// Passes on all items, in order.
fn each<'s>(
    segment: &Segment<'s>,
    take: impl FnMut(Item<'s>) -> Result<(), StateProblem>,
) -> Result<(), StateProblem> {
    let found = segment.read(segment.pieces().iter(), |_| true, take)?;
    segment.check(found)
}

fn decoded(bytes: &[u8], max_parallelism: u32) -> Result<Entries, StateProblem> {
    let segment = Segment::open(bytes, "counts", max_parallelism)?;
    let mut entries = Entries::new();
    each(&segment, |item| {
        if let Item::Entry {
            namespace,
            hash,
            key,
            value,
            ..
        } = item
        {
            entries.insert((namespace, hash, key.to_vec()), value.to_vec());
        }
        Ok(())
    })?;
    Ok(entries)
}

fn sample() -> Entries {
    let long = [7; 300];
    entries(&[
        (-5, b"a", b"a"),
        (0, b"b", b""),
        (0, b"longer", &long),
        (i64::MIN, b"", b"x"),
        (i64::MAX, &long, b"y"),
    ])
}

fn any_entries() -> impl Strategy<Value = Entries> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..30);
    let namespace = prop_oneof![-3_i64..3, any::<i64>()];
    let entry = (namespace, bytes(), bytes());
    prop::collection::vec(entry, 0..60).prop_map(|all| {
        let all = all.iter();
        let all = all.map(|(namespace, key, value)| (*namespace, &key[..], &value[..]));
        entries(&all.collect::<Vec<_>>())
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(entries in any_entries()) {
        let segment = encoded(&entries, all(16));
        let opened = Segment::open(&segment, "counts", 16).expect("intact");
        let counts = opened.entries();
        prop_assert_eq!(counts.values().sum::<usize>(), entries.len());
        for (namespace, count) in counts {
            prop_assert_eq!(entries.keys().filter(|key| key.0 == *namespace).count(), *count);
        }
        prop_assert_eq!(decoded(&segment, 16).expect("intact"), entries);
    }

    #[test]
    fn slices_are_all_key_groups_in_order(max in 1_u32..2_000, parallelism in 1_u32..50) {
        let parallelism = parallelism.min(max);
        for subtask in 0..parallelism {
            let groups = KeyGroups::of_subtask(subtask, parallelism, max);
            let (first, end) = groups.range();
            let slices = slices_of(groups);
            prop_assert_eq!(slices.last(), Some(&end));
            prop_assert_eq!(slices.len() as u32, (end - first).clamp(1, SLICES));
            let mut begin = first;
            for end in slices {
                prop_assert!(begin < end);
                begin = end;
            }
        }
    }
}

#[test]
fn each_damaged_or_missing_byte_is_noticed() {
    let intact = encoded(&sample(), all(8));
    for index in 0..intact.len() {
        for bit in 0..8 {
            let mut damaged = intact.clone();
            damaged[index] ^= 1 << bit;
            decoded(&damaged, 8).expect_err("damaged");
        }
        decoded(&intact[..index], 8).expect_err("truncated");
    }
    let mut longer = intact;
    longer.push(0);
    decoded(&longer, 8).expect_err("too long");
}

#[test]
fn removals_and_dropped_namespaces_are_read() {
    let mut subject = Subject::whole("counts".to_owned(), all(8), 7);
    subject.base = 5;
    subject.slices.iter_mut().for_each(|it| it.position = 2);
    let segment = written(&subject, |writer| {
        writer.namespace(-1, true);
        writer.namespace(4, true);
        writer.removal(0, b"a");
    });
    let segment = Segment::open(&segment, "counts", 8).expect("intact");
    let mut items = Vec::new();
    let taken = each(&segment, |item| {
        items.push(item);
        Ok(())
    });
    taken.expect("intact");
    let removal = Item::Removal {
        namespace: 4,
        hash: key_hash(b"a"),
        key: b"a",
    };
    assert_eq!(items, [Item::Dropped(-1), Item::Dropped(4), removal]);
    assert_eq!(segment.subject().base, 5);
    let positions = segment.subject().slices.iter().map(|it| it.position);
    assert!(positions.eq([2; 8]));
}

#[test]
fn what_a_wrong_writer_sealed_is_noticed() {
    let subject = Subject::whole("counts".to_owned(), all(8), 7);
    let (mut first, mut second) = (&b"a"[..], &b"b"[..]);
    if key_hash(first) > key_hash(second) {
        std::mem::swap(&mut first, &mut second);
    }
    let keys = |keys: &[&[u8]]| {
        written(&subject, |writer| {
            writer.namespace(0, false);
            keys.iter().for_each(|key| writer.entry(0, key, |_| {}));
        })
    };
    decoded(&keys(&[first, second]), 8).expect("intact");
    decoded(&keys(&[second, first]), 8).expect_err("not in order");
    decoded(&keys(&[first, first]), 8).expect_err("twice");
    let namespaces = |namespaces: &[i64]| {
        written(&subject, |writer| {
            let namespaces = namespaces.iter();
            namespaces.for_each(|it| writer.namespace(*it, false));
        })
    };
    decoded(&namespaces(&[-1, 0]), 8).expect("intact");
    decoded(&namespaces(&[0, -1]), 8).expect_err("not in order");
    decoded(&namespaces(&[0, 0]), 8).expect_err("twice");
    let nowhere = written(&subject, |writer| writer.entry(0, b"a", |_| {}));
    decoded(&nowhere, 8).expect_err("no namespace");
    let counted = written(&subject, |writer| {
        writer.namespace(0, false);
        writer.subject.slices[0].entries = 1;
    });
    decoded(&counted, 8).expect_err("one is missing");
    let half = Subject::whole("counts".to_owned(), KeyGroups::of_subtask(0, 2, 8), 7);
    let key = (0..=u8::MAX).find(|key| half.slice_of(key_hash(&[*key])).is_none());
    let key = [key.expect("one of many")];
    let foreign = written(&half, |writer| {
        writer.namespace(0, false);
        writer.entry(0, &key, |_| {});
    });
    decoded(&foreign, 8).expect_err("of another subtask");
    let later = Subject {
        base: 7,
        slices: vec![Slice {
            end: 8,
            position: 1,
            bytes: 0,
            entries: 0,
        }],
        ..subject.clone()
    };
    decoded(&written(&later, |_| {}), 8).expect_err("it goes on from itself");
    let unordered = Subject {
        slices: [4, 2]
            .map(|end| Slice {
                end,
                ..later.slices[0]
            })
            .to_vec(),
        base: 1,
        ..subject
    };
    decoded(&written(&unordered, |_| {}), 8).expect_err("slices are not in order");
}

/// A segment with this footer, sealed as it is.
fn with_footer(items: &[u8], footer: &SegmentFooter) -> Vec<u8> {
    seal(|bytes| {
        bytes.extend(items);
        let footer = footer.encode_to_vec();
        let length = u32::try_from(footer.len()).expect("short");
        bytes.extend(footer);
        bytes.extend(length.to_le_bytes());
    })
}

#[test]
fn numbers_of_a_footer_that_its_items_can_not_have_are_refused_before_they_are_used() {
    let slice = |end_key_group, bytes| SegmentSlice {
        end_key_group,
        position: 0,
        bytes,
        entries: u64::from(bytes > 0),
    };
    let items = [2, 0, 4, b'a', 1, b'x'];
    let intact = SegmentFooter {
        signature: "counts".to_owned(),
        max_parallelism: 8,
        number: 7,
        slices: vec![slice(8, 4)],
        ..SegmentFooter::default()
    };
    decoded(&with_footer(&items, &intact), 8).expect("intact");
    let slices = |slices: Vec<SegmentSlice>| SegmentFooter {
        slices,
        ..intact.clone()
    };
    let entries = |entries| {
        slices(vec![SegmentSlice {
            entries,
            ..slice(8, 4)
        }])
    };
    for footer in [
        entries(0),
        entries(2),
        entries(7),
        entries(u64::MAX),
        slices(vec![slice(8, 3)]),
        slices(vec![slice(8, u64::MAX)]),
        slices(vec![slice(4, u64::MAX), slice(8, 5)]),
        slices(vec![slice(4, u64::MAX - 1), slice(8, u64::MAX)]),
        slices(vec![slice(u32::MAX, 4)]),
        slices([slice(8, 4), slice(8, 0)].repeat(500)),
        slices(Vec::new()),
        SegmentFooter {
            first_key_group: u32::MAX,
            ..intact.clone()
        },
    ] {
        let problem = decoded(&with_footer(&items, &footer), 8);
        let problem = problem.expect_err("damaged");
        assert!(matches!(problem, StateProblem::Damaged(_)), "{problem}");
    }
    for length in [0, 1, u32::MAX] {
        let cut = seal(|bytes| bytes.extend(length.to_le_bytes()));
        decoded(&cut, 8).expect_err("no footer");
    }
}

proptest! {
    #[test]
    fn bytes_that_are_changed_and_sealed_are_no_panic_and_need_no_more_than_a_multiple_of_their_number(
        entries in any_entries(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut content = encoded(&entries, all(16)).split_off(14);
        for (at, to) in changes {
            let at = at.index(content.len());
            content[at] = to;
        }
        let changed = seal(|bytes| bytes.extend(&content));
        let allocated = allocation_counter::measure(|| {
            if let Ok(segment) = Segment::open(&changed, "counts", 16) {
                let _ended_early = each(&segment, |_| Ok(()));
            }
        });
        prop_assert!(allocated.bytes_max < 1024 + 32 * changed.len() as u64, "{:?}", allocated);
    }

    #[test]
    fn any_bytes_that_are_sealed_are_no_panic(content: Vec<u8>) {
        let sealed = seal(|bytes| bytes.extend(&content));
        let allocated = allocation_counter::measure(|| {
            if let Ok(segment) = Segment::open(&sealed, "", 0) {
                let _ended_early = each(&segment, |_| Ok(()));
            }
        });
        prop_assert!(allocated.bytes_max < 1024 + 32 * sealed.len() as u64, "{:?}", allocated);
    }
}

#[test]
fn the_state_of_something_else_is_named() {
    let segment = encoded(&sample(), all(8));
    let problem = Segment::open(&segment, "sums", 8).expect_err("foreign");
    assert_eq!(
        problem.to_string(),
        "is that of counts in 8 key groups, and the operator needs that of sums in 8 key groups"
    );
    let problem = decoded(&segment, 16).expect_err("other groups");
    assert!(matches!(problem, StateProblem::Foreign { .. }), "{problem}");
}

/// The bytes of a format never change: what a process wrote is read by each later version.
#[test]
fn a_sample_of_the_format_is_read_and_written() {
    let segment = encoded(&entries(&[(-1, b"a", b"x"), (2, b"b", b"")]), all(2));
    let items = [3 - 1, 1, 4, b'a', 1, b'x', 2, 4, 4, b'b', 0];
    assert_eq!(segment[14..25], items);
    let footer = b"\x0a\x06counts\x10\x02\x18\x07\x32\x02\x08\x01\x32\x02\x08\x02";
    let sizes = segment[25..].len();
    assert!(sizes > footer.len());
    assert_eq!(decoded(&segment, 2).expect("intact").len(), 2);
}

//! Keys: the bytes that key columns encode to, the key group of a key, and the subtask that owns the
//! group.
//!
//! Two records have the same key if and only if their encodings are equal. The maximum parallelism
//! fixes the number of key groups; changing the parallelism moves whole groups. Tasks on different
//! hosts must agree on the hash: it never changes.

use std::sync::Arc;

use arrow_array::builder::{
    BooleanBuilder, Float64Builder, Int64Builder, StringBuilder, TimestampMillisecondBuilder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use xxhash_rust::xxh3::xxh3_64;

use super::record::{self, ColumnView};

/// Error: the records don't have this key column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no key column {column:?} among ({columns})")]
pub struct NoKeyColumn {
    column: String,
    columns: String,
}

/// The columns that make up the key.
#[derive(Debug, Clone)]
pub struct KeyColumns {
    columns: Vec<(usize, Field)>,
}

impl KeyColumns {
    /// Finds the columns in the schema of the records.
    pub fn resolve(schema: &Schema, names: &[String]) -> Result<KeyColumns, NoKeyColumn> {
        let columns = names
            .iter()
            .map(|name| match schema.column_with_name(name) {
                Some((index, field)) => Ok((index, field.clone())),
                None => Err(NoKeyColumn {
                    column: name.clone(),
                    columns: record::describe(schema),
                }),
            });
        Ok(KeyColumns {
            columns: columns.collect::<Result<_, _>>()?,
        })
    }

    /// The key columns themselves.
    pub fn fields(&self) -> impl Iterator<Item = &Field> {
        self.columns.iter().map(|(_, field)| field)
    }

    /// Returns the key columns of a batch.
    pub fn project(&self, batch: &RecordBatch) -> Vec<ArrayRef> {
        self.columns
            .iter()
            .map(|(index, _)| Arc::clone(batch.column(*index)))
            .collect()
    }

    /// Returns the keys of a batch.
    pub fn keys_of<'a>(&self, batch: &'a RecordBatch) -> Keys<'a> {
        let columns = self.columns.iter();
        let views = columns.filter_map(|(index, _)| ColumnView::of(batch.column(*index)));
        Keys {
            columns: views.collect(),
            number: [0; 8],
            scratch: Vec::new(),
        }
    }

    /// Checks a key that this process did not encode, or says what is wrong. [`KeyColumns::decode`] panics on a key
    /// that does not pass.
    pub fn check(&self, key: &[u8]) -> Result<(), String> {
        let last = self.columns.len().saturating_sub(1);
        let mut rest = Some(key);
        for (index, (_, field)) in self.columns.iter().enumerate() {
            rest = rest.and_then(|rest| match field.data_type() {
                DataType::Int64 | DataType::Float64 | DataType::Timestamp(..) => rest.get(8..),
                DataType::Boolean => rest.get(1..),
                _ if index == last => Some(&[]),
                _ => {
                    let (length, rest) = rest.split_first_chunk()?;
                    rest.get(usize::try_from(u64::from_le_bytes(*length)).ok()?..)
                }
            });
        }
        match rest {
            Some([]) => Ok(()),
            Some(_) | None => Err(format!(
                "a key of {} bytes is not one of its columns",
                key.len()
            )),
        }
    }

    /// Decodes keys back into columns. They are keys of these columns.
    pub fn decode<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Vec<ArrayRef> {
        let mut builders: Vec<_> = self
            .columns
            .iter()
            .map(|(_, field)| KeyBuilder::new(field.data_type()))
            .collect();
        let last = builders.len().saturating_sub(1);
        for key in keys {
            let mut rest = key;
            for (index, builder) in builders.iter_mut().enumerate() {
                rest = builder.append(rest, index == last);
            }
        }
        builders.into_iter().map(KeyBuilder::finish).collect()
    }
}

/// The keys of one batch's records.
pub struct Keys<'a> {
    columns: Vec<ColumnView<'a>>,
    /// The last key, if it is one number.
    number: [u8; 8],
    scratch: Vec<u8>,
}

impl Keys<'_> {
    /// Returns the encoded key of a row: numbers in 8 bytes; texts preceded by their length, except in
    /// the last column.
    #[inline]
    pub fn key(&mut self, row: usize) -> &[u8] {
        match self.columns.as_slice() {
            [ColumnView::Text(only)] => return only.value(row).as_bytes(),
            [ColumnView::Int64(only)] => {
                self.number = only.value(row).to_le_bytes();
                return &self.number;
            }
            _ => {}
        }
        self.scratch.clear();
        let last = self.columns.len().saturating_sub(1);
        for (index, column) in self.columns.iter().enumerate() {
            match column {
                ColumnView::Text(array) if index == last => {
                    self.scratch.extend_from_slice(array.value(row).as_bytes());
                }
                column => column.write_bytes(row, &mut self.scratch),
            }
        }
        &self.scratch
    }
}

impl ColumnView<'_> {
    /// Appends the value of a row, which is not null, as the bytes by which it is hashed: a number in 8 bytes, a text
    /// preceded by its length. Equal values have the same bytes. The format never changes.
    #[inline]
    pub fn write_bytes(&self, row: usize, bytes: &mut Vec<u8>) {
        match self {
            ColumnView::Text(array) => {
                let text = array.value(row).as_bytes();
                bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
                bytes.extend_from_slice(text);
            }
            ColumnView::Int64(array) => bytes.extend_from_slice(&array.value(row).to_le_bytes()),
            ColumnView::Timestamp(array) => {
                bytes.extend_from_slice(&array.value(row).to_le_bytes());
            }
            ColumnView::Float64(array) => {
                let bits = canonical(array.value(row)).to_bits();
                bytes.extend_from_slice(&bits.to_le_bytes());
            }
            ColumnView::Bool(array) => bytes.push(u8::from(array.value(row))),
        }
    }
}

/// Maps equal numbers to one bit pattern: all NaNs to one NaN, `-0.0` to `0.0`.
fn canonical(value: f64) -> f64 {
    if value.is_nan() {
        f64::NAN
    } else if value == 0.0 {
        0.0
    } else {
        value
    }
}

enum KeyBuilder {
    Text(StringBuilder),
    Int64(Int64Builder),
    Float64(Float64Builder),
    Bool(BooleanBuilder),
    Timestamp(TimestampMillisecondBuilder),
}

impl KeyBuilder {
    fn new(data_type: &DataType) -> KeyBuilder {
        match data_type {
            DataType::Int64 => KeyBuilder::Int64(Int64Builder::new()),
            DataType::Float64 => KeyBuilder::Float64(Float64Builder::new()),
            DataType::Boolean => KeyBuilder::Bool(BooleanBuilder::new()),
            DataType::Timestamp(..) => KeyBuilder::Timestamp(TimestampMillisecondBuilder::new()),
            _ => KeyBuilder::Text(StringBuilder::new()),
        }
    }

    /// Appends the first value of `bytes`, which [`Keys::key`] encoded, and returns the rest.
    fn append<'k>(&mut self, bytes: &'k [u8], last: bool) -> &'k [u8] {
        match self {
            KeyBuilder::Text(builder) => {
                let (text, rest) = if last {
                    (bytes, &bytes[bytes.len()..])
                } else {
                    let (length, rest) = take_eight(bytes);
                    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
                    rest.split_at(length.min(rest.len()))
                };
                builder.append_value(String::from_utf8_lossy(text));
                rest
            }
            KeyBuilder::Int64(builder) => {
                let (value, rest) = take_eight(bytes);
                builder.append_value(i64::from_le_bytes(value));
                rest
            }
            KeyBuilder::Timestamp(builder) => {
                let (value, rest) = take_eight(bytes);
                builder.append_value(i64::from_le_bytes(value));
                rest
            }
            KeyBuilder::Float64(builder) => {
                let (value, rest) = take_eight(bytes);
                builder.append_value(f64::from_bits(u64::from_le_bytes(value)));
                rest
            }
            KeyBuilder::Bool(builder) => {
                builder.append_value(bytes.first() == Some(&1));
                bytes.get(1..).unwrap_or_default()
            }
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            KeyBuilder::Text(mut builder) => Arc::new(builder.finish()),
            KeyBuilder::Int64(mut builder) => Arc::new(builder.finish()),
            KeyBuilder::Float64(mut builder) => Arc::new(builder.finish()),
            KeyBuilder::Bool(mut builder) => Arc::new(builder.finish()),
            KeyBuilder::Timestamp(mut builder) => Arc::new(builder.finish()),
        }
    }
}

fn take_eight(bytes: &[u8]) -> ([u8; 8], &[u8]) {
    let (value, rest) = bytes
        .split_first_chunk()
        .expect("keys are decoded as they were encoded");
    (*value, rest)
}

/// The key group of an encoded key.
#[inline]
pub(crate) fn key_group(key: &[u8], max_parallelism: u32) -> u32 {
    group_of_hash(key_hash(key), max_parallelism)
}

/// The hash of an encoded key, from which its key group follows.
#[inline]
pub(crate) fn key_hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// The key group of a hash. It grows with the hash, so that each group, and each subtask, is one range of hashes.
#[inline]
pub(crate) fn group_of_hash(hash: u64, max_parallelism: u32) -> u32 {
    let group = ((hash >> 32) * u64::from(max_parallelism.max(1))) >> 32;
    u32::try_from(group).expect("less than the maximum parallelism")
}

/// The subtask that owns a key group. Each subtask owns a contiguous range of groups, as in Flink.
#[inline]
pub(crate) fn subtask_of_group(group: u32, parallelism: u32, max_parallelism: u32) -> u32 {
    let subtask = u64::from(group) * u64::from(parallelism) / u64::from(max_parallelism.max(1));
    u32::try_from(subtask).expect("less than the parallelism")
}

#[cfg(test)]
mod tests {
    use arrow_array::{BooleanArray, Float64Array, Int64Array, StringArray};
    use proptest::prelude::*;

    use super::*;

    fn batch() -> RecordBatch {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("a", Arc::new(StringArray::from(vec!["x", "xy", "", "x"]))),
            (
                "b",
                Arc::new(StringArray::from(vec!["yz", "z", "xyz", "yz"])),
            ),
            ("n", Arc::new(Int64Array::from(vec![1, 1, 1, 1]))),
            ("f", Arc::new(Float64Array::from(vec![0.0, 0.0, 0.0, -0.0]))),
            (
                "t",
                Arc::new(BooleanArray::from(vec![true, true, false, true])),
            ),
        ];
        RecordBatch::try_from_iter(columns).expect("columns of one length")
    }

    fn keys(names: &[&str]) -> (KeyColumns, Vec<Vec<u8>>) {
        let batch = batch();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let columns = KeyColumns::resolve(&batch.schema(), &names).expect("columns are there");
        let mut keys = columns.keys_of(&batch);
        let encoded = (0..batch.num_rows())
            .map(|row| keys.key(row).to_vec())
            .collect();
        (columns, encoded)
    }

    #[test]
    fn different_keys_have_different_bytes_and_equal_ones_the_same() {
        let (_, encoded) = keys(&["a", "b", "n", "f", "t"]);
        assert_eq!(encoded[0], encoded[3]);
        assert_ne!(encoded[0], encoded[1]);
        assert_ne!(encoded[1], encoded[2]);
    }

    #[test]
    fn keys_decode_to_what_was_encoded() {
        for names in [
            &["a"][..],
            &["n"],
            &["a", "b"],
            &["a", "n", "t", "b"],
            &["f", "a", "t"],
        ] {
            let (columns, encoded) = keys(names);
            let decoded = columns.decode(encoded.iter().map(Vec::as_slice));
            let expected = columns.project(&batch());
            for (decoded, expected) in decoded.iter().zip(&expected) {
                let texts = |array: &ArrayRef| -> Vec<String> {
                    let batch = RecordBatch::try_from_iter([("c", Arc::clone(array))]);
                    let batch = batch.expect("one column");
                    (0..array.len())
                        .map(|row| record::show_record(&batch, row).replace("-0.0", "0.0"))
                        .collect()
                };
                assert_eq!(texts(decoded), texts(expected));
            }
        }
    }

    #[test]
    fn each_key_group_has_one_owner_and_each_subtask_has_groups() {
        for (parallelism, max_parallelism) in [(1, 1), (3, 128), (128, 128), (5, 7)] {
            let owners: Vec<_> = (0..max_parallelism)
                .map(|group| subtask_of_group(group, parallelism, max_parallelism))
                .collect();
            assert!(owners.is_sorted());
            let distinct: std::collections::BTreeSet<_> = owners.into_iter().collect();
            assert_eq!(distinct, (0..parallelism).collect());
        }
    }

    #[test]
    fn the_key_group_of_a_key_never_changes() {
        assert_eq!(xxh3_64(b""), 0x2d06_8005_38d3_94c2);
        // 0x2d068005 * 128 / 2^32, and * 7.
        assert_eq!(key_group(b"", 128), 22);
        assert_eq!(key_group(b"", 7), 1);
    }

    proptest! {
        #[test]
        fn a_key_group_is_less_than_the_maximum_parallelism(hash: u64, max in any_parallelism()) {
            prop_assert!(group_of_hash(hash, max) < max);
        }

        #[test]
        fn a_higher_hash_has_no_lower_key_group(one: u64, other: u64, max in any_parallelism()) {
            let (low, high) = (one.min(other), one.max(other));
            prop_assert!(group_of_hash(low, max) <= group_of_hash(high, max));
        }

        #[test]
        fn each_key_group_has_hashes(max in any_parallelism(), pick: prop::sample::Index) {
            let group = pick.index(max as usize) as u64;
            // The lowest hash of the group, and the one before it.
            let first = (group << 32).div_ceil(u64::from(max)) << 32;
            prop_assert_eq!(u64::from(group_of_hash(first, max)), group);
            if let Some(before) = first.checked_sub(1) {
                prop_assert_eq!(u64::from(group_of_hash(before, max)), group - 1);
            }
        }

        #[test]
        fn a_subtask_is_one_range_of_key_groups(max in 1u32..1_000, pick: prop::sample::Index) {
            let parallelism = 1 + u32::try_from(pick.index(max as usize)).expect("below the maximum");
            let owners: Vec<u32> =
                (0..max).map(|group| subtask_of_group(group, parallelism, max)).collect();
            prop_assert!(owners.is_sorted());
            let mut distinct = owners;
            distinct.dedup();
            prop_assert_eq!(distinct, (0..parallelism).collect::<Vec<_>>());
        }
    }

    fn any_parallelism() -> impl Strategy<Value = u32> {
        prop_oneof![1u32..=256, 1u32..=32_768]
    }

    #[test]
    fn only_keys_of_the_columns_pass_the_check() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["ab", ""]));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true, false]));
        let columns = [("t", texts), ("n", numbers), ("b", flags)];
        let batch = RecordBatch::try_from_iter(columns).expect("valid");
        for names in [&["t", "n"][..], &["n", "t"], &["b"], &["t", "b"], &["t"]] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let keys = KeyColumns::resolve(&batch.schema(), &names).expect("there");
            let mut of_batch = keys.keys_of(&batch);
            for row in 0..2 {
                let key = of_batch.key(row).to_vec();
                assert_eq!(keys.check(&key), Ok(()));
                let is_text_last = names.last().is_some_and(|name| name == "t");
                let mut longer = key.clone();
                longer.push(0);
                assert_eq!(keys.check(&longer).is_ok(), is_text_last, "{names:?}");
                for length in 0..key.len() {
                    let shorter = &key[..length];
                    if keys.check(shorter).is_ok() {
                        assert!(is_text_last, "{names:?}");
                        keys.decode([shorter].into_iter());
                    }
                }
            }
        }
        let keys = KeyColumns::resolve(&batch.schema(), &["t".to_owned(), "n".to_owned()]);
        let hostile = [&u64::MAX.to_le_bytes()[..], &[0; 8]].concat();
        assert!(keys.expect("there").check(&hostile).is_err());
    }

    #[test]
    fn a_missing_key_column_is_named() {
        let error =
            KeyColumns::resolve(&batch().schema(), &["zz".to_owned()]).expect_err("missing");
        assert!(error.to_string().contains("\"zz\""), "{error}");
    }
}

//! The values that a state can hold: how they are encoded for a snapshot, and read back. Bytes that can't be read are
//! damaged state.

use prost::Message;

/// A value of a state: how it is written into a snapshot, and read back.
///
/// Protobuf messages of `prost` are values. So are those that it treats as messages: `bool`, `i32`, `i64`, `u32`,
/// `u64`, `f32`, `f64`, `String` and `Vec<u8>`. A type of its own implements the trait.
pub trait StateValue: Clone + Send + Sync + 'static {
    /// Appends it. Equal values have equal bytes if they are keys of a map.
    fn write(&self, bytes: &mut Vec<u8>);

    /// Reads what [`StateValue::write`] has written, or says why these bytes are no value.
    fn read(bytes: &[u8]) -> Result<Self, String>;
}

impl<M: Message + Default + Clone + 'static> StateValue for M {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.encode(bytes).expect("a vector grows as needed");
    }

    fn read(bytes: &[u8]) -> Result<M, String> {
        M::decode(bytes).map_err(|error| error.to_string())
    }
}

/// The bytes of a value.
pub(super) fn written(value: &impl StateValue) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.write(&mut bytes);
    bytes
}

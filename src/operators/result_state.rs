//! The results of aggregations as checkpoints save them: one message per key. Bytes that can't be read are damaged
//! state.

use prost::Message as _;
use tanist_proto::v1 as pb;
use tanist_proto::v1::aggregate_cell::Cell as Saved;

use super::accumulator::{Cell, Cells};

/// Name of the keyed state of an aggregation.
pub(super) const RESULTS: &str = "results";

/// Appends the results of a key.
pub(super) fn write_cells(cells: &[Cell], bytes: &mut Vec<u8>) {
    let state = pb::AggregateState {
        cells: cells.iter().map(saved).collect(),
    };
    state.encode(bytes).expect("a vector grows as needed");
}

/// Reads the results of a key, which are as many as `functions`.
pub(super) fn read_cells(bytes: &[u8], functions: usize) -> Result<Cells, String> {
    let state = pb::AggregateState::decode(bytes).map_err(|error| error.to_string())?;
    let found = state.cells.len();
    if found != functions {
        return Err(format!("a key has {found} results instead of {functions}"));
    }
    Ok(state.cells.into_iter().map(restored).collect())
}

/// Appends the only result of a key.
pub(super) fn write_cell(cell: &Cell, bytes: &mut Vec<u8>) {
    saved(cell).encode(bytes).expect("a vector grows as needed");
}

/// Reads the only result of a key.
pub(super) fn read_cell(bytes: &[u8]) -> Result<Cell, String> {
    let cell = pb::AggregateCell::decode(bytes).map_err(|error| error.to_string())?;
    Ok(restored(cell))
}

fn saved(cell: &Cell) -> pb::AggregateCell {
    let cell = match cell {
        Cell::Empty => None,
        Cell::Int(number) => Some(Saved::Int(*number)),
        Cell::Float(number) => Some(Saved::Float(*number)),
        Cell::Text(text) => Some(Saved::Text(text.to_string())),
        Cell::IntMean(sum, count) => Some(Saved::IntMean(pb::IntMean {
            high: i64::try_from(*sum >> 64).expect("half of the bits"),
            low: low_half(*sum),
            count: *count,
        })),
        Cell::FloatMean(sum, count) => Some(Saved::FloatMean(pb::FloatMean {
            sum: Some(*sum),
            count: *count,
        })),
    };
    pb::AggregateCell { cell }
}

fn restored(cell: pb::AggregateCell) -> Cell {
    match cell.cell {
        None => Cell::Empty,
        Some(Saved::Int(number)) => Cell::Int(number),
        Some(Saved::Float(number)) => Cell::Float(number),
        Some(Saved::Text(text)) => Cell::Text(text.into()),
        Some(Saved::IntMean(mean)) => {
            let sum = i128::from(mean.high) << 64 | i128::from(mean.low);
            Cell::IntMean(sum, mean.count)
        }
        Some(Saved::FloatMean(mean)) => Cell::FloatMean(mean.sum.unwrap_or_default(), mean.count),
    }
}

fn low_half(number: i128) -> u64 {
    let low = number & i128::from(u64::MAX);
    u64::try_from(low).expect("half of the bits")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cells() -> impl Strategy<Value = Cell> {
        prop_oneof![
            Just(Cell::Empty),
            any::<i64>().prop_map(Cell::Int),
            any::<f64>().prop_map(Cell::Float),
            ".{0,5}".prop_map(|text| Cell::Text(text.into())),
            (any::<i128>(), any::<i64>()).prop_map(|(sum, count)| Cell::IntMean(sum, count)),
            (any::<f64>(), any::<i64>()).prop_map(|(sum, count)| Cell::FloatMean(sum, count)),
        ]
    }

    proptest! {
        #[test]
        fn results_are_restored_as_they_were_saved(cells in prop::collection::vec(cells(), 0..5)) {
            let mut bytes = Vec::new();
            write_cells(&cells, &mut bytes);
            let found = read_cells(&bytes, cells.len()).expect("intact");
            prop_assert_eq!(format!("{found:?}"), format!("{cells:?}"));
            prop_assert!(read_cells(&bytes, cells.len() + 1).is_err());
            for cell in &cells {
                let mut bytes = Vec::new();
                write_cell(cell, &mut bytes);
                let found = read_cell(&bytes).expect("intact");
                prop_assert_eq!(format!("{found:?}"), format!("{cell:?}"));
            }
        }
    }
}

//! The program `tanist`.

fn main() {}

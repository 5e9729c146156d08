//! The `tanist` program.

fn main() {}

//! The `tanist` program.

fn main() -> std::process::ExitCode {
    tanist::cli::main()
}

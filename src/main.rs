//! The `tanist` program.

fn main() -> std::process::ExitCode {
    tanist_cli::main()
}

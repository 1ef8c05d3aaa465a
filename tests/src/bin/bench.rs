//! Pando beside its peers: `cargo run --release -p pando-tests --bin bench [ROW…]`. See [`pando_tests::bench`].

use std::process::ExitCode;

fn main() -> ExitCode {
    pando_tests::bench::main()
}

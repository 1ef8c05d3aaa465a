//! The `pando-node` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    pando_node::program::main(pando_supervision::RULES)
}

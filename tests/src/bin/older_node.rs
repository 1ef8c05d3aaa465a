//! A node of an older Pando: the program `pando-node`, but for the rules, of which it knows only the first version. So a cluster of
//! such nodes refuses mailboxes and pools until the last of its voters is replaced.

use std::process::ExitCode;

fn main() -> ExitCode {
    pando_node::program::main(1)
}

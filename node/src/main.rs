//! The `pando-node` program.

use std::io;

use pando_node::guard::ObituaryContext;
use pando_protocol::session::ObituaryReply;

fn main() {
    // Guard and launcher fork, so they begin before any thread, runtime or logger exists.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().as_deref().and_then(|word| word.to_str()) {
        Some("guard") => pando_node::guard::main(&mut report_death),
        Some("launch") => pando_node::launcher::main(arguments),
        _ => {}
    }
}

fn report_death(_: &ObituaryContext<'_>) -> io::Result<ObituaryReply> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this build has no transport for obituaries"))
}

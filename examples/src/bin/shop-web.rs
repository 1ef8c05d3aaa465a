//! A web child: answers every HTTP request with a line of JSON that says which run of it answered, and from which node.
//!
//! `shop-web --check` is its own readiness probe. A SIGTERM ends it at once: it holds nothing that a stop could lose.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pando_examples::arguments::{Arguments, BadArguments, refuse};
use pando_examples::run::{Run, variable};
use pando_examples::{complain, http, ready, say};

const USAGE: &str = "shop-web [--bind ADDRESS] --port PORT | shop-web --check [--port PORT]
  answers HTTP on PORT (0: any free one) of ADDRESS (0.0.0.0) with its node, incarnation, path, and GREETING from its
  environment; writes the port to the file `port` in its folder, where --check finds it";
/// The file in the working folder that names the port, for `--check`.
const PORT_FILE: &str = "port";

/// What the command line asks for.
enum Task {
    Serve(SocketAddr),
    /// Probe this port; `None`: the one in [`PORT_FILE`].
    Check(Option<u16>),
}

fn main() -> ExitCode {
    let outcome = match task(Arguments::of_this_process()) {
        Ok(Task::Serve(address)) => serve(address),
        Ok(Task::Check(port)) => check(port),
        Err(mistake) => refuse("shop-web", &mistake, USAGE),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            complain(format_args!("shop-web: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn task(mut arguments: Arguments) -> Result<Task, BadArguments> {
    let checks = arguments.switch("--check");
    let bind = arguments.value::<IpAddr>("--bind", "an IP address")?.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let port = arguments.value::<u16>("--port", "a port, 0 to 65535")?;
    if !arguments.words()?.is_empty() {
        return Err("it takes flags only".into());
    }
    match (checks, port) {
        (true, port) => Ok(Task::Check(port.filter(|port| *port != 0))),
        (false, Some(port)) => Ok(Task::Serve(SocketAddr::new(bind, port))),
        (false, None) => Err("--port is missing".into()),
    }
}

/// Serves until the process is ended.
fn serve(address: SocketAddr) -> Result<(), String> {
    // The standard library binds with SO_REUSEADDR, so the connections of the run before do not hold the port.
    let listener = TcpListener::bind(address).map_err(|e| format!("cannot listen on {address}: {e}"))?;
    let port = listener.local_addr().map_err(|e| format!("the socket has no address: {e}"))?.port();
    write_port(port).map_err(|e| format!("cannot write the file {PORT_FILE:?} in the working folder: {e}"))?;
    let run = Run::of_this_process();
    let body: Arc<str> = http::body(&run, &variable("PANDO_PATH"), &variable("GREETING")).into();
    ready::notify().map_err(|e| format!("cannot say that it is ready: {e}"))?;
    say(format_args!("{run} answers on {}", SocketAddr::new(address.ip(), port)));
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => answer(stream, &body),
            // Out of descriptors, most likely: nothing is gained by asking again at once.
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
    Ok(())
}

/// Answers in a thread of its own, so that a silent client holds up nobody.
fn answer(mut stream: TcpStream, body: &Arc<str>) {
    let body = Arc::clone(body);
    // A connection that breaks is the client's affair, and one for which there is no thread is closed.
    let _ = thread::Builder::new().spawn(move || http::answer(&mut stream, &body));
}

/// Writes the port aside and moves it into place: a probe never reads half a number.
fn write_port(port: u16) -> io::Result<()> {
    let aside = format!("{PORT_FILE}.new");
    fs::write(&aside, port.to_string())?;
    fs::rename(&aside, PORT_FILE)
}

/// Whether the web child whose folder this is answers, and is the run whose probe this is.
fn check(port: Option<u16>) -> Result<(), String> {
    let port = match port {
        Some(port) => port,
        None => {
            let text = fs::read_to_string(PORT_FILE).map_err(|e| format!("no file {PORT_FILE:?} yet: {e}"))?;
            text.trim().parse().map_err(|_| format!("the file {PORT_FILE:?} holds no port: {text:?}"))?
        }
    };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let answering = http::ask(address).map_err(|e| format!("no answer from {address}: {e}"))?;
    let own = Run::of_this_process();
    if own.incarnation != 0 && answering != own {
        return Err(format!("{answering} answers on {address}, and this is {own}: the port is taken by another run"));
    }
    Ok(())
}

//! As much HTTP as two small programs need: one request a connection, one JSON answer that says which run gave it.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::run::Run;

/// How long one side waits for the other's bytes.
pub const PATIENCE: Duration = Duration::from_millis(500);
/// Most bytes of a request or an answer; what is longer is refused.
const LIMIT: u64 = 16 << 10;

/// The body that `shop-web` answers with: one JSON object.
pub fn body(run: &Run, path: &str, greeting: &str) -> String {
    format!(
        "{{\"node\":{},\"incarnation\":{},\"path\":{},\"greeting\":{},\"pid\":{}}}\n",
        quoted(&run.node),
        run.incarnation,
        quoted(path),
        quoted(greeting),
        std::process::id()
    )
}

/// Reads one request from `stream` and answers it with `body`.
///
/// # Errors
/// The other side went away, is too slow, or sends too much.
pub fn answer(stream: &mut TcpStream, body: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    read_request(stream)?;
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes())
}

/// Asks the web child at `address` which run it is.
///
/// # Errors
/// Nobody listens there, the answer takes longer than [`PATIENCE`] for a part of it, or it is none of [`body`].
pub fn ask(address: SocketAddr) -> io::Result<Run> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(LIMIT).read_to_string(&mut answer)?;
    run_in(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an answer of shop-web"))
}

/// Reads up to the empty line that ends the head of a request.
fn read_request(stream: &TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    let mut limited = stream.take(LIMIT);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        match limited.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => head.extend_from_slice(&part[..read]),
        }
    }
    Ok(())
}

/// The run that an answer names. Names of nodes need no unescaping: they are made of `a-z`, `0-9` and `-`.
fn run_in(answer: &str) -> Option<Run> {
    let body = answer.strip_prefix("HTTP/1.1 200 ")?.split_once("\r\n\r\n")?.1;
    let node = body.split_once("\"node\":\"")?.1.split_once('"')?.0.to_owned();
    let number = body.split_once("\"incarnation\":")?.1;
    let digits = number.bytes().take_while(u8::is_ascii_digit).count();
    Some(Run { node, incarnation: number[..digits].parse().ok()? })
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            // Writing to a text cannot fail.
            control if control < ' ' => drop(write!(quoted, "\\u{:04x}", u32::from(control))),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    fn run(node: &str, incarnation: u64) -> Run {
        Run { node: node.into(), incarnation }
    }

    #[test]
    fn a_question_gets_the_run_that_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let web = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            answer(&mut stream, &body(&run("n1", 12), "/shop/web", "hello \"you\"\n")).unwrap();
        });
        assert_eq!(ask(address).unwrap(), run("n1", 12));
        web.join().unwrap();
    }

    #[test]
    fn the_body_is_json_whatever_the_greeting_holds() {
        let body = body(&run("n1", 1), "/shop/web", "a\"b\\c\nd");
        assert!(body.contains(r#""greeting":"a\"b\\c\u000ad""#), "{body}");
    }

    #[test]
    fn an_answer_of_another_program_is_refused() {
        for other in ["", "HTTP/1.1 200 OK\r\n\r\n{}", "HTTP/1.1 500 Oh\r\n\r\n{\"node\":\"n1\",\"incarnation\":1}"] {
            assert_eq!(run_in(other), None, "{other:?}");
        }
    }
}

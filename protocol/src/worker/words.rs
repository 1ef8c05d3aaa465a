//! The lines themselves.

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use super::MAX_LINE_TO_WORKER;
use crate::mail::{Headers, MAX_PAYLOAD, Payload};

/// A message, as its worker gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its id.
    pub id: String,
    /// The attempt of this life, from 1: charged ones before it, and this one.
    pub attempt: u32,
    /// The life, from 1: one more with each redrive.
    pub life: u32,
    /// Its payload.
    pub payload: Payload,
    /// Its headers.
    pub headers: Headers,
}

/// A line to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToWorker {
    /// A message to work on.
    Message(Message),
    /// Finish or give back what is held, and exit.
    Stop,
    /// A line of the worker's could not be taken.
    Error {
        /// Why.
        error: String,
    },
}

/// A line from a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromWorker {
    /// It is ready for messages.
    Ready {
        /// Whether it says when it starts to work on one.
        starts: bool,
        /// Most that it wants to hold, at least 1; `None`: what its mailbox says.
        prefetch: Option<u32>,
    },
    /// It works on this one from now on.
    Started {
        /// The message.
        id: String,
    },
    /// It still works on this one.
    Progress {
        /// The message.
        id: String,
    },
    /// They are handled.
    Done {
        /// The messages; at least one.
        ids: Vec<String>,
        /// For whoever asked; only with one id.
        reply: Option<Payload>,
    },
    /// It could not be handled.
    Failed {
        /// The message.
        id: String,
        /// Why.
        error: String,
        /// *False*: it never can be.
        retry: bool,
    },
    /// They were not worked on.
    Returned {
        /// The messages; at least one.
        ids: Vec<String>,
    },
}

impl ToWorker {
    /// Appends the line, with its end.
    pub fn write(&self, to: &mut Vec<u8>) {
        write(self, to);
    }

    /// Reads a line without its end.
    ///
    /// # Errors
    /// It is none of these; why, in words.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let Spoken { kind, id, error, attempt, life, payload, payload_base64, headers, .. } = Spoken::parse(line)?;
        match kind.as_deref() {
            Some("message") => {
                let payload = bytes("payload", payload, payload_base64, MAX_LINE_TO_WORKER)?;
                let (attempt, life) = (attempt.ok_or(missing("attempt"))?, life.ok_or(missing("life"))?);
                let id = id.ok_or(missing("id"))?;
                let (payload, headers) = (payload.unwrap_or_default(), headers.unwrap_or_default());
                Ok(Self::Message(Message { id, attempt, life, payload, headers }))
            }
            Some("stop") => Ok(Self::Stop),
            Some("error") => Ok(Self::Error { error: error.unwrap_or_default() }),
            other => Err(unknown(other)),
        }
    }
}

impl FromWorker {
    /// Appends the line, with its end.
    pub fn write(&self, to: &mut Vec<u8>) {
        write(self, to);
    }

    /// Reads a line without its end.
    ///
    /// # Errors
    /// It is none of these; why, in words.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let Spoken { kind, id, ids, error, starts, prefetch, reply, reply_base64, retry, .. } = Spoken::parse(line)?;
        match kind.as_deref() {
            Some("ready") if prefetch == Some(0) => Err("a prefetch of 0: expected at least 1".into()),
            Some("ready") => Ok(Self::Ready { starts: starts.unwrap_or_default(), prefetch }),
            Some("started") => Ok(Self::Started { id: id.ok_or(missing("id"))? }),
            Some("progress") => Ok(Self::Progress { id: id.ok_or(missing("id"))? }),
            Some("done") => {
                let (ids, reply) = (some(id, ids)?, bytes("reply", reply, reply_base64, MAX_PAYLOAD)?);
                if reply.is_some() && ids.len() > 1 {
                    return Err("a reply for several messages: expected one id".into());
                }
                Ok(Self::Done { ids, reply })
            }
            Some("failed") => {
                let (id, error) = (id.ok_or(missing("id"))?, error.unwrap_or_default());
                Ok(Self::Failed { id, error, retry: retry.unwrap_or(true) })
            }
            Some("returned") => Ok(Self::Returned { ids: some(id, ids)? }),
            other => Err(unknown(other)),
        }
    }
}

/// All fields of all lines. What is missing or null is `None`.
#[derive(Deserialize)]
struct Spoken {
    #[serde(rename = "type")]
    kind: Option<String>,
    id: Option<String>,
    ids: Option<Vec<String>>,
    error: Option<String>,
    // To the worker.
    attempt: Option<u32>,
    life: Option<u32>,
    payload: Option<String>,
    payload_base64: Option<String>,
    headers: Option<Headers>,
    // From it.
    starts: Option<bool>,
    prefetch: Option<u32>,
    reply: Option<String>,
    reply_base64: Option<String>,
    retry: Option<bool>,
}

impl Spoken {
    fn parse(line: &[u8]) -> Result<Self, String> {
        // A struct would be read from an array too.
        if line.trim_ascii_start().first() != Some(&b'{') {
            return Err("this is no JSON object".into());
        }
        serde_json::from_slice(line).map_err(|error| format!("this line cannot be read: {error}"))
    }
}

fn missing(field: &str) -> String {
    format!("there is no \"{field}\"")
}

fn unknown(kind: Option<&str>) -> String {
    match kind {
        Some(kind) => format!("unknown type {:?}", kind.chars().take(64).collect::<String>()),
        None => missing("type"),
    }
}

fn some(id: Option<String>, ids: Option<Vec<String>>) -> Result<Vec<String>, String> {
    match (id, ids) {
        (Some(id), None) => Ok(vec![id]),
        (None, Some(ids)) if !ids.is_empty() => Ok(ids),
        (None, _) => Err(missing("id")),
        (Some(_), Some(_)) => Err("both \"id\" and \"ids\": expected one of them".into()),
    }
}

fn bytes(what: &str, text: Option<String>, base64: Option<String>, most: usize) -> Result<Option<Payload>, String> {
    let found = match (text, base64) {
        (None, None) => return Ok(None),
        (Some(text), None) => text.into_bytes().into(),
        (None, Some(base64)) => Payload::from_base64(&base64)?,
        (Some(_), Some(_)) => return Err(format!("both \"{what}\" and \"{what}_base64\": expected one of them")),
    };
    if found.len() > most {
        return Err(format!("a {what} of {} bytes: expected at most {most}", found.len()));
    }
    Ok(Some(found))
}

fn write(line: &impl Serialize, to: &mut Vec<u8>) {
    // Its keys are texts, and memory takes everything.
    serde_json::to_writer(&mut *to, line).expect("a line that can be written");
    to.push(b'\n');
}

impl Serialize for ToWorker {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_map(None)?;
        match self {
            Self::Message(Message { id, attempt, life, payload, headers }) => {
                line.serialize_entry("type", "message")?;
                line.serialize_entry("id", id)?;
                line.serialize_entry("attempt", attempt)?;
                line.serialize_entry("life", life)?;
                write_bytes(&mut line, ["payload", "payload_base64"], payload)?;
                line.serialize_entry("headers", headers)?;
            }
            Self::Stop => line.serialize_entry("type", "stop")?,
            Self::Error { error } => {
                line.serialize_entry("type", "error")?;
                line.serialize_entry("error", error)?;
            }
        }
        line.end()
    }
}

impl Serialize for FromWorker {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_map(None)?;
        match self {
            Self::Ready { starts, prefetch } => {
                line.serialize_entry("type", "ready")?;
                line.serialize_entry("starts", starts)?;
                if let Some(prefetch) = prefetch {
                    line.serialize_entry("prefetch", prefetch)?;
                }
            }
            Self::Started { id } => write_about(&mut line, "started", std::slice::from_ref(id))?,
            Self::Progress { id } => write_about(&mut line, "progress", std::slice::from_ref(id))?,
            Self::Done { ids, reply } => {
                write_about(&mut line, "done", ids)?;
                match reply {
                    // The bound of a line is that of base64, which much escaping exceeds.
                    Some(reply) if grows_in_json(reply.bytes()) => {
                        line.serialize_entry("reply_base64", &reply.to_base64())?;
                    }
                    Some(reply) => write_bytes(&mut line, ["reply", "reply_base64"], reply)?,
                    None => {}
                }
            }
            Self::Failed { id, error, retry } => {
                write_about(&mut line, "failed", std::slice::from_ref(id))?;
                line.serialize_entry("error", error)?;
                line.serialize_entry("retry", retry)?;
            }
            Self::Returned { ids } => write_about(&mut line, "returned", ids)?,
        }
        line.end()
    }
}

fn write_about<M: SerializeMap>(line: &mut M, kind: &str, ids: &[String]) -> Result<(), M::Error> {
    line.serialize_entry("type", kind)?;
    match ids {
        [id] => line.serialize_entry("id", id),
        ids => line.serialize_entry("ids", ids),
    }
}

/// As text where it is some, else as base64.
fn write_bytes<M: SerializeMap>(line: &mut M, [text, base64]: [&str; 2], bytes: &Payload) -> Result<(), M::Error> {
    match std::str::from_utf8(bytes.bytes()) {
        Ok(found) => line.serialize_entry(text, found),
        Err(_) => line.serialize_entry(base64, &bytes.to_base64()),
    }
}

/// Whether a text takes more room in JSON than in base64. A control character takes six bytes.
fn grows_in_json(bytes: &[u8]) -> bool {
    let escaped: usize = bytes
        .iter()
        .map(|byte| match byte {
            b'"' | b'\\' => 1,
            0..0x20 => 5,
            _ => 0,
        })
        .sum();
    escaped > bytes.len() / 3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(payload: Payload) -> Message {
        let headers = Headers::from([("k".into(), "v".into())]);
        Message { id: "m\"1".into(), attempt: 2, life: 1, payload, headers }
    }

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut line = Vec::new();
        write(&mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn every_line_is_read_as_it_was_written() {
        let id = || "a".to_owned();
        for word in [
            FromWorker::Ready { starts: true, prefetch: Some(7) },
            FromWorker::Ready { starts: false, prefetch: None },
            FromWorker::Started { id: id() },
            FromWorker::Progress { id: id() },
            FromWorker::Done { ids: vec![id()], reply: Some("yes".into()) },
            FromWorker::Done { ids: vec![id()], reply: Some(vec![0xff, 0].into()) },
            FromWorker::Done { ids: vec![id(), "b".into()], reply: None },
            FromWorker::Failed { id: id(), error: "no".into(), retry: false },
            FromWorker::Returned { ids: vec![id(), "b".into()] },
        ] {
            let line = written(|to| word.write(to));
            assert_eq!(FromWorker::parse(line.trim_end().as_bytes()), Ok(word), "{line}");
        }
        for word in [
            ToWorker::Message(message("text\n\u{1}".into())),
            ToWorker::Message(message(vec![0xff].into())),
            ToWorker::Message(message(Payload::default())),
            ToWorker::Stop,
            ToWorker::Error { error: "no".into() },
        ] {
            let line = written(|to| word.write(to));
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(ToWorker::parse(line.trim_end().as_bytes()), Ok(word), "{line}");
        }
    }

    #[test]
    fn the_largest_reply_fits_into_a_line_whatever_is_in_it() {
        for byte in [b'x', b'\\', 1, 0xff] {
            let word = FromWorker::Done { ids: vec!["a".repeat(256)], reply: Some(vec![byte; MAX_PAYLOAD].into()) };
            let mut line = Vec::new();
            word.write(&mut line);
            assert!(line.len() <= crate::worker::MAX_LINE, "{byte}: {}", line.len());
            assert_eq!(FromWorker::parse(&line), Ok(word));
        }
    }

    #[test]
    fn a_message_looks_as_documented() {
        let line = written(|to| ToWorker::Message(message("hello".into())).write(to));
        let expected = r#"{"type":"message","id":"m\"1","attempt":2,"life":1,"payload":"hello","headers":{"k":"v"}}"#;
        assert_eq!(line.trim_end(), expected);
        let line = written(|to| ToWorker::Message(message(vec![0xff, 0xfe].into())).write(to));
        assert!(line.contains(r#""payload_base64":"//4=""#) && !line.contains(r#""payload":"#), "{line}");
    }

    #[test]
    fn what_is_left_out_has_its_default_and_what_is_unknown_is_ignored() {
        let read = |line: &str| FromWorker::parse(line.as_bytes()).unwrap();
        assert_eq!(read(r#"{"type":"ready"}"#), FromWorker::Ready { starts: false, prefetch: None });
        let failed = FromWorker::Failed { id: "a".into(), error: String::new(), retry: true };
        assert_eq!(read(r#"{"id":"a","mood":[{"x":1}],"type":"failed","retry":null}"#), failed);
        let done = FromWorker::Done { ids: vec!["a".into()], reply: None };
        assert_eq!(read(r#" {"type":"done","id":"a","reply":null}"#), done);
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        let long = format!(r#"{{"type":"done","id":"a","reply":"{}"}}"#, "x".repeat(MAX_PAYLOAD + 1));
        for (line, expected) in [
            ("hello", "no JSON object"),
            ("[\"ready\"]", "no JSON object"),
            ("{\"type\":\"ready\"", "cannot be read"),
            ("{}", "no \"type\""),
            (r#"{"type":"dance"}"#, "unknown type \"dance\""),
            (r#"{"type":"ready","prefetch":0}"#, "at least 1"),
            (r#"{"type":"ready","prefetch":-1}"#, "cannot be read"),
            (r#"{"type":"started"}"#, "no \"id\""),
            (r#"{"type":"done","ids":[]}"#, "no \"id\""),
            (r#"{"type":"done","id":"a","ids":["b"]}"#, "both \"id\" and \"ids\""),
            (r#"{"type":"done","ids":["a","b"],"reply":"x"}"#, "expected one id"),
            (r#"{"type":"done","id":"a","reply":"x","reply_base64":"eA=="}"#, "both \"reply\""),
            (r#"{"type":"done","id":"a","reply_base64":"?"}"#, "no base64"),
            (&long, "at most 1048576"),
            (r#"{"type":"stop"}"#, "unknown type"),
        ] {
            let why = FromWorker::parse(line.as_bytes()).unwrap_err();
            assert!(why.contains(expected), "{}: {why}", &line[..line.len().min(80)]);
        }
    }
}

//! What a message is made of.

use std::fs::File;
use std::io::Read;
use std::path::Path as FilePath;
use std::sync::Arc;

use anyhow::anyhow;
use clap::Args;
use pando_protocol::mail::{Headers, MAX_HEADERS, MAX_PAYLOAD, NewMessage, Payload};

use crate::exit::Failure;

/// What stands beside the payload of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Labels {
    /// Your own name for the message, by which it is told apart. With --lines, `{}` in it becomes the number of the line
    #[arg(long)]
    pub id: Option<String>,
    /// A header: a small text beside the payload; repeatable
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    pub headers: Vec<(String, String)>,
}

impl Labels {
    /// A message with these.
    ///
    /// # Errors
    /// The headers are too large, or one is given twice.
    pub fn message(self, payload: Payload) -> Result<NewMessage, Failure> {
        let headers = self.headers()?;
        Ok(NewMessage { id: self.id.map(Arc::from), headers, payload })
    }

    /// The headers.
    ///
    /// # Errors
    /// They are too large, or one is given twice.
    pub fn headers(&self) -> Result<Headers, Failure> {
        let bytes: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > MAX_HEADERS {
            return Err(Failure::usage(anyhow!("the headers have {bytes} bytes: at most {MAX_HEADERS} are allowed")));
        }
        let mut headers = Headers::new();
        for (name, value) in &self.headers {
            if headers.insert(name.clone(), value.clone()).is_some() {
                return Err(Failure::usage(anyhow!(
                    "the header {name} is given twice: a message has each at most once"
                )));
            }
        }
        Ok(headers)
    }
}

/// The payload that a command line names: a text, or what is in a file (`-` is standard input).
///
/// # Errors
/// The file cannot be read, or is larger than a message may be.
pub fn payload(text: Option<String>, file: Option<&FilePath>) -> Result<Payload, Failure> {
    let (bytes, of) = match (text, file) {
        (Some(text), _) => (text.into_bytes(), "the text".to_owned()),
        (None, Some(file)) => (read(file)?, name(file)),
        (None, None) => return Err(Failure::usage(anyhow!("nothing to send: give a text or --file"))),
    };
    if bytes.len() > MAX_PAYLOAD {
        let more = if file.is_some() { "more than " } else { "" };
        let (size, most) = (bytes.len() - usize::from(file.is_some()), MAX_PAYLOAD);
        return Err(Failure::usage(anyhow!("{of} has {more}{size} bytes: a message has at most {most}")));
    }
    Ok(bytes.into())
}

/// How a file is called in messages.
pub fn name(file: &FilePath) -> String {
    if is_stdin(file) { "standard input".into() } else { file.display().to_string() }
}

/// Opens a file for reading; `-` is standard input.
///
/// # Errors
/// It cannot be opened.
pub fn open(file: &FilePath) -> Result<Box<dyn Read + Send>, Failure> {
    if is_stdin(file) {
        return Ok(Box::new(std::io::stdin()));
    }
    let opened = File::open(file).map_err(|error| unreadable(file, &error))?;
    Ok(Box::new(opened))
}

/// A file that cannot be read.
pub fn unreadable(file: &FilePath, error: &std::io::Error) -> Failure {
    Failure::usage(anyhow!("{} cannot be read: {error}", name(file)))
}

fn read(file: &FilePath) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    // One byte more than allowed lets the reader see that it is too long.
    let most = MAX_PAYLOAD as u64 + 1;
    open(file)?.take(most).read_to_end(&mut bytes).map_err(|error| unreadable(file, &error))?;
    Ok(bytes)
}

fn is_stdin(file: &FilePath) -> bool {
    file == FilePath::new("-")
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE, such as source=till-3".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_split_at_the_first_equals_sign() {
        assert_eq!(header("c=d=e"), Ok(("c".into(), "d=e".into())));
        assert_eq!(header("empty="), Ok(("empty".into(), String::new())));
        assert!(header("nothing").is_err() && header("=value").is_err());
    }

    #[test]
    fn what_no_message_can_hold_is_refused_before_anything_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("large");
        std::fs::write(&file, vec![0; MAX_PAYLOAD]).unwrap();
        assert_eq!(payload(None, Some(&file)).unwrap().len(), MAX_PAYLOAD);
        std::fs::write(&file, vec![0; MAX_PAYLOAD + 9]).unwrap();
        let text = payload(None, Some(&file)).unwrap_err().error.unwrap().to_string();
        assert!(text.ends_with("large has more than 1048576 bytes: a message has at most 1048576"), "{text}");
        let pair = |value: &str| ("name".to_owned(), value.to_owned());
        let twice = Labels { id: None, headers: vec![pair("a"), pair("b")] };
        assert!(twice.headers().unwrap_err().error.unwrap().to_string().contains("given twice"));
        let large = Labels { id: None, headers: vec![pair(&"x".repeat(MAX_HEADERS))] };
        assert!(large.headers().unwrap_err().error.unwrap().to_string().contains("16388 bytes"));
    }
}

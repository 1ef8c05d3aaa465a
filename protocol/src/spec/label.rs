//! Properties of nodes, by which children are placed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A property of a node: `zone=a`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(String, String)", into = "(String, String)")]
pub struct Label {
    /// 1 to 63 characters of `a-z A-Z 0-9 . _ - /`.
    pub key: String,
    /// 0 to 63 characters of the same.
    pub value: String,
}

impl Label {
    /// Whether a text can be the key of a label.
    pub fn is_key(text: &str) -> bool {
        !text.is_empty() && is_legal(text)
    }
}

fn is_legal(text: &str) -> bool {
    text.len() <= 63 && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/'))
}

impl FromStr for Label {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if Self::is_key(key) && is_legal(value) => {
                Ok(Self { key: key.into(), value: value.into() })
            }
            _ => {
                let shown: String = text.chars().take(80).collect();
                Err(format!("{shown:?} is not a label: a label looks like zone=a"))
            }
        }
    }
}

impl TryFrom<(String, String)> for Label {
    type Error = String;
    fn try_from((key, value): (String, String)) -> Result<Self, String> {
        format!("{key}={value}").parse()
    }
}

impl From<Label> for (String, String) {
    fn from(label: Label) -> Self {
        (label.key, label.value)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};

    #[test]
    fn a_label_is_two_short_texts_joined_by_an_equals_sign() {
        let label: Label = "zone=a".parse().unwrap();
        assert_eq!((label.key.as_str(), label.value.as_str()), ("zone", "a"));
        assert_eq!("gpu=".parse::<Label>().unwrap().value, "");
        for bad in ["", "zone", "=a", "a b=c", "zone=a=b", &format!("{}=x", "k".repeat(64))] {
            assert!(bad.parse::<Label>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_bad_label_from_the_wire_is_refused() {
        let good: Label = "zone=a".parse().unwrap();
        assert_eq!(decode::<Label, 64>(&encode::<64>(&good).unwrap()).unwrap(), good);
        let bad = ("zo ne".to_owned(), "a".to_owned());
        assert!(decode::<Label, 64>(&encode::<64>(&bad).unwrap()).is_err());
    }
}

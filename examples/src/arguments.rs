//! The command lines of the example programs: flags with a value, switches, and words.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Why a command line is refused, in a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadArguments(String);

impl fmt::Display for BadArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The arguments that nobody has taken yet.
#[derive(Debug, Clone)]
pub struct Arguments {
    left: Vec<String>,
}

impl Arguments {
    /// What this process was started with. Text that is no UTF-8 is replaced, and then refused as unknown.
    pub fn of_this_process() -> Self {
        Self { left: std::env::args_os().skip(1).map(|text| text.to_string_lossy().into_owned()).collect() }
    }

    /// Takes a switch such as `--check`; whether it was there.
    pub fn switch(&mut self, name: &str) -> bool {
        let at = self.left.iter().position(|text| text == name);
        at.map(|at| self.left.remove(at)).is_some()
    }

    /// Takes a flag and its value, such as `--port 80`; `None` where it was not given.
    ///
    /// # Errors
    /// The value is missing or is no `expected`.
    pub fn value<T: FromStr>(&mut self, name: &str, expected: &str) -> Result<Option<T>, BadArguments> {
        let Some(at) = self.left.iter().position(|text| text == name) else { return Ok(None) };
        self.left.remove(at);
        if at == self.left.len() {
            return Err(BadArguments(format!("{name} needs a value: {expected}")));
        }
        let text = self.left.remove(at);
        match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(BadArguments(format!("{name} {text:?}: expected {expected}"))),
        }
    }

    /// Takes the words that are left.
    ///
    /// # Errors
    /// A flag is left, which nobody knew.
    pub fn words(self) -> Result<Vec<String>, BadArguments> {
        match self.left.iter().find(|text| text.starts_with('-')) {
            Some(flag) => Err(BadArguments(format!("there is no flag {flag}"))),
            None => Ok(self.left),
        }
    }
}

/// Says what is wrong with a command line and how one looks, and ends the program with code 2.
pub fn refuse(program: &str, mistake: &BadArguments, usage: &str) -> ! {
    crate::complain(format_args!("{program}: {mistake}\nusage: {usage}"));
    std::process::exit(2)
}

impl From<&str> for BadArguments {
    fn from(mistake: &str) -> Self {
        Self(mistake.into())
    }
}

/// A time span in the notation of specs: `500ms`, `3s`, `2m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = BadArguments;
    fn from_str(text: &str) -> Result<Self, BadArguments> {
        let bad = || BadArguments(format!("{text:?} is no time span: 500ms, 3s or 2m is one"));
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: u32 = text[..digits].parse().map_err(|_| bad())?;
        let unit = match &text[digits..] {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            _ => return Err(bad()),
        };
        Ok(Self(unit * number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(texts: &[&str]) -> Arguments {
        Arguments { left: texts.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn flags_switches_and_words_are_taken_in_any_order() {
        let mut given = arguments(&["feed", "--port", "80", "--check", "more"]);
        assert!(given.switch("--check"));
        assert_eq!(given.value::<u16>("--port", "a port"), Ok(Some(80)));
        assert_eq!(given.value::<u16>("--other", "a port"), Ok(None));
        assert_eq!(given.words(), Ok(vec!["feed".to_owned(), "more".to_owned()]));
    }

    #[test]
    fn a_wrong_a_missing_and_an_unknown_argument_are_refused() {
        assert!(arguments(&["--port", "x"]).value::<u16>("--port", "a port").is_err());
        assert!(arguments(&["--port"]).value::<u16>("--port", "a port").is_err());
        assert!(arguments(&["--prot", "80"]).words().is_err());
    }

    #[test]
    fn spans_have_a_number_and_a_unit() {
        assert_eq!("250ms".parse(), Ok(Span(Duration::from_millis(250))));
        assert_eq!("2m".parse(), Ok(Span(Duration::from_secs(120))));
        for bad in ["", "3", "s", "-1s", "1.5s", "99999999999s", "3 s", "3ß"] {
            assert!(bad.parse::<Span>().is_err(), "{bad:?}");
        }
    }
}

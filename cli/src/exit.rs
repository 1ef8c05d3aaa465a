//! How a command ends: an exit code that programs can act on, and one message for people.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use pando_protocol::client::ClientError;
use pando_protocol::rejection::Rejection;

use crate::output;

/// The exit codes of `pando`, besides 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// It was tried and failed.
    Failed = 1,
    /// The command line, a spec file or another input is wrong; nothing was tried.
    Usage = 2,
    /// No cluster or no leader was reached.
    Unreached = 3,
    /// The cluster refused it.
    Refused = 4,
    /// `pando ask`: no reply came in time; the message is where it was.
    NoReply = 5,
    /// `pando ask`: the message is a dead letter, or was purged, and gets no reply.
    Dead = 6,
    /// `pando ask --fail-fast`: an attempt ended without a reply; the message is tried again.
    AttemptEnded = 7,
}

/// Why a command did not end with 0.
#[derive(Debug)]
pub struct Failure {
    /// The exit code; `None` where whoever read standard output went away, which is no fault of anybody.
    pub code: Option<Code>,
    /// What to say on standard error; `None` where all is said already.
    pub error: Option<anyhow::Error>,
}

impl Failure {
    /// It was tried and failed.
    pub fn failed(error: impl Into<anyhow::Error>) -> Self {
        Self::with(Code::Failed, error.into())
    }

    /// The input is wrong.
    pub fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self::with(Code::Usage, error.into())
    }

    /// No cluster or no leader was reached.
    pub fn unreached(error: impl Into<anyhow::Error>) -> Self {
        Self::with(Code::Unreached, error.into())
    }

    /// The cluster refused it.
    pub fn refused(error: impl Into<anyhow::Error>) -> Self {
        Self::with(Code::Refused, error.into())
    }

    /// It ends with `code`, for this reason.
    pub fn coded(code: Code, error: impl Into<anyhow::Error>) -> Self {
        Self::with(code, error.into())
    }

    /// It ends with `code`, and everything was said already.
    pub fn said(code: Code) -> Self {
        Self { code: Some(code), error: None }
    }

    /// Standard output cannot be written. A closed pipe (`pando events | head`) ends the command quietly.
    pub fn from_output(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self { code: None, error: None };
        }
        Self::failed(anyhow::Error::new(error).context("standard output cannot be written"))
    }

    /// The rejection by the cluster, where that is why.
    pub fn rejection(&self) -> Option<&Rejection> {
        self.error.as_ref()?.downcast_ref()
    }

    /// The same failure, told in the light of what was attempted.
    pub fn context(mut self, context: impl Display + Send + Sync + 'static) -> Self {
        self.error = self.error.map(|error| error.context(context));
        self
    }

    /// Says what is to be said, and gives the exit code of the program.
    pub fn report(self) -> ExitCode {
        if let Some(error) = self.error {
            output::say(format_args!("pando: {error:#}"));
        }
        self.code.map_or(ExitCode::SUCCESS, |code| ExitCode::from(code as u8))
    }

    fn with(code: Code, error: anyhow::Error) -> Self {
        Self { code: Some(code), error: Some(error) }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(rejection) => rejection.into(),
            ClientError::Unreachable { .. } | ClientError::TimedOut { .. } => Self::unreached(error),
            ClientError::Identity(_) | ClientError::Unusable(_) => Self::usage(error),
            ClientError::Protocol { .. } => Self::failed(error),
        }
    }
}

impl From<Rejection> for Failure {
    fn from(rejection: Rejection) -> Self {
        let code = match &rejection {
            Rejection::BadSpec { .. } => Code::Usage,
            Rejection::NoLeader { .. } => Code::Unreached,
            Rejection::Unknown | Rejection::Internal(_) => Code::Failed,
            Rejection::NoSuchPath { .. }
            | Rejection::NoSuchTree(_)
            | Rejection::NoSuchNode(_)
            | Rejection::KindChanged { .. }
            | Rejection::BeingDeleted(_)
            | Rejection::TooMany { .. }
            | Rejection::WrongState { .. }
            | Rejection::WrongNodeState { .. }
            | Rejection::Forbidden { .. }
            | Rejection::TooLateToTell
            | Rejection::SessionOver(_)
            | Rejection::OutOfOrder { .. }
            | Rejection::BadRequest(_)
            | Rejection::NotTransferred { .. }
            | Rejection::MembersNotChanged { .. }
            | Rejection::NoMailbox { .. }
            | Rejection::MailboxFull { .. }
            | Rejection::BadMessage { .. }
            | Rejection::RulesTooOld { .. } => Code::Refused,
        };
        Self::with(code, rejection.into())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_the_cluster_says_decides_the_exit_code() {
        let code = |rejection: Rejection| Failure::from(rejection).code;
        assert_eq!(code(Rejection::NoSuchTree("shop".parse().unwrap())), Some(Code::Refused));
        assert_eq!(code(Rejection::Unknown), Some(Code::Failed));
        let no_leader = Rejection::NoLeader { waited: Duration::from_secs(2), why: "two voters are down".into() };
        assert_eq!(code(no_leader), Some(Code::Unreached));
        assert_eq!(Failure::from(ClientError::Unreachable { tried: Vec::new() }).code, Some(Code::Unreached));
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let failure = Failure::from_output(io::ErrorKind::BrokenPipe.into());
        assert!(failure.code.is_none() && failure.error.is_none());
    }
}

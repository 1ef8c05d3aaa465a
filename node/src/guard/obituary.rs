//! The last thing a guard does for a dead node: telling a voter that nothing of it runs any more.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use pando_protocol::ids::SessionId;
use pando_protocol::session::{Obituary, ObituaryReply};

use super::words::{Configuration, VoterAddress};

/// For how long a guard tries to report its node's death. After it the lease decides, as for a lost machine.
pub const OBITUARY_LIMIT: Duration = Duration::from_secs(2);
/// For how long one voter is waited for, so that a silent one leaves time for the others.
const VOTER_LIMIT: Duration = Duration::from_millis(500);
/// The pause after all voters were tried in vain: an election may be under way.
const PAUSE: Duration = Duration::from_millis(20);

/// One attempt to report a death: what to send, to whom, as whom.
#[derive(Debug, Clone, Copy)]
pub struct ObituaryContext<'a> {
    /// The folder with the node's certificate and key.
    pub identity: &'a Path,
    /// The voter to tell.
    pub voter: &'a VoterAddress,
    /// What to tell.
    pub obituary: &'a Obituary,
    /// How long this attempt may take.
    pub limit: Duration,
}

/// Sends one obituary to one voter, blocking; given by `main`, since the guard knows no network.
pub type Report<'a> = dyn FnMut(&ObituaryContext<'_>) -> io::Result<ObituaryReply> + 'a;

/// Tells the voters in turn until one has recorded or refused it, or the limit of the configuration passed: everything that ran
/// under this session is gone, because of `how`. Returns the answer, or what went wrong last.
///
/// # Errors
/// The text for people where no voter answered for good.
pub fn deliver(
    configuration: &Configuration,
    session: SessionId,
    how: &str,
    report: &mut Report<'_>,
) -> Result<ObituaryReply, String> {
    let obituary = Obituary { node: configuration.node.clone(), session, how: how.to_owned() };
    let identity = Path::new(OsStr::from_bytes(&configuration.identity));
    let began = Instant::now();
    let mut last = "no voter is configured".to_owned();
    if configuration.voters.is_empty() {
        return Err(last);
    }
    loop {
        for voter in &configuration.voters {
            let left = configuration.obituary_limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(last);
            }
            let limit = left.min(VOTER_LIMIT);
            match report(&ObituaryContext { identity, voter, obituary: &obituary, limit }) {
                Ok(reply @ (ObituaryReply::Recorded | ObituaryReply::Refused)) => return Ok(reply),
                Ok(ObituaryReply::NotLeader) => last = format!("{} knows no leader", voter.name),
                Err(error) => last = format!("{} at {}: {error}", voter.name, voter.address),
            }
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(limit: Duration) -> Configuration {
        let voter = |name: &str| VoterAddress { name: name.parse().unwrap(), address: format!("{name}:7400") };
        Configuration {
            node: "n1".parse().unwrap(),
            identity: b"/identity".to_vec(),
            voters: vec![voter("n2"), voter("n3")],
            obituary_limit: limit,
        }
    }

    #[test]
    fn voters_are_told_in_turn_until_one_records_it() {
        let mut asked = Vec::new();
        let reply = deliver(&configuration(OBITUARY_LIMIT), SessionId(7), "its process died", &mut |context| {
            assert_eq!((context.obituary.session, context.identity), (SessionId(7), Path::new("/identity")));
            asked.push(context.voter.name.to_string());
            match asked.len() {
                1 => Err(io::ErrorKind::ConnectionRefused.into()),
                2 => Ok(ObituaryReply::NotLeader),
                _ => Ok(ObituaryReply::Recorded),
            }
        });
        assert_eq!(reply, Ok(ObituaryReply::Recorded));
        assert_eq!(asked, ["n2", "n3", "n2"]);
    }

    #[test]
    fn the_limit_ends_it_and_the_last_reason_is_kept() {
        let limit = Duration::from_millis(50);
        let failed =
            deliver(&configuration(limit), SessionId(7), "its process died", &mut |_| Ok(ObituaryReply::NotLeader));
        assert!(failed.unwrap_err().contains("knows no leader"));
    }
}

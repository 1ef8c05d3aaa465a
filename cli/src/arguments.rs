//! The command line: all verbs with their flags.

use clap::{Args, CommandFactory, Parser, Subcommand};
use pando_protocol::ids::{Path, TreeName};
use pando_protocol::mail::Leftover;

use crate::commands;
use crate::context::Target;
use crate::exit::Failure;

/// Runs supervision trees on a cluster: processes that outlive crashes, nodes and leaders.
///
/// Exit codes: 0 done; 1 it was tried and failed; 2 usage, bad spec files included; 3 no cluster or no leader was reached; 4 the
/// cluster refused it. `pando ask` has further ones, which `pando ask --help` tells.
#[derive(Debug, Parser)]
#[command(name = "pando", version, max_term_width = 110, disable_help_subcommand = true)]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Dev(commands::dev::Dev),
    Certs(commands::certs::Certs),
    Apply(commands::apply::Apply),
    Diff(commands::diff::Diff),
    Delete(commands::delete::Delete),
    Top(commands::top::Top),
    Tree(commands::tree::Tree),
    Status(commands::status::Status),
    Explain(commands::explain::Explain),
    History(commands::history::History),
    Events(commands::events::Events),
    Logs(commands::logs::Logs),
    Wait(commands::wait::Wait),
    Start(commands::start::Start),
    Stop(commands::stop::Stop),
    Restart(commands::restart::Restart),
    Kill(commands::kill::Kill),
    Quarantine(commands::quarantine::Quarantine),
    Scale(commands::scale::Scale),
    Send(commands::send::Send),
    Ask(commands::ask::Ask),
    Mailbox(commands::mailbox::Mailbox),
    DeadLetters(commands::dead_letters::DeadLetters),
    Work(commands::work::Work),
    Node(commands::node::Node),
    Cluster(commands::cluster::Cluster),
    Completions(commands::completions::Completions),
    Man(commands::man::Manual),
}

impl Arguments {
    /// Does what was asked.
    ///
    /// # Errors
    /// It could not be done; the failure holds the exit code.
    pub async fn run(self) -> Result<(), Failure> {
        let Self { target, verb } = self;
        match verb {
            Verb::Dev(verb) => verb.run(&target).await,
            Verb::Certs(verb) => verb.run(&target),
            Verb::Apply(verb) => verb.run(&target).await,
            Verb::Diff(verb) => verb.run(&target).await,
            Verb::Delete(verb) => verb.run(&target).await,
            Verb::Top(verb) => verb.run(&target).await,
            Verb::Tree(verb) => verb.run(&target).await,
            Verb::Status(verb) => verb.run(&target).await,
            Verb::Explain(verb) => verb.run(&target).await,
            Verb::History(verb) => verb.run(&target).await,
            Verb::Events(verb) => verb.run(&target).await,
            Verb::Logs(verb) => verb.run(&target).await,
            Verb::Wait(verb) => verb.run(&target).await,
            Verb::Start(verb) => verb.run(&target).await,
            Verb::Stop(verb) => verb.run(&target).await,
            Verb::Restart(verb) => verb.run(&target).await,
            Verb::Kill(verb) => verb.run(&target).await,
            Verb::Quarantine(verb) => verb.run(&target).await,
            Verb::Scale(verb) => verb.run(&target).await,
            Verb::Send(verb) => verb.run(&target).await,
            Verb::Ask(verb) => verb.run(&target).await,
            Verb::Mailbox(verb) => verb.run(&target).await,
            Verb::DeadLetters(verb) => verb.run(&target).await,
            Verb::Work(verb) => verb.run().await,
            Verb::Node(verb) => verb.run(&target).await,
            Verb::Cluster(verb) => verb.run(&target).await,
            Verb::Completions(verb) => verb.run(Self::command()),
            Verb::Man(verb) => verb.run(Self::command()),
        }
    }
}

/// What becomes of messages whose mailbox a change takes away; refused while there are any, where nothing is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct Leaving {
    /// Keep the messages of mailboxes that this takes away as dead letters
    #[arg(long, conflicts_with = "purge")]
    dead_letter: bool,
    /// Forget the messages and dead letters of mailboxes that this takes away
    #[arg(long)]
    purge: bool,
}

impl Leaving {
    /// What becomes of them.
    pub fn leftover(self) -> Leftover {
        match self {
            Self { dead_letter: true, .. } => Leftover::DeadLetter,
            Self { purge: true, .. } => Leftover::Purge,
            Self { dead_letter: false, purge: false } => Leftover::Refuse,
        }
    }
}

/// Reads a path; the leading slash may be left out.
///
/// # Errors
/// It is none.
pub fn path(text: &str) -> Result<Path, String> {
    let slashed = if text.starts_with('/') { text.to_owned() } else { format!("/{text}") };
    let trimmed = slashed.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(&slashed);
    trimmed.parse().map_err(|error: pando_protocol::ids::BadName| error.to_string())
}

/// Reads the name of a tree; the path of its root is one too.
///
/// # Errors
/// It is none.
pub fn tree_name(text: &str) -> Result<TreeName, String> {
    let root = path(text)?;
    if root.depth() == 1 {
        return Ok(root.tree());
    }
    Err(format!("{text:?} lies inside a tree: expected the name of a whole tree, like {}", root.tree()))
}

/// Reads a number from 0 on; `what` is what is counted.
///
/// # Errors
/// It is none, or too large for `T`; the error says what was expected.
pub fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let expected = || format!("expected {what}, a whole number such as 20");
    if is_number { text.parse().map_err(|_| format!("too large: {}", expected())) } else { Err(expected()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_verb_is_understood() {
        for line in [
            "pando dev",
            "pando dev --nodes 5 --voters 5 --data /tmp/grove",
            "pando dev kill n2",
            "pando dev start n2 --data /tmp/grove",
            "pando certs --ca ca --cluster grove --node n1 --node n2=/keys/n2 --admin --endpoints a:1,b:2",
            "pando certs --ca ca --admin /keys/me",
            "pando certs renew --ca ca",
            "pando certs renew --ca ca --days 90 n1 /keys/n2",
            "pando certs --ca ca --viewer eve --viewer bob=/keys/bob --producer till",
            "pando apply shop.toml --wait --timeout 30s",
            "pando apply - --dry-run",
            "pando diff shop.toml --output json",
            "pando delete shop --wait",
            "pando top",
            "pando top shop/ingest --stale",
            "pando tree",
            "pando tree /shop/ingest --watch --stale",
            "pando status --output json",
            "pando explain shop/web",
            "pando history /shop/web --output json",
            "pando events --follow --after 12",
            "pando logs shop/web --follow --tail 20",
            "pando wait shop --timeout 2m",
            "pando start shop/web",
            "pando stop shop/web",
            "pando restart shop",
            "pando kill shop/web",
            "pando kill shop/web TERM",
            "pando quarantine shop/web",
            "pando apply shop.toml --dead-letter --wait",
            "pando delete shop --purge",
            "pando scale shop/orders 5",
            "pando send shop/orders hello",
            "pando send shop/orders --file letter.bin --id 7 --header a=b --header c=d=e",
            "pando send shop/orders --lines - --id order-{} --skip 300 --in-order",
            "pando ask shop/orders hello --timeout 5s --fail-fast",
            "pando ask shop/orders --file -",
            "pando mailbox",
            "pando mailbox shop/orders --output json",
            "pando mailbox ls shop",
            "pando mailbox show shop/orders --stale",
            "pando mailbox pause shop/orders",
            "pando mailbox resume shop/orders",
            "pando mailbox purge shop/orders --yes",
            "pando dead-letters ls shop/orders --cause attempts --worker shop/orders/0 --older-than 1h --text KeyError",
            "pando dead-letters show shop/orders #17 --output json",
            "pando dead-letters redrive shop/orders --id 1 --id 2 --rate 10 --dry-run",
            "pando dead-letters purge shop/orders --cause node_losses --yes",
            "pando work -- ./handle.sh",
            "pando work --concurrency 4 -- jq .order",
            "pando node ls",
            "pando node drain n2 --deadline 30s",
            "pando node drain n2 --wait",
            "pando node drain n2 --no-wait",
            "pando node undrain n2",
            "pando node remove n2",
            "pando cluster status --stale",
            "pando cluster transfer",
            "pando cluster members",
            "pando cluster members --output json",
            "pando cluster members add n4 10.0.0.4:7400",
            "pando cluster members promote n4",
            "pando cluster members remove n1",
            "pando --context dev cluster transfer n2",
            "pando completions zsh",
            "pando man",
            "pando man /tmp/man1",
        ] {
            assert!(parse(line).is_ok(), "{line}: {}", parse(line).unwrap_err());
        }
    }

    #[test]
    fn nonsense_is_refused_before_anything_is_tried() {
        for line in [
            "pando",
            "pando certs --node n1",
            "pando certs renew n1",
            "pando certs --ca ca renew --ca ca",
            "pando tree /Shop",
            "pando work",
            "pando work --concurrency 0 -- ./handle.sh",
            "pando delete shop/web",
            "pando kill shop/web SIGNONSENSE",
            "pando wait shop --timeout soon",
            "pando apply shop.toml --dry-run --wait",
            "pando tree --endpoints nowhere",
            "pando dev --nodes 0",
            "pando dev --voters 2",
            "pando cluster members add n4",
            "pando cluster members add n4 nowhere",
            "pando cluster members promote",
            "pando completions tcsh",
            "pando apply shop.toml --dead-letter --purge",
            "pando scale shop/orders",
            "pando scale shop/orders 0",
            "pando send shop/orders",
            "pando send shop/orders hello --file letter.bin",
            "pando send shop/orders hello --header nothing",
            "pando send shop/orders hello --skip 3",
            "pando ask shop/orders",
            "pando ask shop/orders hello --timeout soon",
            "pando mailbox pause",
            "pando dead-letters",
            "pando dead-letters ls",
            "pando dead-letters show shop/orders",
            "pando dead-letters ls shop/orders --cause sadness",
            "pando dead-letters redrive shop/orders --rate 0",
        ] {
            assert_eq!(parse(line).map(|_| ()).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn a_word_where_a_number_belongs_is_refused_with_what_was_expected() {
        for (line, expected) in [
            ("pando logs shop/web --tail x", "expected how many lines, a whole number"),
            ("pando logs shop/web --tail=-1", "expected how many lines, a whole number"),
            ("pando logs shop/web --tail 99999999999", "too large"),
            ("pando events --after x", "expected the number of an event, a whole number"),
            ("pando dev --nodes x", "expected how many nodes, a whole number"),
            ("pando dev --nodes 0", "expected 1 to 32 nodes"),
            ("pando dev --nodes 33", "expected 1 to 32 nodes"),
            ("pando scale shop/orders x", "expected how many workers, a whole number"),
            ("pando scale shop/orders 0", "expected 1 or more workers"),
            ("pando send shop/orders --lines - --skip x", "expected how many lines, a whole number"),
            ("pando dead-letters redrive shop/orders --rate x", "expected how many a second, a whole number"),
            ("pando dev --voters x", "expected 1, 3 or 5"),
        ] {
            let error = parse(line).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("invalid digit"), "{line}: {error}");
        }
    }

    #[test]
    fn paths_need_no_leading_slash() {
        assert_eq!(path("shop/web").unwrap().as_str(), "/shop/web");
        assert_eq!(path("/shop/").unwrap().as_str(), "/shop");
        assert!(path("").is_err() && path("/").is_err());
        assert_eq!(tree_name("/shop").unwrap().as_str(), "shop");
    }
}

//! `pando completions`: what a shell needs to complete commands of `pando`.

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;

use crate::exit::Failure;
use crate::output;

/// Prints completions for a shell
///
/// bash: pando completions bash > ~/.local/share/bash-completion/completions/pando
///
/// zsh: pando completions zsh > DIR/_pando, in a DIR of $fpath
///
/// fish: pando completions fish > ~/.config/fish/completions/pando.fish
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: KnownShell,
}

/// The shells that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KnownShell {
    Bash,
    Zsh,
    Fish,
}

impl Completions {
    /// Prints what completes `command`.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn run(self, command: Command) -> Result<(), Failure> {
        output::emit(&script(self.shell, command)?)
    }
}

fn script(shell: KnownShell, mut command: Command) -> Result<String, Failure> {
    let shell = match shell {
        KnownShell::Bash => Shell::Bash,
        KnownShell::Zsh => Shell::Zsh,
        KnownShell::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "pando", &mut text);
    String::from_utf8(text).map_err(Failure::failed)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Stdio;

    use clap::CommandFactory;

    use super::*;
    use crate::arguments::Arguments;

    /// Every verb, and every verb below one.
    fn verbs(command: &Command) -> Vec<String> {
        let own = |verb: &Command| std::iter::once(verb.get_name().to_owned()).chain(verbs(verb)).collect::<Vec<_>>();
        command.get_subcommands().flat_map(own).collect()
    }

    #[test]
    fn every_verb_is_completed_in_every_shell() {
        let verbs = verbs(&Arguments::command());
        assert!(verbs.len() > 20 && verbs.contains(&"renew".to_owned()), "{verbs:?}");
        for shell in KnownShell::value_variants() {
            let script = script(*shell, Arguments::command()).unwrap();
            let words: Vec<&str> =
                script.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_')).collect();
            for verb in &verbs {
                assert!(words.contains(&verb.as_str()), "{shell:?} does not know {verb}");
            }
        }
    }

    #[test]
    fn bash_accepts_the_script() {
        let _alone = crate::commands::dev::orphans::OWN_CHILDREN.blocking_lock();
        let mut bash = std::process::Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
        let script = script(KnownShell::Bash, Arguments::command()).unwrap();
        bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(bash.wait().unwrap().success());
    }
}

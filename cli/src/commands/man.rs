//! `pando man`: manual pages.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;

use crate::exit::Failure;
use crate::output;

/// Prints the manual page of pando, or writes a page for every verb into a folder
///
/// To read one: pando man ~/.local/share/man/man1, then man pando-apply.
#[derive(Debug, Args)]
pub struct Manual {
    /// Folder for the pages of all verbs, such as ~/.local/share/man/man1; made if missing
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl Manual {
    /// Prints or writes the pages of `command`.
    ///
    /// # Errors
    /// A page cannot be written.
    pub fn run(self, command: Command) -> Result<(), Failure> {
        let Some(folder) = self.folder else {
            let mut page = Vec::new();
            Man::new(command).render(&mut page).map_err(Failure::failed)?;
            return output::emit(&String::from_utf8(page).map_err(Failure::failed)?);
        };
        let unwritable = |error| Failure::failed(error).context(format!("{} cannot be written", folder.display()));
        std::fs::create_dir_all(&folder).map_err(unwritable)?;
        clap_mangen::generate_to(command, &folder).map_err(unwritable)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;

    use super::*;
    use crate::arguments::Arguments;

    /// Checks that a command and all below it have a page that says what they are for.
    fn has_pages(folder: &Path, name: &str, command: &Command) {
        let page = std::fs::read_to_string(folder.join(format!("{name}.1"))).unwrap_or_else(|e| panic!("{name}: {e}"));
        let about = command.get_about().unwrap_or_else(|| panic!("{name} does not say what it is for")).to_string();
        let first = about.split([' ', '-']).next().unwrap();
        assert!(page.contains(".SH SYNOPSIS") && page.contains(first), "{name}: {page}");
        for verb in command.get_subcommands() {
            has_pages(folder, &format!("{name}-{}", verb.get_name()), verb);
        }
    }

    #[test]
    fn every_verb_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("man1");
        Manual { folder: Some(pages.clone()) }.run(Arguments::command()).unwrap();
        has_pages(&pages, "pando", &Arguments::command());
    }
}

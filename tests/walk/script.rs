//! The walk as it stands in the README: commands with their output, and conditions to wait for between them.
//!
//! Between `<!-- walk:begin -->` and `<!-- walk:end -->`, each block of the kind `console` holds commands, which begin with
//! `$ `, and below each what it printed. `<!-- walk:until COMMAND -->` waits, unseen by the reader, until COMMAND succeeds: a
//! person needs a moment to type, and a script does not.

/// The walk, and the text around it.
#[derive(Debug)]
pub struct Script {
    /// What to do, in order.
    pub steps: Vec<Step>,
    lines: Vec<String>,
}

/// One step.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// To be tried until it succeeds.
    Until(String),
    /// To be run, with the lines of the README, from and to, that hold its output.
    Command {
        /// As it is typed.
        text: String,
        /// Its first line of output.
        from: usize,
        /// The line after its last one.
        to: usize,
    },
}

impl Script {
    /// Finds the walk in a text.
    ///
    /// # Errors
    /// A marker or a block is not closed, or there is no command at all.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut steps = Vec::new();
        let (mut in_walk, mut in_block) = (false, false);
        for (number, line) in lines.iter().enumerate() {
            match line.as_str() {
                "<!-- walk:begin -->" if !in_walk => in_walk = true,
                "<!-- walk:end -->" if in_walk && !in_block => in_walk = false,
                "```console" if in_walk && !in_block => in_block = true,
                "```" if in_block => in_block = false,
                _ if in_block => match (line.strip_prefix("$ "), steps.last_mut()) {
                    (Some(command), _) => {
                        steps.push(Step::Command { text: command.to_owned(), from: number + 1, to: number + 1 });
                    }
                    (None, Some(Step::Command { to, .. })) => *to = number + 1,
                    (None, _) => return Err(format!("line {}: output before any command", number + 1)),
                },
                _ if in_walk => {
                    let condition = line.strip_prefix("<!-- walk:until ").and_then(|rest| rest.strip_suffix(" -->"));
                    steps.extend(condition.map(|condition| Step::Until(condition.to_owned())));
                }
                _ => {}
            }
        }
        if in_walk || in_block {
            return Err("a walk:begin or a block of it is not closed".into());
        }
        if !steps.iter().any(|step| matches!(step, Step::Command { .. })) {
            return Err("there is no walk: no command between walk:begin and walk:end".into());
        }
        Ok(Self { steps, lines })
    }

    /// Every command with the output that stands below it.
    pub fn commands(&self) -> impl Iterator<Item = (&str, String)> {
        self.steps.iter().filter_map(|step| match step {
            Step::Until(_) => None,
            Step::Command { text, from, to } => {
                Some((text.as_str(), self.lines[*from..*to].iter().map(|line| format!("{line}\n")).collect()))
            }
        })
    }

    /// The whole text with these outputs below the commands, one for each.
    pub fn with_outputs(&self, outputs: &[String]) -> String {
        let places = self.steps.iter().filter_map(|step| match step {
            Step::Until(_) => None,
            Step::Command { from, to, .. } => Some((*from, *to)),
        });
        let mut text = String::new();
        let mut next = 0;
        for ((from, to), output) in places.zip(outputs) {
            self.lines[next..from].iter().for_each(|line| text.push_str(&format!("{line}\n")));
            text.push_str(output);
            next = to;
        }
        self.lines[next..].iter().for_each(|line| text.push_str(&format!("{line}\n")));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = "\
# A title
```console
$ not a part of the walk
```
<!-- walk:begin -->
Words.
<!-- walk:until pando wait shop -->
```console
$ pando tree
old
older
$ pando status
```
<!-- walk:end -->
The end.
";

    #[test]
    fn commands_and_conditions_are_found_between_the_markers_only() {
        let script = Script::parse(README).unwrap();
        assert_eq!(script.steps[0], Step::Until("pando wait shop".into()));
        let commands: Vec<_> = script.commands().collect();
        assert_eq!(commands, [("pando tree", "old\nolder\n".to_owned()), ("pando status", String::new())]);
    }

    #[test]
    fn outputs_are_written_below_their_commands_and_nothing_else_changes() {
        let script = Script::parse(README).unwrap();
        let written = script.with_outputs(&["new\n".into(), "fine\n".into()]);
        assert_eq!(written, README.replace("old\nolder\n", "new\n").replace("status\n", "status\nfine\n"));
        let same: Vec<String> = script.commands().map(|(_, output)| output).collect();
        assert_eq!(script.with_outputs(&same), README);
    }

    #[test]
    fn a_text_without_a_walk_is_refused() {
        assert!(Script::parse("# A title\n").is_err());
        assert!(Script::parse("<!-- walk:begin -->\n```console\n$ pando tree\n").is_err());
    }
}

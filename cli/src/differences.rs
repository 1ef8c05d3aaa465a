//! What a change did or would do, as text.

use pando_protocol::message::{Change, Difference, DifferenceKind};

use crate::connection::with;
use crate::context::Target;
use crate::exit::Failure;
use crate::output::{self, Style};

/// Changes something and shows what that did; `same` where it was so already.
///
/// # Errors
/// The cluster refuses it or cannot be reached.
pub async fn make(target: &Target, change: Change, same: &str) -> Result<(), Failure> {
    let changed = with(target, async |connection| connection.change(change).await).await?;
    output::emit(&render(&changed.differences, same, output::wants_colour()))
}

/// One line for each difference; `same` where there is none.
pub fn render(differences: &[Difference], same: &str, colour: bool) -> String {
    if differences.is_empty() {
        return format!("{same}\n");
    }
    let width = differences.iter().map(|difference| difference.path.as_str().len()).max().unwrap_or_default();
    differences.iter().map(|difference| line(difference, width, colour)).collect()
}

fn line(difference: &Difference, width: usize, colour: bool) -> String {
    let Difference { path, what, keys } = difference;
    let (sign, style, word) = match what {
        DifferenceKind::Added => ("+", Style::Green, "added"),
        DifferenceKind::Removed => ("-", Style::Red, "removed"),
        DifferenceKind::Restarted => ("~", Style::Yellow, "restarted"),
        DifferenceKind::Changed => ("~", Style::Plain, "changed"),
        DifferenceKind::Started => (">", Style::Green, "started"),
        DifferenceKind::Stopped => ("x", Style::Yellow, "stopped"),
        DifferenceKind::Moved => (">", Style::Yellow, "moves"),
    };
    let keys = if keys.is_empty() { String::new() } else { format!(" ({})", keys.join(", ")) };
    let path = format!("{path:width$}");
    format!("{} {path}  {word}{keys}\n", style.paint(sign, colour))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_has_its_sign_and_its_keys() {
        let difference = |path: &str, what, keys: &[&str]| Difference {
            path: path.parse().unwrap(),
            what,
            keys: keys.iter().map(ToString::to_string).collect(),
        };
        let differences = [
            difference("/shop/web", DifferenceKind::Restarted, &["command", "env"]),
            difference("/shop/load", DifferenceKind::Added, &[]),
            difference("/shop/old", DifferenceKind::Removed, &[]),
        ];
        let expected = "\
~ /shop/web   restarted (command, env)
+ /shop/load  added
- /shop/old   removed
";
        assert_eq!(render(&differences, "", false), expected);
        assert_eq!(render(&[], "nothing differs", false), "nothing differs\n");
    }
}

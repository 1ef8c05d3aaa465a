//! Text in less room than it would take.

use ratatui::text::Span;

/// Columns that a text takes on a terminal.
pub fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text in at most so many columns: what does not fit is left out of its middle, since paths differ at their ends.
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.into();
    }
    let Some(room) = columns.checked_sub(1) else { return String::new() };
    let head = room / 2;
    format!("{}…{}", start(text, head), end(text, room - head))
}

/// The text in at most so many columns, without its end where it does not fit.
pub fn cut_end(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.into();
    }
    columns.checked_sub(1).map_or_else(String::new, |room| format!("{}…", start(text, room)))
}

/// The lines of a text, each broken where it is longer than `columns`: between words, and within one that is longer by itself.
/// What goes on below begins where its line began.
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    for line in text.lines() {
        // A terminal would move on to a place of its own.
        let line = line.replace('\t', "    ");
        let indent = line.len() - line.trim_start_matches(' ').len();
        let indent = if indent * 2 > columns { 0 } else { indent };
        let mut rest = line.as_str();
        let mut margin = 0;
        loop {
            let fits = start(rest, columns - margin);
            if fits.len() == rest.len() {
                lines.push(format!("{:margin$}{rest}", ""));
                break;
            }
            let at_word = fits.rfind(' ').filter(|&at| !fits[..at].trim().is_empty());
            let first = rest.chars().next().map_or(1, char::len_utf8);
            let (here, next) = match at_word {
                Some(at) => (rest[..at].trim_end(), rest[at..].trim_start()),
                // Even one that is wider than the room gets a line, so that this ends.
                None => {
                    let (here, next) = rest.split_at(fits.len().max(first));
                    (here, next.trim_start())
                }
            };
            lines.push(format!("{:margin$}{here}", ""));
            (rest, margin) = (next, indent);
            if rest.is_empty() {
                break;
            }
        }
    }
    lines
}

/// As much of the beginning as takes at most so many columns.
fn start(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    for (at, letter) in text.char_indices() {
        taken += width(letter.encode_utf8(&mut [0; 4]));
        if taken > columns {
            return &text[..at];
        }
    }
    text
}

/// As much of the end as takes at most so many columns.
fn end(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    for (at, letter) in text.char_indices().rev() {
        taken += width(letter.encode_utf8(&mut [0; 4]));
        if taken > columns {
            return &text[at + letter.len_utf8()..];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_left_out_of_the_middle() {
        assert_eq!(cut("/shop/web", 9), "/shop/web");
        assert_eq!(cut("/shop/ingest/feed", 9), "/sho…feed");
        assert_eq!(cut("漢字漢字", 5), "漢…字");
        assert_eq!((cut("abc", 1), cut("abc", 0)), ("…".into(), String::new()));
        assert_eq!(cut_end("waits for room", 6), "waits…");
    }

    #[test]
    fn lines_are_broken_between_words_and_long_words_anywhere() {
        assert_eq!(wrapped("a line of words\n\nend", 8), ["a line", "of words", "", "end"]);
        assert_eq!(wrapped("  now  it runs", 8), ["  now", "  it", "  runs"]);
        assert_eq!(wrapped("/shop/ingest", 5), ["/shop", "/inge", "st"]);
        assert_eq!(wrapped("漢字", 1), ["漢", "字"], "wider than the room, and it ends");
        assert_eq!(wrapped("          deep", 6), ["      ", "deep"]);
    }
}

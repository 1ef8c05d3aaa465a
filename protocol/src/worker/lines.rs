//! Bytes cut into lines, never keeping more than one line may have.

/// Cuts what it is given into lines.
#[derive(Debug)]
pub struct Lines {
    limit: usize,
    bytes: Vec<u8>,
    /// Where the first line begins that was not given.
    from: usize,
    /// Up to here there is no end of that line.
    looked: usize,
    /// Bytes that were dropped of a line that is too long, since that was last said. `None` within limits.
    skipped: Option<usize>,
}

/// A line without its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'l> {
    /// A whole one.
    Whole(&'l [u8]),
    /// One that is too long, and dropped: said once for each time that it exceeds the limit.
    TooLong,
}

impl Lines {
    /// Lines of at most `limit` bytes.
    pub fn of(limit: usize) -> Self {
        Self { limit, bytes: Vec::new(), from: 0, looked: 0, skipped: None }
    }

    /// Takes what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.from);
        self.looked -= self.from;
        self.from = 0;
        if self.bytes.is_empty() && self.bytes.capacity() > self.limit / 4 {
            self.bytes = Vec::new(); // One long line should not cost its length for ever.
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next line, empty ones left out. `None`: more is to be read.
    pub fn next_line(&mut self) -> Option<Line<'_>> {
        loop {
            let Some(length) = self.bytes[self.looked..].iter().position(|byte| *byte == b'\n') else {
                return self.unfinished().then_some(Line::TooLong);
            };
            let (from, end) = (self.from, self.looked + length);
            (self.from, self.looked) = (end + 1, end + 1);
            if self.skipped.take().is_some() {
                continue;
            }
            if end - from > self.limit {
                return Some(Line::TooLong);
            }
            if !self.bytes[from..end].trim_ascii().is_empty() {
                return Some(Line::Whole(&self.bytes[from..end]));
            }
        }
    }

    /// Looks at what has no end yet. Whether it exceeds the limit, once more.
    fn unfinished(&mut self) -> bool {
        let length = self.bytes.len() - self.from;
        self.looked = self.bytes.len();
        if self.skipped.is_none() && length <= self.limit {
            return false;
        }
        (self.from, self.looked) = (0, 0);
        self.bytes.clear();
        let skipped = self.skipped.unwrap_or_default() + length;
        self.skipped = Some(if skipped > self.limit { 0 } else { skipped });
        skipped > self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_as_they_went_in_however_they_are_cut() {
        let text = b"one\n\ntwo two\n\r\nthree\nunfinished";
        for size in 1..text.len() {
            let mut lines = Lines::of(7);
            let mut found = Vec::new();
            for part in text.chunks(size) {
                lines.push(part);
                while let Some(line) = lines.next_line() {
                    found.push(match line {
                        Line::Whole(line) => String::from_utf8_lossy(line).into_owned(),
                        Line::TooLong => "too long".into(),
                    });
                }
            }
            assert_eq!(found, ["one", "two two", "three", "too long"], "in parts of {size}");
        }
    }

    #[test]
    fn a_line_without_end_is_told_of_again_and_again_and_never_kept() {
        let mut lines = Lines::of(1_000);
        let mut told = 0;
        for _ in 0..1_000 {
            lines.push(&[b'x'; 100]);
            while lines.next_line().is_some() {
                told += 1;
            }
            assert!(lines.bytes.capacity() <= 4_000);
        }
        assert!((90..=100).contains(&told), "{told} times for a hundred times the limit");
        lines.push(b"\nback\n");
        assert_eq!(lines.next_line(), Some(Line::Whole(b"back")));
    }
}

//! `pando tree --watch`: the drawing, redrawn as things happen, and below it what happened last.

use std::collections::VecDeque;
use std::time::Duration;

use pando_protocol::ids::Path;
use pando_protocol::message::{Call, Freshness, Item};
use pando_protocol::view::{EventRow, TreeRow};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::rows::render;
use crate::connection::{Connection, Reading, unconfirmed};
use crate::exit::{Code, Failure};
use crate::human;
use crate::output::{self, Format, Style};
use crate::terminal::{self, Picture};

/// Uptimes grow without events: redrawn at least this often.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Many events at once are one redraw.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// Pause before a broken stream of events is begun again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// So many of the last events stand below the drawing.
const EVENTS_SHOWN: usize = 6;

/// Redraws until it is interrupted. A cluster that cannot be reached is said so under the last drawing, and asked again.
///
/// # Errors
/// There is no such path, or standard output cannot be written.
pub async fn run(connection: &Connection, path: Option<Path>, reading: Reading) -> Result<(), Failure> {
    let (happened, happening) = watch::channel(Happened::default());
    tokio::select! {
        biased;
        drawn = redraw(connection, path.clone(), reading, happening) => drawn,
        () = listen(connection, path, happened) => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// What happened, as far as it was heard.
#[derive(Debug, Default)]
struct Happened {
    /// The number of the last event.
    number: u64,
    /// The last ones that concern what is shown, the oldest first.
    latest: VecDeque<EventRow>,
}

impl Happened {
    fn note(&mut self, event: EventRow, path: Option<&Path>) {
        self.number = event.number;
        if concerns(&event, path) {
            self.latest.push_back(event);
        }
        if self.latest.len() > EVENTS_SHOWN {
            self.latest.pop_front();
        }
    }
}

/// Whether an event is about what lies at and below `path`, or about nodes, which concern everything.
fn concerns(event: &EventRow, path: Option<&Path>) -> bool {
    let (Some(about), Some(shown)) = (&event.path, path) else { return true };
    let rest = about.as_str().strip_prefix(shown.as_str());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

async fn redraw(
    connection: &Connection,
    path: Option<Path>,
    reading: Reading,
    mut happening: watch::Receiver<Happened>,
) -> Result<(), Failure> {
    let mut screen = Screen::new(reading.output);
    loop {
        match connection.tree(path.clone(), reading.freshness()).await {
            Ok(read) => {
                let is_sure = read.view.confirmed || reading.freshness() == Freshness::Stale;
                screen.latest = happening.borrow_and_update().latest.clone();
                screen.show(read.value, (!is_sure).then(|| unconfirmed(&read.view)))?;
            }
            Err(Failure { code: Some(Code::Unreached), error }) => {
                let why = error.map(|error| format!("{error:#}")).unwrap_or_default();
                screen.complain(why)?;
            }
            Err(failure) => return Err(failure),
        }
        sleep(SHORTEST_PAUSE).await;
        // Either way it is time to look: something happened, time passed, or nobody listens any more.
        let _ = timeout(LONGEST_PAUSE, happening.changed()).await;
    }
}

/// Notes events, at any node that answers, for as long as it is awaited.
async fn listen(connection: &Connection, path: Option<Path>, happened: watch::Sender<Happened>) {
    loop {
        let after = happened.borrow().number;
        if let Ok(mut items) = connection.stream(Call::Events { after, follow: true }).await {
            while let Ok(Some(item)) = items.next().await {
                if let Item::Event(row) = item {
                    happened.send_modify(|happened| happened.note(row, path.as_ref()));
                }
            }
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// What was shown last.
struct Screen {
    picture: Picture,
    format: Format,
    rows: Vec<TreeRow>,
    latest: VecDeque<EventRow>,
    remark: Option<String>,
    is_empty: bool,
}

impl Screen {
    fn new(format: Format) -> Self {
        let (rows, latest) = (Vec::new(), VecDeque::new());
        Self { picture: Picture::default(), format, rows, latest, remark: None, is_empty: true }
    }

    fn complain(&mut self, why: String) -> Result<(), Failure> {
        let rows = self.rows.clone();
        self.show(rows, Some(why))
    }

    /// On a terminal every look is drawn. Elsewhere a drawing is data: one for each change that is more than time passing.
    fn show(&mut self, rows: Vec<TreeRow>, remark: Option<String>) -> Result<(), Failure> {
        let is_news = self.is_empty || timeless(&rows) != timeless(&self.rows);
        let is_new_remark = remark.is_some() && remark != self.remark;
        (self.rows, self.remark, self.is_empty) = (rows, remark, false);
        if terminal::size().is_some() && self.format == Format::Table {
            return self.picture.draw(&self.drawing());
        }
        if let (true, Some(remark)) = (is_new_remark, &self.remark) {
            output::say(remark);
        }
        match self.format {
            _ if !is_news => Ok(()),
            Format::Table => output::emit(&(render(&self.rows, false) + "\n")),
            Format::Json => output::emit_json_line(&self.rows),
        }
    }

    fn drawing(&self) -> String {
        let colour = output::wants_colour();
        let mut drawing = render(&self.rows, colour);
        if let Some(remark) = &self.remark {
            drawing.push_str(&format!("{}\n", Style::Red.paint(remark, colour)));
        }
        drawing.push('\n');
        for event in &self.latest {
            let time = Style::Dim.paint(&human::time_of_day(event.at), colour);
            drawing.push_str(&format!("{time}  {}\n", event.text));
        }
        drawing + &Style::Dim.paint("Ctrl-C ends this; the trees run on", colour) + "\n"
    }
}

/// The rows without what changes by time alone.
fn timeless(rows: &[TreeRow]) -> Vec<TreeRow> {
    rows.iter().map(|row| TreeRow { uptime_ms: None, ..row.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64, path: Option<&str>) -> EventRow {
        let (kind, text) = (String::new(), format!("event {number}"));
        let path = path.map(|path| path.parse().unwrap());
        EventRow { number, cluster_time_ms: 0, at: 0, kind, path, node: None, text }
    }

    #[test]
    fn the_last_events_that_concern_what_is_shown_stand_below_it() {
        let shown: Path = "/shop/ingest".parse().unwrap();
        let mut happened = Happened::default();
        for (number, path) in [(1, Some("/shop/ingest")), (2, Some("/shop/ingest/feed")), (3, Some("/shop/ingester"))] {
            happened.note(event(number, path), Some(&shown));
        }
        happened.note(event(4, Some("/shop")), Some(&shown));
        happened.note(event(5, None), Some(&shown));
        let numbers = |happened: &Happened| happened.latest.iter().map(|event| event.number).collect::<Vec<_>>();
        assert_eq!((numbers(&happened), happened.number), (vec![1, 2, 5], 5));
        (6..20).for_each(|number| happened.note(event(number, Some("/solo")), None));
        assert_eq!(numbers(&happened), [14, 15, 16, 17, 18, 19]);
    }
}

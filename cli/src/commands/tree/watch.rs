//! `pando tree --watch`: the drawing, redrawn as things happen.

use std::time::Duration;

use pando_protocol::ids::Path;
use pando_protocol::message::{Call, Freshness, Item};
use pando_protocol::view::TreeRow;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::rows::render;
use crate::connection::{Connection, Reading, unconfirmed};
use crate::exit::{Code, Failure};
use crate::output::{self, Format, Style};
use crate::terminal::{self, Picture};

/// Uptimes grow without events: redrawn at least this often.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Many events at once are one redraw.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// Pause before a broken stream of events is begun again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Redraws until it is interrupted. A cluster that cannot be reached is said so under the last drawing, and asked again.
///
/// # Errors
/// There is no such path, or standard output cannot be written.
pub async fn run(connection: &Connection, path: Option<Path>, reading: Reading) -> Result<(), Failure> {
    let (happened, happening) = watch::channel(0);
    tokio::select! {
        biased;
        drawn = redraw(connection, path, reading, happening) => drawn,
        () = listen(connection, happened) => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn redraw(
    connection: &Connection,
    path: Option<Path>,
    reading: Reading,
    mut happening: watch::Receiver<u64>,
) -> Result<(), Failure> {
    let mut screen = Screen::new(reading.output);
    loop {
        match connection.tree(path.clone(), reading.freshness()).await {
            Ok(read) => {
                let is_sure = read.view.confirmed || reading.freshness() == Freshness::Stale;
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

/// Counts events, at any node that answers, for as long as it is awaited.
async fn listen(connection: &Connection, happened: watch::Sender<u64>) {
    loop {
        let after = *happened.borrow();
        if let Ok(mut items) = connection.stream(Call::Events { after, follow: true }).await {
            while let Ok(Some(item)) = items.next().await {
                if let Item::Event(row) = item {
                    happened.send_replace(row.number);
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
    remark: Option<String>,
    is_empty: bool,
}

impl Screen {
    fn new(format: Format) -> Self {
        Self { picture: Picture::default(), format, rows: Vec::new(), remark: None, is_empty: true }
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
        let remark = self.remark.as_ref().map(|remark| Style::Red.paint(remark, colour) + "\n");
        render(&self.rows, colour) + &remark.unwrap_or_default()
    }
}

/// The rows without what changes by time alone.
fn timeless(rows: &[TreeRow]) -> Vec<TreeRow> {
    rows.iter().map(|row| TreeRow { uptime_ms: None, ..row.clone() }).collect()
}

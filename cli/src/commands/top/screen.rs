//! The loop between the terminal, the model and the cluster.

use std::io;
use std::time::Duration;

use anyhow::anyhow;
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt;
use pando_protocol::ids::Path;
use pando_protocol::message::Freshness;
use ratatui::DefaultTerminal;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::asking::{self, Scope};
use super::deed::Deed;
use super::keys::Wish;
use super::model::{Model, News, Watched};
use super::view::{self, Look};
use crate::connection::Connection;
use crate::exit::Failure;
use crate::output;

/// Between two drawings: more would be seen by nobody, and a slow terminal could not follow.
const BETWEEN_DRAWINGS: Duration = Duration::from_millis(100);
/// Ages grow without news: drawn at least this often.
const TICK: Duration = Duration::from_secs(1);
/// News that may wait to be taken in. Those who ask wait then, and with them the streams of the cluster.
const NEWS_WAITING: usize = 64;

/// Shows the cluster until the operator quits. The terminal is as before then, also after a signal or a panic.
///
/// # Errors
/// The terminal cannot be used, or what was asked for cannot be shown.
pub async fn run(connection: &Connection, root: Option<Path>, freshness: Freshness) -> Result<(), Failure> {
    let signals = Signals::new()?;
    // It has a panic hook restore the terminal before the panic is told.
    let mut terminal = ratatui::try_init().map_err(|error| {
        // What was changed before the error is taken back, as far as it goes.
        let _ = ratatui::try_restore();
        unusable(error)
    })?;
    let shown = show(&mut terminal, signals, connection, root, freshness).await;
    let restored = terminal.show_cursor().and_then(|()| ratatui::try_restore());
    shown.and(restored.map_err(unusable))
}

async fn show(
    terminal: &mut DefaultTerminal,
    signals: Signals,
    connection: &Connection,
    root: Option<Path>,
    freshness: Freshness,
) -> Result<(), Failure> {
    let model = Model::new(root.clone(), freshness == Freshness::Stale, Instant::now());
    let (news, heard) = mpsc::channel(NEWS_WAITING);
    let (watched, watches) = watch::channel(Watched::Nothing);
    // The model asks for one deed at a time.
    let (deeds, asked) = mpsc::channel(1);
    tokio::select! {
        biased;
        shown = drive(terminal, signals, model, connection, heard, watched, deeds) => shown,
        over = asking::run(connection, Scope { root, freshness }, watches, asked, news) => over,
    }
}

/// Draws what changed, takes in what comes, keys before news, and passes on what is wanted.
async fn drive(
    terminal: &mut DefaultTerminal,
    mut signals: Signals,
    mut model: Model,
    connection: &Connection,
    mut heard: mpsc::Receiver<News>,
    watched: watch::Sender<Watched>,
    deeds: mpsc::Sender<Deed>,
) -> Result<(), Failure> {
    let mut keys = EventStream::new();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let colour = output::wants_colour();
    let (mut next_drawing, mut is_due) = (Instant::now(), true);
    loop {
        is_due |= model.is_to_be_drawn();
        if is_due && Instant::now() >= next_drawing {
            draw(terminal, &mut model, colour).map_err(unusable)?;
            (next_drawing, is_due) = (Instant::now() + BETWEEN_DRAWINGS, false);
        }
        tokio::select! {
            biased;
            () = signals.come() => return Ok(()),
            event = keys.next() => match event {
                Some(Ok(Event::Key(key))) => match model.press(key) {
                    Some(Wish::Quit) => return Ok(()),
                    // One is under way at most, so there is room.
                    Some(Wish::Do(deed)) => _ = deeds.try_send(deed),
                    None => {}
                },
                Some(Ok(Event::Resize(..))) => model.touch(),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(unusable(error)),
                None => return Err(unusable(io::ErrorKind::UnexpectedEof.into())),
            },
            () = sleep_until(next_drawing), if is_due => {}
            _ = ticks.tick() => model.pass(connection.endpoint()),
            Some(news) = heard.recv() => model.hear(news, Instant::now()),
        }
        let wanted = model.watched();
        watched.send_if_modified(|before| {
            let is_new = *before != wanted;
            *before = wanted;
            is_new
        });
    }
}

fn draw(terminal: &mut DefaultTerminal, model: &mut Model, colour: bool) -> io::Result<()> {
    let look = Look { colour, now: Instant::now() };
    terminal.draw(|frame| {
        let area = frame.area();
        model.resize(area.width, area.height);
        view::draw(model, look, frame.buffer_mut());
    })?;
    // What the size changed is drawn already.
    model.is_to_be_drawn();
    Ok(())
}

/// The signals that ask a program to end.
struct Signals {
    all: [Signal; 3],
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::failed(anyhow!(error).context("no signal can be heard")));
        let all = [listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?, listen(SignalKind::hangup())?];
        Ok(Self { all })
    }

    async fn come(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.all;
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

fn unusable(error: io::Error) -> Failure {
    Failure::failed(anyhow::Error::new(error).context("the terminal cannot be used"))
}

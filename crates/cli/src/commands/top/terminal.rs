//! The full screen: takes over the terminal, reads keys, and restores the terminal.

use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dunlin_net::Addr;
use dunlin_serve::Interrupt;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::screen::Screen;
use super::{Watched, poll};

/// Maximum delay of a key, and minimum time between two frames.
const TICK: Duration = Duration::from_millis(50);
/// Time limit for the polling thread to end.
const LEAVE_LIMIT: Duration = Duration::from_millis(500);

/// The action of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    GoOn,
    Quit,
}

/// Shows the screen until q, an interrupt, or the end of the intervals.
///
/// The terminal is restored however this ends: by returning, by a panic (the hook that `try_init` sets), or by a signal
/// (the flag).
pub fn show<W: Watched>(
    server: &Addr,
    screen: Screen<W>,
    interval: Duration,
    count: Option<NonZeroU64>,
    interrupt: &Interrupt,
) -> Result<()> {
    let stop = Interrupt::default();
    let answers = poll::in_background(server, interval, stop.clone())?;
    let mut terminal = ratatui::try_init().context("cannot take the terminal")?;
    let outcome = run(&mut terminal, screen, &answers, count, interrupt);
    ratatui::restore();
    stop.flag().store(true, std::sync::atomic::Ordering::Relaxed);
    leave(&answers);
    outcome
}

/// Waits briefly for the thread to close its sessions.
fn leave<W>(answers: &Receiver<Result<W, String>>) {
    let deadline = Instant::now() + LEAVE_LIMIT;
    while !matches!(
        answers.recv_timeout(deadline.saturating_duration_since(Instant::now())),
        Err(RecvTimeoutError::Disconnected)
    ) {
        if Instant::now() >= deadline {
            return;
        }
    }
}

fn run<W: Watched>(
    terminal: &mut DefaultTerminal,
    mut screen: Screen<W>,
    answers: &Receiver<Result<W, String>>,
    count: Option<NonZeroU64>,
    interrupt: &Interrupt,
) -> Result<()> {
    // The first answer begins the first interval.
    let mut left = count.map(|count| count.get().saturating_add(1));
    while !interrupt.is_set() {
        match answers.try_recv() {
            Ok(answer) => {
                left = left.map(|left| left - u64::from(answer.is_ok()));
                screen.update(answer);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                // The thread reported why before it ended.
                anyhow::bail!("{}", screen.error.unwrap_or_else(|| "the thread that asks the server has ended".into()));
            }
        }
        // Also redraws after a resize.
        terminal.draw(|frame| W::draw(frame, &screen)).context("cannot draw on the terminal")?;
        if left == Some(0) {
            return Ok(());
        }
        if event::poll(TICK).context("cannot listen to keys")?
            && let Event::Key(key) = event::read().context("cannot read a key")?
            && pressed(key, &mut screen) == Wish::Quit
        {
            return Ok(());
        }
    }
    Ok(())
}

fn pressed<W: Watched>(key: KeyEvent, screen: &mut Screen<W>) -> Wish {
    if key.kind == KeyEventKind::Release {
        return Wish::GoOn;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => Wish::Quit,
        // In raw mode the terminal does not turn it into a signal.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Wish::Quit,
        KeyCode::Char('p') => {
            screen.is_paused = !screen.is_paused;
            Wish::GoOn
        }
        _ => Wish::GoOn,
    }
}

#[cfg(test)]
mod tests {
    use dunlin_kv::metrics::ServerStats;

    use super::*;

    #[test]
    fn keys_do_what_the_last_line_says() {
        let mut screen = Screen::<ServerStats>::new("shm:kv".into());
        let mut press = |code, modifiers| (pressed(KeyEvent::new(code, modifiers), &mut screen), screen.is_paused);
        assert_eq!(press(KeyCode::Char('p'), KeyModifiers::NONE), (Wish::GoOn, true));
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::NONE), (Wish::GoOn, true));
        assert_eq!(press(KeyCode::Char('p'), KeyModifiers::NONE), (Wish::GoOn, false));
        assert_eq!(press(KeyCode::Char('q'), KeyModifiers::NONE).0, Wish::Quit);
        assert_eq!(press(KeyCode::Esc, KeyModifiers::NONE).0, Wish::Quit);
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::CONTROL).0, Wish::Quit);
    }
}

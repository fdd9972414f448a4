// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar top` at a terminal: what it shows, and how it leaves the terminal.

use std::os::unix::process::CommandExt;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::hog::Hog;
use crate::runner::{Place, Story};
use crate::signal::send;
use crate::terminal::{Settings, Terminal};
use crate::wait::within;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "top_shows_who_holds_what_and_gives_the_terminal_back",
        place: Place::Host,
        tell: root,
    },
    Story {
        name: "top_shows_a_user_nobody_but_himself",
        place: Place::Host,
        tell: user,
    },
];

const FULL: u32 = 60450;
const EMPTY: u32 = 60451;

/// A look a second; machines of tests are slow.
const SOON: Duration = Duration::from_secs(10);

/// The other screen, and back from it (xterm's control sequences, 1049).
const THERE: &str = "\x1b[?1049h";
const BACK: &str = "\x1b[?1049l";
const CLEAR: &str = "\x1b[2J";
/// Ends each drawing: the cursor is hidden.
const DRAWN: &str = "\x1b[?25l";

/// `bursar top` at a terminal.
struct Sitting {
    terminal: Terminal,
    /// Its settings at first.
    before: Settings,
    top: Child,
    is_wide: bool,
}

impl Sitting {
    fn of(uid: u32, world: &World) -> Result<Self> {
        let terminal = Terminal::of(uid)?;
        terminal.resize(100, 24)?;
        let before = terminal.settings()?;
        let mut command = world.bursar(&["top", "--interval", "0.2"]);
        command
            .env("TERM", "xterm")
            .env("LC_ALL", "C.UTF-8")
            .uid(uid)
            .gid(uid)
            .current_dir("/")
            .stdin(terminal.open()?)
            .stdout(terminal.open()?);
        let top = command.spawn().context("start bursar top")?;
        let mut sitting = Self {
            terminal,
            before,
            top,
            is_wide: false,
        };
        // One that has another size before it is drawn on at all is not cleared.
        within(SOON, "a first screen", || Ok(sitting.drawn_after(0, THERE)))?;
        Ok(sitting)
    }

    /// Has it draw everything anew, and gives the words on the screen then, each with a blank before. It
    /// sees with its next answer that the terminal has another size.
    fn words(&mut self) -> Result<String> {
        self.is_wide = !self.is_wide;
        let before = self.terminal.seen().len();
        self.terminal
            .resize(if self.is_wide { 110 } else { 100 }, 24)?;
        within(SOON, "a whole screen", || {
            Ok(self.drawn_after(before, CLEAR))
        })
    }

    /// The words of the first screen that was drawn whole after these, and after so many bytes.
    fn drawn_after(&mut self, bytes: usize, start: &str) -> Option<String> {
        let drawn = self.terminal.seen().get(bytes..)?;
        let (_, drawn) = drawn.split_once(start)?;
        drawn.split_once(DRAWN).map(|(screen, _)| words(screen))
    }

    fn shows(&mut self, parts: &[&str]) -> Result<()> {
        let mut words = String::new();
        within(SOON, &format!("{parts:?} on a screen"), || {
            words = self.words()?;
            Ok(parts.iter().all(|it| words.contains(it)).then_some(()))
        })
        .with_context(|| format!("the last was:{words}"))
    }

    /// It ends well and leaves the terminal as it was.
    fn leaves(mut self) -> Result<()> {
        let status = within(SOON, "the end of bursar top", || Ok(self.top.try_wait()?))?;
        ensure!(status.success(), "{status}");
        let seen = self.terminal.seen();
        let (Some(there), Some(back)) = (seen.find(THERE), seen.rfind(BACK)) else {
            bail!("no way there and back in {seen:?}");
        };
        ensure!(there < back, "{seen:?}");
        let after = self.terminal.settings()?;
        ensure!(after == self.before, "{:?} became {after:?}", self.before);
        Ok(())
    }
}

impl Drop for Sitting {
    fn drop(&mut self) {
        let _ = self.top.kill();
        let _ = self.top.wait();
    }
}

/// Control sequences are blanks, and so is what they skip.
fn words(drawn: &str) -> String {
    let mut found = String::new();
    let mut pieces = drawn.split("\x1b[");
    let mut texts: Vec<&str> = pieces.next().into_iter().collect();
    texts.extend(pieces.map(|piece| {
        let end = piece.find(|it: char| it.is_ascii_alphabetic());
        end.and_then(|end| piece.get(end + 1..)).unwrap_or_default()
    }));
    for word in texts.iter().flat_map(|it| it.split_whitespace()) {
        found.push(' ');
        found.push_str(word);
    }
    found
}

/// Two users with limits, one of whom holds something.
fn two(world: &World) -> Result<Hog> {
    for uid in [FULL, EMPTY] {
        world.daemon.limit(&uid.to_string(), "100M")?;
    }
    world.there(&format!(
        "uid={FULL} hold=60M say=there wait hold=60M pause"
    ))
}

fn root(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "top", "")?;
    world.daemon.start()?;
    let mut hog = two(&world)?;
    let mut sitting = Sitting::of(0, &world)?;
    // bursard's own word for the state comes with its first answer.
    sitting.shows(&["bursar top", "fullest first", " 60450 6", " 60451 0 "])?;

    sitting.terminal.types("/60451\r")?;
    sitting.shows(&["/60451 (1)", " 60451 0 "])?;
    ensure!(
        !sitting.words()?.contains(" 60450 6"),
        "the filter does nothing"
    );
    sitting.terminal.types("\x1b")?;
    sitting.shows(&[" 60450 6"])?;

    hog.go_on()?;
    hog.expect_killed()?;
    sitting.shows(&[" 60450 0 ", "killed"])?;

    // What happens while nobody answers, and afterwards.
    world.daemon.end(libc::SIGTERM)?;
    sitting.shows(&["NOT UP TO DATE", "trying again", " 60450 "])?;
    world.daemon.start()?;
    within(SOON, "answers again", || {
        Ok((!sitting.words()?.contains("NOT UP TO DATE")).then_some(()))
    })?;

    sitting.terminal.types("q")?;
    sitting.leaves()?;
    // Who is ended gives it back as well.
    let mut sitting = Sitting::of(0, &world)?;
    sitting.shows(&[" 60451 0 "])?;
    send(sitting.top.id(), libc::SIGTERM)?;
    sitting.leaves()
}

fn user(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "top", "")?;
    world.daemon.start()?;
    let _hog = two(&world)?;
    let mut sitting = Sitting::of(EMPTY, &world)?;
    sitting.shows(&[" 1 account,", " MAX 60451 "])?;
    let seen = words(sitting.terminal.seen());
    ensure!(!seen.contains("60450"), "{seen}");
    Ok(())
}

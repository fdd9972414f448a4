// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of a program's start phase: after a while, at a line on its stdout, or at a signal from it.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bursar_faults::{Held, signals};
use bursar_model::Pid;

use crate::caller::Form;
use crate::failure::Failure;

/// How often we look.
pub(super) const PULSE: Duration = Duration::from_millis(10);
/// How long a start phase that ends with a line or a signal may take.
const TIMEOUT: Duration = Duration::from_secs(600);

/// What ends it.
pub(super) enum End {
    After(Duration),
    Line(Receiver<()>),
    Signal,
}

impl End {
    fn has_come(&self, began: Instant) -> bool {
        match self {
            Self::After(span) => began.elapsed() >= *span,
            Self::Line(seen) => seen.try_recv().is_ok(),
            Self::Signal => signals::has_started(),
        }
    }

    /// What did not come, where it takes too long.
    const fn awaited(&self) -> Option<&'static str> {
        match self {
            Self::After(_) => None,
            Self::Line(_) => Some("the line"),
            Self::Signal => Some("SIGUSR1"),
        }
    }

    /// Waits for it.
    ///
    /// # Errors
    /// When the program ends first, we are interrupted, or it does not come in time.
    pub(super) fn wait(&self, held: &mut Option<Held>, pid: Pid) -> Result<(), Failure> {
        let began = Instant::now();
        while !self.has_come(began) {
            let ended = match held {
                Some(held) => held.try_wait()?.map(|(status, _)| status.to_string()),
                None => bursar_faults::is_gone(pid).then(|| "gone".to_owned()),
            };
            if let Some(how) = ended {
                return Err(Failure::failed(format!(
                    "process {pid} ended in its start phase ({how}); nothing was verified"
                )));
            }
            if signals::is_interrupted() {
                return Err(Failure::failed(
                    "interrupted in the start phase; nothing was verified",
                ));
            }
            if let Some(what) = self.awaited().filter(|_| began.elapsed() >= TIMEOUT) {
                return Err(Failure::failed(format!(
                    "the start phase did not end within {} s: {what} did not come",
                    TIMEOUT.as_secs()
                )));
            }
            let left = match self {
                Self::After(span) => span.saturating_sub(began.elapsed()),
                Self::Line(_) | Self::Signal => PULSE,
            };
            std::thread::sleep(PULSE.min(left));
        }
        Ok(())
    }
}

/// Passes the command's stdout on and looks for a line in it.
pub(super) fn listen(held: &mut Held, line: &str, form: Form) -> Option<Receiver<()>> {
    let output = std::fs::File::from(held.take_output()?);
    let (found, seen) = channel();
    let wanted = line.as_bytes().to_vec();
    let listener = move || {
        pass_on(output, form, &wanted, || {
            let _ = found.send(());
        });
    };
    std::thread::Builder::new()
        .name("marker".into())
        .spawn(listener)
        .ok()?;
    Some(seen)
}

fn pass_on(mut output: std::fs::File, form: Form, wanted: &[u8], found: impl Fn()) {
    /// A longer line is not the marker, bytes.
    const LONGEST: usize = 64 << 10;
    let mut buffer = [0; 16 << 10];
    let mut current = Vec::new();
    while let Ok(length) = output.read(&mut buffer) {
        let Some(bytes) = buffer.get(..length).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        // Whoever reads us may have gone; the command goes on.
        let _ = match form {
            Form::People => std::io::stdout()
                .write_all(bytes)
                .and_then(|()| std::io::stdout().flush()),
            Form::Json => std::io::stderr().write_all(bytes),
        };
        for &byte in bytes {
            if byte == b'\n' {
                if current == wanted {
                    found();
                }
                current.clear();
            } else if current.len() < LONGEST {
                current.push(byte);
            }
        }
    }
}

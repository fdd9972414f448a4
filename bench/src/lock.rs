// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lock shared with others who use the machine: held while measuring, let go now and then.

use std::cell::Cell;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::interrupt;

/// Others get a turn after so long; no step of a table takes more than another twenty seconds.
const LONGEST: Duration = Duration::from_secs(100);
/// Who waits must get it before we ask again.
const PAUSE: Duration = Duration::from_millis(200);

/// The lock, if one was named. Released when dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: Option<File>,
    since: Cell<Option<Instant>>,
    waited: Cell<Duration>,
}

impl Lock {
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        let open = |path: &Path| {
            let file = File::options().create(true).append(true).open(path);
            file.with_context(|| format!("open the lock {path:?}"))
        };
        Ok(Self {
            file: path.map(open).transpose()?,
            since: Cell::new(None),
            waited: Cell::new(Duration::ZERO),
        })
    }

    /// Before each step: it is held afterwards. Fails when we were told to end.
    pub(crate) fn keep(&self) -> Result<()> {
        interrupt::check()?;
        let Some(file) = &self.file else {
            return Ok(());
        };
        match self.since.get() {
            Some(since) if since.elapsed() < LONGEST => return Ok(()),
            Some(_) => {
                file.unlock().context("let the lock go")?;
                std::thread::sleep(PAUSE);
            }
            None => {}
        }
        let asked = Instant::now();
        while let Err(error) = file.lock() {
            interrupt::check()?;
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(error).context("take the lock");
            }
        }
        self.since.set(Some(Instant::now()));
        self.waited.set(self.waited.get() + asked.elapsed());
        Ok(())
    }

    /// How long others made us wait.
    pub(crate) fn waited(&self) -> Duration {
        self.waited.get()
    }
}

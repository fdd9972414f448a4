// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's knobs that bursar may turn: a closed list with bounds. A name from a configuration
//! becomes a [`Knob`] or an error, never a path.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bursar_config::Sysctl;

use crate::Paths;

/// A knob, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knob {
    sysctl: Sysctl,
    path: PathBuf,
}

/// A number as text without an allocation.
pub(crate) struct Digits {
    text: [u8; 24],
    length: usize,
}

impl Digits {
    pub(crate) fn of(value: i64) -> Self {
        let mut digits = Self {
            text: [0; 24],
            length: 0,
        };
        let room = digits.text.len();
        let mut rest = &mut digits.text[..];
        // The longest i64 has 20 characters.
        let _ = write!(rest, "{value}");
        digits.length = room - rest.len();
        digits
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.text.get(..self.length).unwrap_or_default()
    }
}

impl Knob {
    /// The knob of a sysctl.
    pub fn of(sysctl: Sysctl, paths: &Paths) -> Self {
        let path = paths.proc.join("sys").join(sysctl.path());
        Self { sysctl, path }
    }

    /// Why it is not to be turned: its counterpart has a value, which the kernel would forget.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn obstacle(&self, paths: &Paths) -> io::Result<Option<String>> {
        let Some(counterpart) = self.sysctl.counterpart() else {
            return Ok(None);
        };
        let value = number_in(
            &paths.proc.join("sys").join(counterpart.path),
            counterpart.name,
        )?;
        Ok(value
            .filter(|it| *it != 0)
            .map(|it| counterpart.obstacle(it)))
    }

    /// `vm.watermark_scale_factor`.
    pub fn scale(paths: &Paths) -> Self {
        Self::of(Sysctl::WatermarkScaleFactor, paths)
    }

    /// Its name, `vm.watermark_scale_factor`.
    pub fn name(&self) -> &'static str {
        self.sysctl.name()
    }

    /// Which one.
    pub const fn sysctl(&self) -> Sysctl {
        self.sysctl
    }

    /// Its value; `None` where this kernel has no such knob.
    ///
    /// # Errors
    /// When it cannot be read, or is no number.
    pub fn read(&self) -> io::Result<Option<i64>> {
        number_in(&self.path, self.name())
    }

    /// Turns it. Opened for this write only: who does not write holds nothing open for writing. One
    /// system call takes it or refuses it; nothing is allocated.
    ///
    /// # Errors
    /// When it is not there, may not be written, or the kernel refuses the value.
    pub fn write(&self, value: i64) -> io::Result<()> {
        let digits = Digits::of(value);
        let mut file = OpenOptions::new()
            .write(true)
            .truncate(true)
            .custom_flags(rustix::fs::OFlags::CLOEXEC.bits().cast_signed())
            .open(&self.path)?;
        let count = file.write(digits.bytes())?;
        if count < digits.bytes().len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }
}

fn number_in(path: &Path, name: &str) -> io::Result<Option<i64>> {
    let mut file = match OpenOptions::new().read(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = [0; 64];
    let count = file.read(&mut text)?;
    let text = str::from_utf8(text.get(..count).unwrap_or_default()).unwrap_or_default();
    let value = text.trim().parse();
    value.map(Some).map_err(|_| {
        let what = format!("{name} holds no number");
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_kernel_reads_them() {
        for value in [0, 7, -1, 3000, i64::MAX, i64::MIN] {
            assert_eq!(Digits::of(value).bytes(), value.to_string().as_bytes());
        }
    }
}

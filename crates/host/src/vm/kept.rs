// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file of /proc that is read again and again through one descriptor into one buffer.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::HostError;

/// A zoneinfo of 8 nodes and 512 CPUs has 400 KiB, one of 32 and 1,792 has 10 MB. Nothing we read is larger,
/// bytes.
const MAX_FILE: usize = 64 << 20;
/// The buffer's first size, bytes: what a machine of two nodes and 16 CPUs needs.
const FIRST_SIZE: usize = 32 << 10;

/// An open file and what it said last.
#[derive(Debug)]
pub struct KeptFile {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

impl KeptFile {
    /// Opens the file for reading.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, HostError> {
        let file = File::open(path).map_err(|error| HostError::from_io("open", path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            buffer: vec![0; FIRST_SIZE],
        })
    }

    /// The file's name, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads its first `length` bytes, or fewer: what comes behind them is not even written by the kernel.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_beginning(&mut self, length: usize) -> Result<&[u8], HostError> {
        let length = length.min(self.buffer.len());
        let room = self.buffer.get_mut(..length).unwrap_or_default();
        match self.file.read_at(room, 0) {
            Ok(count) => Ok(self.buffer.get(..count).unwrap_or_default()),
            Err(error) => Err(HostError::from_io("read", &self.path, &error)),
        }
    }

    /// Reads the whole file from its beginning. Allocates only when it has grown past the buffer.
    ///
    /// # Errors
    /// When it cannot be read, or has more than 64 MiB.
    pub fn read(&mut self) -> Result<&[u8], HostError> {
        let failed = |error: &std::io::Error| HostError::from_io("read", &self.path, error);
        let mut length = 0;
        loop {
            if length == self.buffer.len() {
                if length >= MAX_FILE {
                    let error = std::io::Error::from_raw_os_error(libc::EFBIG);
                    return Err(failed(&error));
                }
                self.buffer.resize(length.saturating_mul(2), 0);
            }
            let room = self.buffer.get_mut(length..).unwrap_or_default();
            match self.file.read_at(room, length as u64) {
                Ok(0) => break,
                Ok(count) => length = length.saturating_add(count),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok(self.buffer.get(..length).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_from_its_beginning_each_time_however_long_it_gets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it");
        std::fs::write(&path, "one").unwrap();
        let mut kept = KeptFile::open(&path).unwrap();
        assert_eq!(kept.read().unwrap(), b"one");
        let long = vec![b'x'; FIRST_SIZE + 7];
        std::fs::write(&path, &long).unwrap();
        assert_eq!(kept.read().unwrap(), long);
        assert_eq!(kept.read_beginning(9).unwrap(), b"xxxxxxxxx");
        std::fs::write(&path, "").unwrap();
        assert_eq!(kept.read().unwrap(), b"");
        assert_eq!(kept.read_beginning(9).unwrap(), b"");
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let mut kept = KeptFile::open(Path::new("/dev/zero")).unwrap();
        assert!(kept.read().is_err());
    }
}

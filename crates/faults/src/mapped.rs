// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One mapping, a line of /proc/PID/maps.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    /// Of its file system, `8:1`, as in mountinfo.
    pub(crate) device: String,
    pub(crate) inode: u64,
    /// As the kernel prints it, which is harmless (`\012` for a newline), or `[heap]` and the like.
    pub(crate) name: String,
}

impl Mapped {
    /// The file's name without its folder.
    pub(crate) fn file(&self) -> &str {
        let name = self.name.strip_suffix(" (deleted)");
        let name = name.unwrap_or(&self.name);
        name.rsplit('/').next().unwrap_or_default()
    }

    /// A line of the file.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let _permissions = words.next()?;
        let offset = words.next()?;
        let (major, minor) = words.next()?.split_once(':')?;
        let inode = words.next()?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        Some(Self {
            start: hex(start)?,
            end: hex(end)?,
            offset: hex(offset)?,
            device: format!("{}:{}", hex(major)?, hex(minor)?),
            inode: inode.parse().ok()?,
            name: words.next().unwrap_or_default().trim_start().to_owned(),
        })
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages a process maps: /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst), and how
//! often a page is mapped at all: /proc/kpagecount. Frame numbers are told to CAP_SYS_ADMIN only; others read
//! 0 where they stand ([`expect_frames`]).
//!
//! An address space may be large and empty: PAGEMAP_SCAN (6.7) finds what is in it without looking at
//! the rest. Before, every mapping is read from end to end, and whoever made that endless is not looked
//! at to the end: the caller says how far.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use bursar_model::Pid;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::bytes::words;
use crate::{HostError, Proc};

/// _IOWR('f', 16, struct pm_scan_arg), include/uapi/linux/fs.h.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const PAGE_IS_PRESENT: u64 = 1 << 3;
/// Regions asked for at once.
const REGIONS: usize = 512;
/// Entries read at once.
const ENTRIES: usize = 8192;
/// An entry's size, bytes.
const ENTRY: u64 = 8;

/// struct pm_scan_arg.
#[derive(Debug, Default)]
#[repr(C)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// struct page_region; addresses.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// What a process has at one page of its address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageEntry(u64);

/// How a walk over an address space ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walked {
    /// At its end.
    Whole,
    /// As many entries were read as the caller allowed; there may be more, from this address on.
    Cut(u64),
    /// The process ended meanwhile, or exec took its address space away.
    Gone,
}

/// The page map of one address space.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    tid: Pid,
    path: PathBuf,
    /// Found at the first walk.
    way: OnceLock<Way>,
}

/// Where pages are to be looked for.
#[derive(Debug)]
enum Way {
    /// By PAGEMAP_SCAN, up to this address.
    Scan(u64),
    /// In these mappings: start and end.
    Mappings(Vec<(u64, u64)>),
}

impl PageEntry {
    /// Whether there is a page in memory.
    pub const fn is_present(self) -> bool {
        self.0 >> 63 == 1
    }

    /// Whether it is mapped here and nowhere else.
    pub const fn is_exclusive(self) -> bool {
        self.0 >> 56 & 1 == 1
    }

    /// Whether it is a file's page, or shared memory's: surely a page of somebody's.
    pub const fn is_file(self) -> bool {
        self.0 >> 61 & 1 == 1
    }

    /// Its frame number; `None` when there is no page, or the kernel does not tell us.
    pub const fn frame(self) -> Option<u64> {
        let frame = self.0 & ((1 << 55) - 1);
        if self.is_present() && frame != 0 {
            Some(frame)
        } else {
            None
        }
    }
}

impl Pagemap {
    /// That of the process which `tid` is a thread of; `None` when there is none. It is that of the
    /// program running now: after an exec it is empty.
    ///
    /// # Errors
    /// [`HostError::Denied`] without ptrace access.
    pub fn open(proc: &Proc, tid: Pid) -> Result<Option<Self>, HostError> {
        let name = format!("{tid}/pagemap");
        let path = proc.path(&name);
        match rustix::fs::openat(
            proc.directory(),
            name,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            Ok(file) => Ok(Some(Self {
                file: file.into(),
                tid,
                path,
                way: OnceLock::new(),
            })),
            Err(Errno::NOENT | Errno::SRCH) => Ok(None),
            Err(errno) => Err(HostError::new("open", &path, errno)),
        }
    }

    /// Shows every page that is present from an address on, in the order of addresses. At most `most` entries are
    /// read: of a kernel without PAGEMAP_SCAN those of empty places, too.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn walk(
        &self,
        proc: &Proc,
        from: u64,
        most: u64,
        mut visit: impl FnMut(PageEntry),
    ) -> Result<Walked, HostError> {
        let page = 1u64 << crate::machine::page_size().shift();
        let mut left = most;
        let mut visit = |_, entry| visit(entry);
        let mut read = |start: u64, end: u64| {
            self.read(start / page, end / page, &mut left, &mut visit)
                .map(|walked| match walked {
                    Walked::Cut(at) => Walked::Cut(at * page),
                    other => other,
                })
        };
        let last = match self.way(proc, page)? {
            None => return Ok(Walked::Gone),
            Some(Way::Scan(last)) => *last,
            Some(Way::Mappings(mappings)) => {
                for &(start, end) in mappings.iter().filter(|(_, end)| *end > from) {
                    match read(start.max(from), end)? {
                        Walked::Whole => {}
                        other => return Ok(other),
                    }
                }
                return Ok(Walked::Whole);
            }
        };
        let mut regions = vec![Region::default(); REGIONS];
        let mut start = from;
        while start < last {
            let Some((count, walked)) = self.scan(start, last, &mut regions)? else {
                return Ok(Walked::Gone);
            };
            for region in regions.iter().take(count) {
                match read(region.start, region.end)? {
                    Walked::Whole => {}
                    other => return Ok(other),
                }
            }
            if walked <= start {
                break;
            }
            start = walked;
        }
        Ok(Walked::Whole)
    }

    /// Visits what is present between two addresses, with the address; as far as `left` entries go.
    pub(crate) fn visit(
        &self,
        start: u64,
        end: u64,
        left: &mut u64,
        mut visit: impl FnMut(u64, PageEntry),
    ) -> Result<Walked, HostError> {
        let page = 1u64 << crate::machine::page_size().shift();
        let mut at = |number: u64, entry| visit(number * page, entry);
        self.read(start / page, end / page, left, &mut at)
    }

    /// `None` when the process is gone.
    fn way(&self, proc: &Proc, page: u64) -> Result<Option<&Way>, HostError> {
        if let Some(known) = self.way.get() {
            return Ok(Some(known));
        }
        let way = match self.last_address(page)? {
            Some(0) => return Ok(None),
            Some(last) => Way::Scan(last),
            None => match proc.mappings(self.tid)? {
                Some(mappings) => Way::Mappings(mappings),
                None => return Ok(None),
            },
        };
        Ok(Some(self.way.get_or_init(|| way)))
    }

    /// Reads entries `first` up to, not including, `end`; where it is cut, an entry's number.
    fn read(
        &self,
        first: u64,
        end: u64,
        left: &mut u64,
        visit: &mut impl FnMut(u64, PageEntry),
    ) -> Result<Walked, HostError> {
        let mut bytes = [0u8; ENTRIES * ENTRY as usize];
        let mut at = first;
        while at < end {
            if *left == 0 {
                return Ok(Walked::Cut(at));
            }
            let wanted = (end - at).min(ENTRIES as u64).min(*left);
            let length = usize::try_from(wanted * ENTRY).unwrap_or(bytes.len());
            let Some(room) = bytes.get_mut(..length) else {
                return Ok(Walked::Cut(at));
            };
            let count = match self.file.read_at(room, at * ENTRY) {
                Ok(0) => return Ok(Walked::Gone),
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::SRCH) => return Ok(Walked::Gone),
                    errno => {
                        let errno = errno.unwrap_or(Errno::IO);
                        return Err(HostError::new("read", &self.path, errno));
                    }
                },
            };
            let entries = bytes.get(..count).unwrap_or_default().chunks_exact(8);
            *left -= entries.len() as u64;
            for entry in entries {
                let entry = PageEntry(entry.try_into().map_or(0, u64::from_ne_bytes));
                if entry.is_present() {
                    visit(at, entry);
                }
                at += 1;
            }
        }
        Ok(Walked::Whole)
    }

    /// The end of what can be scanned; `None` where the kernel has no PAGEMAP_SCAN. Asked of each map:
    /// user space ends elsewhere for other programs.
    fn last_address(&self, page: u64) -> Result<Option<u64>, HostError> {
        for bits in [56u32, 52, 48, 47, 42, 39] {
            let end = (1u64 << bits) - page;
            let mut regions = [Region::default()];
            let mut arguments = arguments(end - page, end, &mut regions);
            match self.call(&mut arguments) {
                Ok(_) => return Ok(Some(end)),
                Err(Errno::FAULT) => {}
                // Its process has ended: there is nothing to be scanned.
                Err(Errno::SRCH) => return Ok(Some(0)),
                Err(Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => return Ok(None),
                Err(errno) => return Err(HostError::new("scan", &self.path, errno)),
            }
        }
        Ok(None)
    }

    /// Fills `regions` with what is present from `start` on: how many, and up to where was looked.
    fn scan(
        &self,
        start: u64,
        end: u64,
        regions: &mut [Region],
    ) -> Result<Option<(usize, u64)>, HostError> {
        let mut arguments = arguments(start, end, regions);
        match self.call(&mut arguments) {
            Ok(count) => Ok(Some((count, arguments.walk_end))),
            Err(Errno::SRCH) => Ok(None),
            Err(errno) => Err(HostError::new("scan", &self.path, errno)),
        }
    }

    fn call(&self, arguments: &mut ScanArguments) -> Result<usize, Errno> {
        let fd = self.file.as_fd().as_raw_fd();
        // SAFETY: `arguments` points to a struct pm_scan_arg whose vec and vec_len are those of a slice
        // that is mutably borrowed as long as it (see `arguments`).
        let count = unsafe { libc::ioctl(fd, PAGEMAP_SCAN, std::ptr::from_mut(arguments)) };
        usize::try_from(count).map_err(|_| {
            let error = std::io::Error::last_os_error();
            Errno::from_io_error(&error).unwrap_or(Errno::IO)
        })
    }
}

/// Asks for a frame number that surely is one: that of a page of our own, which we have just written to.
///
/// # Errors
/// [`HostError::FramesHidden`] without CAP_SYS_ADMIN.
pub fn expect_frames(proc: &Proc) -> Result<(), HostError> {
    let path = proc.path("self/pagemap");
    let failed = |error: std::io::Error| HostError::from_io("read", &path, &error);
    let file = File::open(&path).map_err(failed)?;
    let mut entry = [0; 8];
    let here = std::ptr::from_mut(&mut entry).addr() as u64;
    let page = here >> crate::machine::page_size().shift();
    file.read_exact_at(&mut entry, page * ENTRY)
        .map_err(failed)?;
    let entry = PageEntry(u64::from_ne_bytes(entry));
    match entry.frame() {
        None if entry.is_present() => Err(HostError::FramesHidden { path }),
        _ => Ok(()),
    }
}

fn arguments(start: u64, end: u64, regions: &mut [Region]) -> ScanArguments {
    ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        start,
        end,
        vec: regions.as_mut_ptr() as u64,
        vec_len: regions.len() as u64,
        category_mask: PAGE_IS_PRESENT,
        return_mask: PAGE_IS_PRESENT,
        ..ScanArguments::default()
    }
}

impl Proc {
    /// The mappings of the process that `tid` is a thread of: start and end addresses, in order.
    pub(crate) fn mappings(&self, tid: Pid) -> Result<Option<Vec<(u64, u64)>>, HostError> {
        self.parsed(&format!("{tid}/maps"), |bytes| Ok(user_mappings(bytes)))
    }
}

/// Start and end of each line of /proc/PID/maps that lies in user space. x86-64 lists `[vsyscall]` among them, a page
/// of the kernel's half: pagemap ends before it, as it does where the process has ended.
fn user_mappings(maps: &[u8]) -> Vec<(u64, u64)> {
    const KERNEL_HALF: u64 = 1 << 63;
    let address = |text: &[u8]| {
        let text = str::from_utf8(text).ok()?;
        u64::from_str_radix(text, 16).ok()
    };
    let lines = maps.split(|&byte| byte == b'\n');
    let mappings = lines.filter_map(|line| {
        let mut ends = words(line).next()?.split(|&byte| byte == b'-');
        Some((address(ends.next()?)?, address(ends.next()?)?))
    });
    mappings.filter(|(start, _)| *start < KERNEL_HALF).collect()
}

/// How often each page of the machine is mapped.
#[derive(Debug)]
pub struct MapCounts {
    file: File,
    path: PathBuf,
}

impl MapCounts {
    /// Of this machine.
    ///
    /// # Errors
    /// Where the kernel does not say (CONFIG_PROC_PAGE_MONITOR), or not to us.
    pub fn open(proc: &Proc) -> Result<Self, HostError> {
        let path = proc.path("kpagecount");
        let file = File::open(&path).map_err(|error| HostError::from_io("open", &path, &error))?;
        Ok(Self { file, path })
    }

    /// How often this page is mapped; `None` when the machine has no such page.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of(&self, frame: u64) -> Result<Option<u64>, HostError> {
        let mut count = [0; 8];
        match self.file.read_at(&mut count, frame.saturating_mul(ENTRY)) {
            Ok(8) => Ok(Some(u64::from_ne_bytes(count))),
            Ok(_) => Ok(None),
            Err(error) => Err(HostError::from_io("read", &self.path, &error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_the_kernels_half_are_left_out() {
        let maps = b"55d0c8a00000-55d0c8a02000 r--p 00000000 fd:01 1311 /usr/bin/cat\n\
            7ffd3b5f2000-7ffd3b613000 rw-p 00000000 00:00 0 [stack]\n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";
        assert_eq!(
            user_mappings(maps),
            [
                (0x55d0_c8a0_0000, 0x55d0_c8a0_2000),
                (0x7ffd_3b5f_2000, 0x7ffd_3b61_3000)
            ]
        );
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Control groups, as far as they keep a process from exiting: a CPU quota, the freezer; and the way
//! out of both. Versions 1 and 2, which may be mounted side by side.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bursar_model::Pid;
use rustix::io::Errno;

use crate::bytes::{number, words};
use crate::{Changed, HostError};

/// A cgroup is never deeper than this (kernel/cgroup: cgroup.max.depth is far below in practice).
const MAX_DEPTH: usize = 64;

/// A controller that can hold a process back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// CPU time.
    Cpu,
    /// The freezer.
    Freezer,
}

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    /// Where it is mounted.
    mount: PathBuf,
    /// Which of its directories that is: "/" outside containers.
    root: PathBuf,
    /// Version 1's controllers; empty for version 2.
    controllers: Vec<String>,
    is_v2: bool,
}

/// The hierarchies of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cgroups {
    hierarchies: Vec<Hierarchy>,
}

/// The group of one process under one controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    directory: PathBuf,
    mount: PathBuf,
    is_v2: bool,
}

impl Cgroups {
    /// What is mounted now.
    ///
    /// # Errors
    /// When /proc/self/mountinfo cannot be read.
    pub fn find() -> Result<Self, HostError> {
        let path = Path::new("/proc/self/mountinfo");
        let text = fs::read(path).map_err(|error| HostError::from_io("read", path, &error))?;
        Ok(Self::parse(&text))
    }

    /// From the content of a mountinfo (proc_pid_mountinfo(5)).
    pub fn parse(mountinfo: &[u8]) -> Self {
        let mut hierarchies = Vec::new();
        for line in mountinfo.split(|&byte| byte == b'\n') {
            let fields: Vec<&[u8]> = words(line).collect();
            let Some(dash) = fields.iter().position(|&field| field == b"-") else {
                continue;
            };
            let at = |index: usize| fields.get(index).copied().unwrap_or_default();
            let is_v2 = match at(dash.saturating_add(1)) {
                b"cgroup2" => true,
                b"cgroup" => false,
                _ => continue,
            };
            let options = String::from_utf8_lossy(at(dash.saturating_add(3))).into_owned();
            let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
            hierarchies.push(Hierarchy {
                mount: path(at(4)),
                root: path(at(3)),
                controllers: if is_v2 {
                    Vec::new()
                } else {
                    options.split(',').map(str::to_owned).collect()
                },
                is_v2,
            });
        }
        Self { hierarchies }
    }

    /// The group of a process under a controller; `None` when the process is gone or nothing of the
    /// kind is mounted.
    pub fn of(&self, pid: Pid, controller: Controller) -> Option<Cgroup> {
        let text = fs::read(format!("/proc/{pid}/cgroup")).ok()?;
        self.in_text(&text, controller)
    }

    /// The same for our own process.
    pub fn own(&self, controller: Controller) -> Option<Cgroup> {
        self.of(Pid::new(std::process::id()), controller)
    }

    /// Where version 2 is mounted, and which of its directories that is.
    pub fn unified(&self) -> Option<(PathBuf, PathBuf)> {
        let unified = self.hierarchies.iter().find(|it| it.is_v2)?;
        Some((unified.mount.clone(), unified.root.clone()))
    }

    /// The same of version 1's memory controller.
    pub fn memory_v1(&self) -> Option<(PathBuf, PathBuf)> {
        let mut hierarchies = self.hierarchies.iter();
        let memory = hierarchies.find(|it| it.controllers.iter().any(|it| it == "memory"))?;
        Some((memory.mount.clone(), memory.root.clone()))
    }

    fn in_text(&self, text: &[u8], controller: Controller) -> Option<Cgroup> {
        let name = match controller {
            Controller::Cpu => "cpu",
            Controller::Freezer => "freezer",
        };
        let v1 = self
            .hierarchies
            .iter()
            .find(|it| it.controllers.iter().any(|it| it == name));
        let hierarchy = v1.or_else(|| self.hierarchies.iter().find(|it| it.is_v2))?;
        let path = text.split(|&byte| byte == b'\n').find_map(|line| {
            let mut parts = line.splitn(3, |&byte| byte == b':');
            let (_, controllers) = (parts.next()?, parts.next()?);
            let is_it = if hierarchy.is_v2 {
                controllers.is_empty()
            } else {
                let mut controllers = controllers.split(|&byte| byte == b',');
                controllers.any(|it| it == name.as_bytes())
            };
            is_it.then(|| parts.next()).flatten()
        })?;
        let inside = Path::new(OsStr::from_bytes(path))
            .strip_prefix(&hierarchy.root)
            .ok()?;
        // What lies above our cgroup namespace begins with "/..": not ours to touch.
        if inside.starts_with("..") {
            return None;
        }
        Some(Cgroup {
            directory: hierarchy.mount.join(inside),
            mount: hierarchy.mount.clone(),
            is_v2: hierarchy.is_v2,
        })
    }
}

impl Cgroup {
    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The tightest CPU quota of this group and those above it, in thousandths of one CPU; `None` when
    /// there is none.
    pub fn quota_permille(&self) -> Option<u64> {
        self.upwards().filter_map(|at| self.quota_at(at)).min()
    }

    fn quota_at(&self, directory: &Path) -> Option<u64> {
        let (quota, period) = if self.is_v2 {
            let text = fs::read(directory.join("cpu.max")).ok()?;
            let mut numbers = words(&text).map(number::<u64>);
            (numbers.next()??, numbers.next()??)
        } else {
            let read =
                |name: &str| -> Option<u64> { number(&fs::read(directory.join(name)).ok()?) };
            (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
        };
        quota.saturating_mul(1000).checked_div(period)
    }

    /// Whether its processes stand still.
    pub fn is_frozen(&self) -> bool {
        let read = |name: &str| fs::read(self.directory.join(name)).unwrap_or_default();
        if self.is_v2 {
            let events = read("cgroup.events");
            return events
                .split(|&byte| byte == b'\n')
                .any(|line| line == b"frozen 1");
        }
        matches!(read("freezer.state").trim_ascii(), b"FROZEN" | b"FREEZING")
    }

    /// Whether SIGKILL alone sets a frozen process free: since version 2.
    pub const fn thaws_by_kill(&self) -> bool {
        self.is_v2
    }

    /// Moves a whole process in here.
    pub fn take_in(&self, pid: Pid) -> Changed {
        match fs::write(self.directory.join("cgroup.procs"), pid.to_string()) {
            Ok(()) => Changed::Done,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::SRCH) => Changed::Gone,
                _ => Changed::Denied,
            },
        }
    }

    /// The topmost group that we can see of the same hierarchy.
    #[must_use]
    pub fn top(&self) -> Self {
        Self {
            directory: self.mount.clone(),
            ..self.clone()
        }
    }

    fn upwards(&self) -> impl Iterator<Item = &Path> {
        self.directory
            .ancestors()
            .take_while(|at| at.starts_with(&self.mount))
            .take(MAX_DEPTH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &[u8] = b"25 20 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n\
        31 25 0:27 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
        32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn version_one_wins_where_it_has_the_controller() {
        let cgroups = Cgroups::parse(BOTH);
        let text = b"4:freezer:/cold\n3:cpuset:/\n2:cpu,cpuacct:/slow/er\n0::/user.slice\n";
        let cpu = cgroups.in_text(text, Controller::Cpu).unwrap();
        assert_eq!(cpu.directory(), Path::new("/sys/fs/cgroup/cpu/slow/er"));
        assert!(!cpu.thaws_by_kill());
        let freezer = cgroups.in_text(text, Controller::Freezer).unwrap();
        assert_eq!(
            freezer.top().directory(),
            Path::new("/sys/fs/cgroup/freezer")
        );
    }

    #[test]
    fn version_two_has_all_in_one() {
        let cgroups = Cgroups::parse(b"30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        let cpu = cgroups
            .in_text(b"0::/user.slice/a\n", Controller::Cpu)
            .unwrap();
        assert_eq!(cpu.directory(), Path::new("/sys/fs/cgroup/user.slice/a"));
        assert!(cpu.thaws_by_kill());
        assert_eq!(cgroups.in_text(b"0::/../other\n", Controller::Cpu), None);
        assert_eq!(cgroups.in_text(b"", Controller::Cpu), None);
    }

    #[test]
    fn names_are_any_bytes() {
        let cgroups = Cgroups::parse(b"30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        let group = cgroups.in_text(b"0::/a/\xff\xfe:b\n", Controller::Freezer);
        let directory = OsStr::from_bytes(b"/sys/fs/cgroup/a/\xff\xfe:b");
        assert_eq!(group.unwrap().directory(), Path::new(directory));
    }

    #[test]
    fn the_tightest_quota_on_the_way_up_counts() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        fs::write(folder.path().join("a/cpu.max"), "5000 100000\n").unwrap();
        fs::write(deep.join("cpu.max"), "max 100000\n").unwrap();
        let group = Cgroup {
            directory: deep.clone(),
            mount: folder.path().to_owned(),
            is_v2: true,
        };
        assert_eq!(group.quota_permille(), Some(50));
        assert_eq!(group.top().quota_permille(), None);
        assert!(!group.is_frozen());
        fs::write(deep.join("cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        assert!(group.is_frozen());
        let old = Cgroup {
            is_v2: false,
            ..group
        };
        fs::write(deep.join("cpu.cfs_quota_us"), "-1\n").unwrap();
        fs::write(deep.join("cpu.cfs_period_us"), "100000\n").unwrap();
        assert_eq!(old.quota_permille(), None);
        fs::write(deep.join("cpu.cfs_quota_us"), "10000\n").unwrap();
        assert_eq!(old.quota_permille(), Some(100));
        fs::write(deep.join("freezer.state"), "FROZEN\n").unwrap();
        assert!(old.is_frozen());
    }
}

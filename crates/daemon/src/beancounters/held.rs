// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an account holds as of one scan, row by row.

use std::collections::BTreeMap;

use bursar_kernel::{KernelMemory, SeenFile, SeenKind, SeenTask};
use bursar_model::{Bytes, Resource};
use bursar_policy::{Objects, dcachesize, kmemsize};

/// What an account holds as of a snapshot.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    objects: Objects,
    /// What the memory controller counts in its user's slice, where it has one.
    kernel_figure: Bytes,
    /// Resident pages, each mapping in full, and swapped ones.
    pub(super) resident: u64,
    pub(super) swapped: u64,
    rows: BTreeMap<Resource, u64>,
}

impl Held {
    pub(super) fn add(&mut self, resource: Resource, more: u64) {
        let row = self.rows.entry(resource).or_default();
        *row = row.saturating_add(more);
    }

    /// `is_new`: nobody has told of its address space yet.
    pub(super) fn add_task(&mut self, task: &SeenTask, is_new: bool) {
        self.add(Resource::Numproc, 1);
        self.objects.tasks = self.objects.tasks.saturating_add(1);
        let Some(space) = task.space.filter(|_| is_new) else {
            return;
        };
        self.resident = self.resident.saturating_add(space.resident.get());
        self.swapped = self.swapped.saturating_add(space.swapped.get());
        self.add(Resource::Privvmpages, space.private.get());
        self.add(Resource::Lockedpages, space.locked.get());
        let objects = &mut self.objects;
        objects.spaces = objects.spaces.saturating_add(1);
        objects.areas = objects.areas.saturating_add(space.areas);
        objects.tables = objects.tables.saturating_add(space.tables);
    }

    /// Of one of its users.
    pub(super) fn add_namespaces(&mut self, bytes: Bytes) {
        self.objects.namespaces = self.objects.namespaces.saturating_add(bytes);
    }

    /// What the memory controller counts in its user's slice.
    pub(super) fn set_kernel_figure(&mut self, bytes: Bytes) {
        self.kernel_figure = bytes;
    }

    /// The larger of model and figure: a figure lacks what was made in other groups, the model what is put into
    /// namespaces and what is not listed.
    fn kmemsize(&self) -> Bytes {
        kmemsize(&self.objects).max(self.kernel_figure)
    }

    /// `is_new`: it is the first file of its inode.
    pub(super) fn add_file(&mut self, file: &SeenFile, is_new: bool) {
        self.add(Resource::Numfile, 1);
        self.add(Resource::Numflock, file.locks);
        let (sending, received) = (file.sending.get(), file.received.get());
        match file.kind {
            SeenKind::Tcp => {
                self.add(Resource::Numtcpsock, 1);
                self.add(Resource::Tcpsndbuf, sending);
                self.add(Resource::Tcprcvbuf, received);
            }
            SeenKind::Datagram | SeenKind::Socket => {
                self.add(Resource::Numothersock, 1);
                self.add(Resource::Othersockbuf, sending);
                self.add(Resource::Dgramrcvbuf, received);
            }
            SeenKind::Terminal => self.add(Resource::Numpty, 1),
            SeenKind::Pipe | SeenKind::Other => {}
        }
        let objects = &mut self.objects;
        let count = match file.kind {
            SeenKind::Tcp => &mut objects.tcp,
            SeenKind::Datagram => &mut objects.datagram,
            SeenKind::Socket => &mut objects.other_sockets,
            SeenKind::Pipe => &mut objects.pipe_ends,
            SeenKind::Terminal | SeenKind::Other => &mut objects.files,
        };
        *count = count.saturating_add(1);
        if is_new {
            objects.inodes = objects.inodes.saturating_add(1);
        }
    }

    /// What it has of the kernel's own memory.
    pub(super) fn kernel_memory(&self) -> KernelMemory {
        let all = self.kmemsize();
        KernelMemory {
            all,
            scanned: all.saturating_sub(self.objects.namespaces),
        }
    }

    /// In the row's unit.
    pub(super) fn of(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Kmemsize => self.kmemsize().get(),
            Resource::Dcachesize => dcachesize(&self.objects).get(),
            _ => self.rows.get(&resource).copied().unwrap_or(0),
        }
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ways to hold more than the limit that are tried.

use super::{Answer, Way, tell};
use crate::runner::{Place, Story};

/// Ways as stories: a story's function has no argument to tell it which way.
macro_rules! ways {
    ($($name:literal, $place:ident, $answer:ident, $title:literal, [$($script:literal),+] $(, $config:literal)?;)*) => {
        pub(super) const STORIES: &[Story] = &[$(Story {
            name: concat!("evasion_", $name),
            place: Place::$place,
            tell: |binaries| tell(binaries, $name, &Way {
                title: $title,
                scripts: &[$($script),+],
                answer: Answer::$answer,
                config: concat!($($config)?),
            }),
        }),*];
    };
}

// Those whose outcome hangs on the kernel's version are told in guests, too; the others there when named.
ways! {
    "plainly", Anywhere, KillAtOnce, "private memory, a page at a time", ["uid=60001 hold={2048} say=full pause"];
    "by_a_file_in_tmpfs", Anywhere, Told, "a file in /dev/shm", ["uid=60001 file={shm}:{1280} say=full pause"];
    "by_many_small_files", Host, Told, "1,280 files in /dev/shm", ["uid=60001 files={shm-dir}:1280:{1} say=full pause"];
    "by_a_system_v_segment", Anywhere, Told, "a System V segment, filled and detached", ["uid=60001 sysv={1056} say=full pause"];
    "by_a_system_v_segment_part_by_part", Anywhere, KillThoughItStays, "the same, a thirty-second of the limit each half second", ["uid=60001 sysv={960} sysv-in-parts={32}:40 say=full pause"];
    "by_a_removed_file", Host, KillWithinASecond, "a tmpfs file without a name", ["uid=60001 unlinked={2048} say=full pause"];
    "by_a_memfd", Anywhere, KillWithinASecond, "a memfd, written", ["uid=60001 memfd={2048} say=full pause"];
    "by_many_memfds", Host, KillWithinASecond, "650 memfds", ["uid=60001 memfds=650:{2} say=full pause"];
    "by_a_memfd_in_a_socket", Host, KillWithinASecond, "a memfd whose only descriptor lies in a socket", ["uid=60001 parked={2048} say=full pause"];
    "by_hidden_shared_memory", Host, KillWithinASecond, "shared anonymous memory, its pages unmapped", ["uid=60001 hidden={2048} say=full pause"];
    "by_a_tmpfs_of_ones_own", Host, KillWithinASecond, "a tmpfs in a user and mount namespace", ["uid=60001 userns-root tmpfs={2048} say=full pause"];
    "by_a_ramfs_of_ones_own", Anywhere, KillWithinASecond, "a ramfs in a user and mount namespace", ["uid=60001 userns-root ramfs={2048} say=full pause"];
    "by_a_mapped_file", Host, KillAtOnce, "a tmpfs file, mapped and touched", ["uid=60001 mapped-file={shm}:{2048} say=full pause"];
    "by_shared_memory", Anywhere, KillAtOnce, "MAP_SHARED|MAP_ANONYMOUS", ["uid=60001 shm={2048} say=full pause"];
    "by_a_fork_tree", Host, KillAmongSeveral, "3 × 3 processes", ["uid=60001 fork=3 fork=3 hold={150} say=full pause"];
    "by_hundreds_of_small_processes", Host, KillAmongSeveral, "400 processes of a hundredth each", ["uid=60001 fork=400 hold={3} pause"];
    "by_threads", Host, KillAtOnce, "8 threads", ["uid=60001 threads=8:{160} say=full pause"];
    "by_vfork", Anywhere, KillAtOnce, "a child of vfork in its parent's memory", ["uid=60001 vfork-hold={2048} say=full pause"];
    "by_shared_address_space", Host, KillAtOnce, "two processes of one memory (CLONE_VM)", ["uid=60001 twin hold={2048} say=full pause"];
    "by_hundreds_that_share_an_address_space", Anywhere, KillAtOnce, "300 processes of one memory (CLONE_VM), a page each when the first is killed", ["uid=60001 hold={896} sharers=300:{2} release hold={2048} say=full pause"];
    "by_many_pages_in_a_shared_address_space", Anywhere, KillAtOnce, "the same, as many pages as they get", ["uid=60001 hold={896} sharers=300:{16} release hold={2048} say=full pause"];
    "by_an_address_space_shared_by_many_user_namespaces", Anywhere, KillAtOnce, "the same, each in a user namespace of its own", ["uid=60001 hold={896} sharers-apart=300:{16} release hold={2048} say=full pause"];
    "by_populate", Host, KillAtOnce, "one mmap(MAP_POPULATE)", ["uid=60001 populate={2048} say=full pause"];
    "by_huge_pages", Host, KillAtOnce, "transparent huge pages", ["uid=60001 huge={2048} say=full pause"];
    "by_locked_memory", Guest, KillAtOnce, "mmap(MAP_LOCKED)", ["lockable uid=60001 lock={1280} say=full pause"];
    "by_mremap", Host, KillAtOnce, "mremap by mremap, moving", ["uid=60001 grow={2048} say=full pause"];
    "by_lazy_freeing", Host, KillUnlessGivenBack, "MADV_FREE on everything", ["uid=60001 lazy={2048} say=full pause"];
    "by_userfaultfd", Host, KillAtOnce, "userfaultfd, UFFDIO_COPY", ["uid=60001 by-copy={2048} say=full pause"];
    "by_writing_into_a_child", Host, KillAmongSeveral, "process_vm_writev into a child that waits", ["uid=60001 write-child={2048} say=full pause"];
    "by_one_write_into_a_child", Anywhere, KillAmongSeveral, "the same in one call, which the child's death does not end", ["uid=60001 write-child-at-once={2560} say=full pause"];
    "by_poking_a_child", Host, KillAmongSeveral, "/proc/PID/mem of a child", ["uid=60001 poke-child={2048} say=full pause"];
    "by_a_traced_child", Anywhere, KillAmongSeveral, "a child stopped under ptrace holds most", ["uid=60001 traced={768} hold={600} say=full pause"];
    "by_a_child_held_at_its_exit", Anywhere, KillAmongSeveral, "a child whose tracer holds it at its exit holds most", ["uid=60001 leaving={768} hold={600} say=full pause"];
    "by_a_stopped_process", Host, KillAmongSeveral, "a stopped process holds most", ["uid=60001 hold={768} say=there stop pause", "uid=60001 hold={600} say=full pause"];
    "by_a_dead_first_thread", Anywhere, KillAtOnce, "a zombie leader, live threads", ["uid=60001 leader-exits hold={2048} say=full pause"];
    "by_detaching", Host, KillAmongSeveral, "double fork and setsid", ["uid=60001 detach hold={2048} say=full pause"];
    "by_a_user_namespace", Anywhere, KillAtOnce, "in a user namespace, as its root", ["uid=60001 userns-root hold={2048} say=full pause"];
    "by_a_pid_namespace", Host, KillAmongSeveral, "as pid 1 of a pid namespace", ["uid=60001 userns-root pidns hold={2048} say=full pause"];
    "by_exec", Host, KillAtOnce, "fresh images, one after the other", ["uid=60001 hold={600} exec hold={600} exec hold={2048} say=full pause"];
    "by_a_set_uid_program", Host, KillAtOnce, "a set-uid program: the real uid pays", ["uid=60001 run={helper} hold={2048} say=full pause"];
    "by_changing_ones_uid", Anywhere, KillAtOnce, "a set-uid program that becomes its owner: the charge moves", ["uid=60001 run={helper} hold={600} effective hold={2048} say=full pause"];
    "by_racing", Anywhere, KillAmongSeveral, "4 processes at once", ["uid=60001 fork=4 hold={400} pause"];
    "by_filling_the_ledger", Host, KillWithinASecond, "more processes than the ledger has records", ["uid=60001 fork=90 hold={14} pause"], "[ledger]\nmax_processes = 64\n";
    "by_page_tables", Anywhere, KillWithinASecond, "page tables of a sparse mapping", ["uid=60001 sparse={tables} say=full pause"];
    "by_hugetlb", Guest, KillWithinASecond, "the pool of huge pages (hugetlb)", ["uid=60001 hold=1M hugetlb={1280} say=full pause"];
    "by_the_heap", Host, KillAtOnce, "the heap, by brk", ["uid=60001 heap={2048} say=full pause"];
    "by_a_private_mapping_of_a_file", Host, KillWithinASecond, "a file in /dev/shm, its pages copied by a private mapping", ["uid=60001 private-file={shm}:{2048} say=full pause"];
    "by_an_allocated_memfd", Host, KillWithinASecond, "a memfd by fallocate, never written", ["uid=60001 allocated={2048} say=full pause"];
    "by_a_memfd_that_many_keep", Host, KillWithinASecond, "a memfd that eleven processes keep", ["uid=60001 memfd={1900} fork=10 say=full pause"];
    "by_memory_that_nobody_owns", Host, KillAmongSeveral, "a child that has ended, its memory kept by a slow reader, filled by another", ["uid=60001 orphan={2048} say=full pause"];
    "by_children_that_end", Host, KillAmongSeveral, "5 processes that hold a quarter, end, and begin again", ["uid=60001 fork=5 repeat=10 hold={256} sleep=20"];
    "by_copies", Host, KillAmongSeveral, "5 processes copy what they share", ["uid=60001 hold={400} fork=4 spoil pause"];
    "by_copies_in_system_calls", Host, KillAmongSeveral, "the same by MADV_POPULATE_WRITE", ["uid=60001 hold={400} fork=4 spoil-unseen pause"];
    "by_huge_copies", Host, KillAmongSeveral, "the same by MADV_COLLAPSE", ["uid=60001 hold={400} fork=4 spoil-huge pause"];
    "by_writing_to_children", Host, KillAmongSeveral, "one writes what four children share with it", ["uid=60001 attachable hold={400} leave=4 overwrite say=full pause"];
    "by_writing_to_children_page_by_page", Host, KillAmongSeveral, "the same page by page, with a fault of its own before each", ["uid=60001 attachable hold={400} leave=4 overwrite-by-pages say=full pause"];
    "by_moving_shared_memory", Named, KillAmongSeveral, "shared pages moved all the time, for PSS scans to meet them twice", ["uid=60001 hold={480} leave=3 say=full move"];
    "by_lazy_freeing_in_many", Host, KillUnlessGivenBack, "4 processes, MADV_FREE on everything", ["uid=60001 fork=4 lazy={500} say=full pause"];
    "by_sessions", Host, KillAmongSeveral, "a process in each of 4 sessions", ["uid=60001 fork=4 session hold={500} pause"];
    "by_spared_programs", Anywhere, KillAmongSeveral, "8 processes of a spared program, each below a quarter", ["uid=60001 run={spared} fork=8 hold={240} say=full pause"];
    "by_a_spared_program", Host, KillAtOnce, "one process of a spared program, with code of its user's", ["uid=60001 run={spared} hold={2048} say=full pause"];
    "by_writing_into_a_spared_program", Host, KillAmongSeveral, "process_vm_writev between spared programs", ["uid=60001 run={spared} write-child={2048} say=full pause"];
    "by_poking_a_spared_program", Host, KillAmongSeveral, "/proc/PID/mem of a spared program", ["uid=60001 run={spared} poke-child={2048} say=full pause"];
    "by_tracing_a_spared_program", Host, KillAmongSeveral, "a spared program stopped under ptrace by another one", ["uid=60001 run={spared} traced={240} traced={240} traced={240} traced={240} hold={240} say=full pause"];
    "by_copies_in_spared_programs", Host, KillAmongSeveral, "6 processes of a spared program copy what they share", ["uid=60001 run={spared} hold={240} fork=6 spoil pause"];
    "by_swap", Named, KillAtOnce, "given to swap as soon as it is touched", ["uid=60001 swapped={2048} say=full pause"];
    "by_secret_memory", Host, NotCounted, "memfd_secret", ["uid=60001 secret=4M say=full pause"];
    "by_pipes", Host, NotCounted, "pipe buffers", ["uid=60001 pipes=24M say=full pause"];
    "by_socket_buffers", Host, NotCounted, "socket buffers", ["uid=60001 sockets=24M say=full pause"];
    "by_packet_rings", Host, NotCounted, "a packet socket's ring in a user and network namespace", ["uid=60001 userns-root packet-ring=24M say=full pause"];
    "by_messages", Host, NotCounted, "System V messages in an IPC namespace", ["uid=60001 userns-root messages=24M say=full pause"];
    "by_mappings", Host, NotCounted, "mappings that nobody touches", ["uid=60001 mappings=60000 say=full pause"];
    "by_pinned_pages", Anywhere, NotCounted, "a page of each huge page given to a pipe, the rest unmapped", ["uid=60001 gift=24M say=full pause"];
}

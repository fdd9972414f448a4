// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Beancounters that do not go together: what vzcfgvalidate asked of one account, and what vzcalc and
//! vzmemcheck summed up over all. All of them are remarks: the limits are
//! enforced as they are.

use bursar_model::{Bytes, Resource, RowBounds, Unit, Who};

use crate::finding::{Finding, Wrong};
use crate::{Limit, Limits};

/// What the machine has for all accounts together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its memory.
    pub ram: Bytes,
    /// Its swap.
    pub swap: Bytes,
    /// kernel.threads-max; `None` where it is not known.
    pub threads: Option<u64>,
    /// fs.file-max; `None` where it is not known.
    pub files: Option<u64>,
}

/// What OpenVZ's tools ask for each process, file and socket.
const PROCESS_BYTES: u64 = 40 << 10;
const FILE_BYTES: u64 = 384;
const FILES_OF_PROCESS: u64 = 32;
/// (limit − barrier) of a buffer row for each socket.
const SOCKET_BYTES: u64 = 2560;
const TCP_BUFFER: u64 = 64 << 10;
const OTHER_BUFFER: u64 = 32 << 10;

/// What is worth knowing about the beancounters in `limits` on this machine, in the order of their lines;
/// sums over all come last. Limits for a group or for everybody are in the sums once: how many users
/// they are for is not known here, and the remark says so.
pub fn consistency(limits: &Limits, machine: &Machine) -> Vec<Finding> {
    let mut findings: Vec<Finding> = limits
        .iter()
        .flat_map(|limit| {
            let key = format!("limits.{}", limit.who);
            let remark = move |wrong: Wrong| wrong.remark_at(&limit.path, Some(limit.line), &key);
            wrongs_of(limit).into_iter().map(remark)
        })
        .collect();
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    let sums = wrongs_of_all(limits, machine);
    findings.extend(
        sums.into_iter()
            .map(|wrong| wrong.remark_at(limits.path(), None, "limits")),
    );
    findings
}

fn barrier(limit: &Limit, resource: Resource) -> Option<u64> {
    limit.rows.get(&resource)?.barrier()
}

fn limit_of(limit: &Limit, resource: Resource) -> Option<u64> {
    limit.rows.get(&resource)?.limit()
}

/// vzcfgvalidate's rules, as far as what they compare is written.
fn wrongs_of(limit: &Limit) -> Vec<Wrong> {
    let mut wrongs: Vec<Wrong> = limit
        .rows
        .iter()
        .filter_map(|(resource, bounds)| wrong_shape(*resource, *bounds))
        .collect();
    let processes = barrier(limit, Resource::Numproc).map(|all| all / 2);
    let at_least = |what: &str, has: Option<u64>, needs: Option<u64>, because: &str| {
        let (has, needs) = (has?, needs?);
        (has < needs).then(|| {
            Wrong::new(
                format!("{what} ({has}) is less than {needs}, {because}"),
                format!("raise {what}, or lower what needs it"),
            )
        })
    };
    let times = |count: Option<u64>, each: u64| count.map(|it| it.saturating_mul(each));
    let barrier_of = |resource: Resource, needs: Option<u64>, because: &str| {
        let what = format!("the barrier of {}", resource.name());
        at_least(&what, barrier(limit, resource), needs, because)
    };
    let room_for_each = |buffer: Resource, sockets: Resource| {
        at_least(
            &format!("the limit less the barrier of {}", buffer.name()),
            limit_of(limit, buffer)
                .zip(barrier(limit, buffer))
                .map(|(limit, barrier)| limit - barrier),
            times(barrier(limit, sockets), SOCKET_BYTES),
            &format!("2.5 KiB for each of {}", sockets.name()),
        )
    };
    let plus = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
    let sockets = plus(
        barrier(limit, Resource::Numtcpsock),
        barrier(limit, Resource::Numothersock),
    );
    let sockets_and_terminals = plus(sockets, barrier(limit, Resource::Numpty).or(Some(0)));
    let rules = [
        at_least(
            "the limit of dcachesize",
            limit_of(limit, Resource::Dcachesize),
            times(barrier(limit, Resource::Numfile), FILE_BYTES),
            "384 bytes for each of numfile",
        ),
        barrier_of(
            Resource::Kmemsize,
            plus(
                times(processes, PROCESS_BYTES),
                limit_of(limit, Resource::Dcachesize).or(Some(0)),
            ),
            "40 KiB for each of half of numproc and the limit of dcachesize",
        ),
        barrier_of(
            Resource::Privvmpages,
            barrier(limit, Resource::Vmguarpages),
            "which vmguarpages guarantees",
        ),
        room_for_each(Resource::Tcpsndbuf, Resource::Numtcpsock),
        room_for_each(Resource::Tcprcvbuf, Resource::Numtcpsock),
        room_for_each(Resource::Othersockbuf, Resource::Numothersock),
        barrier_of(
            Resource::Tcpsndbuf,
            Some(TCP_BUFFER),
            "what one fast connection needs",
        ),
        barrier_of(
            Resource::Tcprcvbuf,
            Some(TCP_BUFFER),
            "what one fast connection needs",
        ),
        barrier_of(
            Resource::Othersockbuf,
            Some(OTHER_BUFFER),
            "what one local connection needs",
        ),
        barrier_of(
            Resource::Dgramrcvbuf,
            Some(OTHER_BUFFER),
            "what one large datagram needs",
        ),
        barrier_of(
            Resource::Numfile,
            times(processes, FILES_OF_PROCESS),
            "32 for each of half of numproc",
        ),
        barrier_of(
            Resource::Numfile,
            sockets_and_terminals,
            "one for each socket and terminal",
        ),
    ];
    wrongs.extend(rules.into_iter().flatten());
    wrongs
}

/// Rows of which the limit means nothing, and guarantees.
fn wrong_shape(resource: Resource, bounds: RowBounds) -> Option<Wrong> {
    let name = resource.name();
    match resource {
        Resource::Numproc
        | Resource::Numtcpsock
        | Resource::Numothersock
        | Resource::Shmpages
        | Resource::Lockedpages
        | Resource::Numfile
        | Resource::Numpty
        | Resource::Numsiginfo
        | Resource::Numiptent => (bounds.barrier() != bounds.limit() && bounds.limit().is_some())
            .then(|| {
                Wrong::new(
                    format!("{name} is refused at its barrier: its limit means nothing"),
                    format!("write {name} with one number"),
                )
            }),
        Resource::Vmguarpages | Resource::Oomguarpages | Resource::Physpages => {
            bounds.limit().map(|_| {
                Wrong::new(
                    format!("the limit of {name} means nothing"),
                    format!("write {name} = \"BARRIER:unlimited\""),
                )
            })
        }
        _ => None,
    }
}

/// vzcalc's sums, over the limits as written.
fn wrongs_of_all(limits: &Limits, machine: &Machine) -> Vec<Wrong> {
    let sum = |pick: fn(&RowBounds) -> Option<u64>, resource: Resource| {
        limits.iter().fold(0_u64, |sum, limit| {
            let bound = limit.rows.get(&resource).and_then(pick);
            sum.saturating_add(bound.unwrap_or(0))
        })
    };
    let pages = |count: u64| Bytes::new(count.saturating_mul(Unit::PAGE_BYTES));
    let kernel = Resource::KERNEL_MEMORY
        .iter()
        .fold(Bytes::ZERO, |all, &resource| {
            all.saturating_add(Bytes::new(sum(RowBounds::limit, resource)))
        });
    // What nobody has a bound on promises nothing, however much the kernel may hold.
    let with_kernel =
        |bound: fn(&RowBounds) -> Option<u64>, resource: Resource| match sum(bound, resource) {
            0 => Bytes::ZERO,
            count => pages(count).saturating_add(kernel),
        };
    let all = machine.ram.saturating_add(machine.swap);
    let several = limits
        .iter()
        .any(|it| matches!(it.who, Who::Group(_) | Who::Default));
    let least = if several {
        ", groups and default counted once"
    } else {
        ""
    };
    let beyond = |what: &str, promised: Bytes, has: Bytes, of: &str, remedy: &str| {
        (promised > has).then(|| {
            Wrong::new(
                format!("{what}: {promised} together{least}, more than {of} ({has})"),
                remedy,
            )
        })
    };
    let mut wrongs: Vec<Wrong> = [
        beyond(
            "what kmemsize and the buffers may come to",
            kernel,
            machine.ram,
            "the machine's memory",
            "lower their limits: kernel memory cannot be swapped",
        ),
        beyond(
            "what vmguarpages guarantees, with kmemsize and buffers",
            with_kernel(RowBounds::barrier, Resource::Vmguarpages),
            all,
            "memory and swap",
            "lower the guarantees: they cannot all be kept",
        ),
        beyond(
            "what oomguarpages guarantees, with kmemsize and buffers",
            with_kernel(RowBounds::barrier, Resource::Oomguarpages),
            all,
            "memory and swap",
            "lower the guarantees: they cannot all be kept",
        ),
        beyond(
            "what privvmpages allows, with kmemsize and buffers",
            with_kernel(RowBounds::limit, Resource::Privvmpages),
            all,
            "memory and swap",
            "programs seldom touch all they ask for; lower it where they do",
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    for limit in limits.iter() {
        let most = limit_of(limit, Resource::Privvmpages).map(pages);
        if let Some(most) = most.filter(|most| *most > machine.ram) {
            wrongs.push(Wrong::new(
                format!(
                    "privvmpages of {} allows {most}, more than the machine's memory ({})",
                    limit.who, machine.ram
                ),
                "lower it",
            ));
        }
    }
    let pieces = [
        (Resource::Numproc, machine.threads, "kernel.threads-max"),
        (Resource::Numfile, machine.files, "fs.file-max"),
    ];
    for (resource, has, of) in pieces {
        let promised = sum(RowBounds::barrier, resource);
        if let Some(has) = has.filter(|has| promised > *has) {
            wrongs.push(Wrong::new(
                format!(
                    "{} comes to {promised} together{least}, more than {of} ({has})",
                    resource.name()
                ),
                format!("lower it or raise {of}"),
            ));
        }
    }
    wrongs
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn said(text: &str) -> Vec<String> {
        let limits = Limits::parse(text, Path::new("/l")).unwrap();
        let machine = Machine {
            ram: Bytes::from_mib(1024),
            swap: Bytes::from_mib(1024),
            threads: Some(1000),
            files: Some(100_000),
        };
        consistency(&limits, &machine)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn what_goes_together_is_left_alone() {
        let openvz = "[limits]\na = { numproc = 240, numtcpsock = 360, numothersock = 360, \
            numfile = 9312, numpty = 16, numsiginfo = 256, lockedpages = 256, shmpages = 21504, \
            kmemsize = \"14372700:14790164\", dcachesize = \"3409920:3624960\", \
            tcpsndbuf = \"1720320:2703360\", tcprcvbuf = \"1720320:2703360\", \
            othersockbuf = \"1126080:2097152\", dgramrcvbuf = \"262144:262144\", \
            privvmpages = \"65536:69632\", vmguarpages = \"33792:unlimited\", \
            oomguarpages = \"26112:unlimited\", physpages = \"0:unlimited\" }\n";
        assert_eq!(said(openvz), Vec::<String>::new());
    }

    #[test]
    fn what_vzcfgvalidate_found_is_found() {
        let table = [
            ("numproc = \"200:220\"", "numproc is refused at its barrier"),
            (
                "vmguarpages = \"10:20\"",
                "the limit of vmguarpages means nothing",
            ),
            (
                "numfile = 1000, dcachesize = 1000",
                "384 bytes for each of numfile",
            ),
            (
                "numproc = 100, kmemsize = 1000",
                "40 KiB for each of half of numproc",
            ),
            (
                "privvmpages = 10, vmguarpages = \"20:unlimited\"",
                "which vmguarpages guarantees",
            ),
            (
                "numtcpsock = 100, tcpsndbuf = \"100000:100001\"",
                "2.5 KiB for each of numtcpsock",
            ),
            ("othersockbuf = 1000", "what one local connection needs"),
            (
                "numproc = 100, numfile = 100",
                "32 for each of half of numproc",
            ),
            (
                "numtcpsock = 10, numothersock = 10, numfile = 19",
                "one for each socket and terminal",
            ),
        ];
        for (rows, message) in table {
            let said = said(&format!("[limits]\na = {{ {rows} }}\n"));
            assert!(
                said.iter()
                    .any(|line| line.contains(message) && line.starts_with("/l:2: ")),
                "{rows}: {said:?}"
            );
        }
    }

    #[test]
    fn guarantees_that_cannot_all_be_kept_are_told() {
        let limits = "[limits]\na = { vmguarpages = \"1.5G:unlimited\" }\n\
            b = { vmguarpages = \"1G:unlimited\", numproc = 600 }\ndefault = { numproc = 600 }\n";
        let said = said(limits);
        let has = |part: &str| said.iter().any(|line| line.contains(part));
        assert!(has("they cannot all be kept"), "{said:?}");
        assert!(
            has(
                "numproc comes to 1200 together, groups and default counted once, more than \
                 kernel.threads-max (1000)"
            ),
            "{said:?}"
        );
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which part of the mapped pages each account has (S5 section 3.2), compared with a count of our own:
//! every entry of every page map of the machine, and /proc/kpagecount.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use bursar_model::{How, Resource};
use bursar_protocol::{Operation, PARTS_OF_A_PAGE, Physpages, PhyspagesReply, Reply};

use super::beancounters::bill_of;
use crate::hog::Hog;
use crate::runner::{Place, Story};
use crate::signal::send_to_group;
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "physpages_of_four_accounts_that_share_are_what_page_maps_say",
        place: Place::Anywhere,
        tell: four_accounts,
    },
    Story {
        // Nothing else may run meanwhile.
        name: "physpages_of_everybody_are_the_pages_mapped_on_the_machine",
        place: Place::Guest,
        tell: whole_machine,
    },
    Story {
        name: "physpages_say_so_where_frame_numbers_are_hidden_and_bills_are_modelled",
        place: Place::Anywhere,
        tell: hidden,
    },
    Story {
        name: "an_ordinary_user_sees_his_own_physpages_only",
        place: Place::Anywhere,
        tell: own_only,
    },
];

const UIDS: [u32; 4] = [60401, 60402, 60403, 60404];

/// Four accounts that share libraries, a file, a file in memory, and inside each what a fork shares.
struct ManyProcesses {
    hogs: Vec<Hog>,
    _files: Vec<Scrap>,
}

/// A file that goes with the story.
struct Scrap(String);

impl Drop for Scrap {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn scrap(path: String, size: usize) -> Result<Scrap> {
    let scrap = Scrap(path);
    fs::write(&scrap.0, vec![7; size]).with_context(|| format!("write {}", scrap.0))?;
    fs::set_permissions(&scrap.0, fs::Permissions::from_mode(0o666))?;
    Ok(scrap)
}

impl ManyProcesses {
    fn gather(world: &World) -> Result<Self> {
        // The directory is the story's own: other users need not be able to look into it.
        let directory = world.directory();
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        let file = scrap(format!("{}/shared", directory.display()), 3 << 20)?;
        let shm = match fs::metadata("/dev/shm").is_ok_and(|it| it.is_dir()) {
            true => format!("/dev/shm/bursar-physpages-{}", std::process::id()),
            false => format!("{}/shm", directory.display()),
        };
        let shm = scrap(shm, 2 << 20)?;
        let (file_path, shm_path) = (&file.0, &shm.0);
        let scripts = [
            format!("uid=60401 hold=5M map={file_path} map={shm_path} fork=3 say=there pause"),
            format!("uid=60402 map={file_path} hold=2M say=there pause"),
            format!("uid=60402 map={shm_path} huge=4M say=there pause"),
            format!("uid=60403 shm=3M map={file_path} map={shm_path} say=there pause"),
            format!("uid=60404 hold=1M leave=2 hold=1M map={shm_path} say=there pause"),
        ];
        let mut hogs = Vec::new();
        for script in &scripts {
            let mut hog = world.hog(script)?;
            let speakers = if script.contains("fork=3") { 3 } else { 1 };
            for _ in 0..speakers {
                hog.hear("there")?;
            }
            hogs.push(hog);
        }
        let processes = Self {
            hogs,
            _files: vec![file, shm],
        };
        processes.stop()?;
        Ok(processes)
    }

    /// Holds them still: what is counted twice must be the same twice.
    fn stop(&self) -> Result<()> {
        for hog in &self.hogs {
            send_to_group(hog.pid(), libc::SIGSTOP)?;
        }
        until("everybody having stopped", || {
            let all = processes()?.into_iter();
            let ours = all.filter(|(_, uid)| UIDS.contains(uid));
            let states = ours.map(|(pid, _)| fs::read_to_string(format!("/proc/{pid}/stat")));
            let running = states.filter_map(Result::ok).filter(|stat| {
                !stat
                    .rsplit(") ")
                    .next()
                    .is_some_and(|it| it.starts_with('T'))
            });
            Ok((running.count() == 0).then_some(()))
        })
    }
}

/// Processes and their real users.
fn processes() -> Result<Vec<(u32, u32)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
            continue;
        };
        let uid = status.lines().find_map(|line| {
            line.strip_prefix("Uid:")?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        });
        if let Some(uid) = uid {
            found.push((pid, uid));
        }
    }
    Ok(found)
}

/// The frames of everything a process maps, each entry of each mapping looked at; none when it has gone.
fn frames(pid: u32) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let (Ok(maps), Ok(pagemap)) = (
        fs::read_to_string(format!("/proc/{pid}/maps")),
        File::open(format!("/proc/{pid}/pagemap")),
    ) else {
        return found;
    };
    for line in maps.lines() {
        let range = line.split_whitespace().next().unwrap_or_default();
        let ends = range.split_once('-').and_then(|(start, end)| {
            let address = |text| u64::from_str_radix(text, 16).ok();
            Some((address(start)? / 4096, address(end)? / 4096))
        });
        let Some((start, end)) = ends else { continue };
        let mut at = start;
        let mut bytes = vec![0; 8 * 4096];
        while at < end {
            let wanted = usize::try_from((end - at).min(4096)).unwrap_or(4096) * 8;
            let Ok(count @ 1..) = pagemap.read_at(&mut bytes[..wanted], at * 8) else {
                break;
            };
            for entry in bytes[..count].chunks_exact(8) {
                let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
                if entry >> 63 == 1 {
                    found.insert(entry & ((1 << 55) - 1));
                }
            }
            at += (count / 8) as u64;
        }
    }
    found
}

/// Processes with memory of which even root may not see which.
fn unreadable() -> Result<u64> {
    let mut count = 0;
    for (pid, _) in processes()? {
        let denied = File::open(format!("/proc/{pid}/pagemap"))
            .is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
        count += u64::from(denied);
    }
    Ok(count)
}

/// How often every page of the machine is mapped.
fn map_counts() -> Result<Vec<u64>> {
    let file = File::open("/proc/kpagecount").context("open /proc/kpagecount")?;
    let mut counts = Vec::new();
    let mut bytes = vec![0; 1 << 16];
    loop {
        let read = file.read_at(&mut bytes, counts.len() as u64 * 8)?;
        if read == 0 {
            return Ok(counts);
        }
        let entries = bytes[..read].chunks_exact(8);
        counts.extend(entries.map(|it| u64::from_ne_bytes(it.try_into().unwrap_or_default())));
    }
}

/// Ordinary users have an account each; all others have none (login.defs, accounts.exempt).
fn has_account(uid: u32) -> bool {
    uid >= 1000 && !(61_184..=65_535).contains(&uid)
}

/// The parts of each of our accounts if a page counts 1/n in each of n, all without account being one; by a count of
/// our own. Pages of others are not kept: a machine has gigabytes of them.
fn naive() -> Result<BTreeMap<Option<u32>, u64>> {
    let counts = map_counts()?;
    let is_mapped = |frame: u64| {
        let index = usize::try_from(frame).unwrap_or(usize::MAX);
        counts.get(index).is_some_and(|&count| count > 0)
    };
    let mut users: BTreeMap<u64, BTreeSet<Option<u32>>> = BTreeMap::new();
    let (ours, others): (Vec<_>, Vec<_>) = processes()?
        .into_iter()
        .partition(|(_, uid)| UIDS.contains(uid));
    for (pid, uid) in ours {
        for frame in frames(pid).into_iter().filter(|&frame| is_mapped(frame)) {
            users.entry(frame).or_default().insert(Some(uid));
        }
    }
    for (pid, uid) in others {
        let account = has_account(uid).then_some(uid);
        for frame in frames(pid) {
            if let Some(accounts) = users.get_mut(&frame) {
                accounts.insert(account);
            }
        }
    }
    let mut parts = BTreeMap::new();
    for accounts in users.into_values() {
        let each = PARTS_OF_A_PAGE / accounts.len() as u64;
        for account in accounts {
            *parts.entry(account).or_default() += each;
        }
    }
    Ok(parts)
}

pub(super) fn counted(world: &World) -> Result<Physpages> {
    let mut ticket = None;
    until("a count of mapped pages", || {
        let reply = world
            .daemon
            .ask(Operation::Physpages { who: None, ticket })?;
        match reply {
            Reply::Physpages(reply) => match *reply {
                PhyspagesReply::Counted(found) => Ok(Some(found)),
                PhyspagesReply::Counting { ticket: promised } => {
                    ticket = Some(promised);
                    Ok(None)
                }
            },
            other => bail!("{other:?}"),
        }
    })
}

fn start(world: &mut World) -> Result<()> {
    world.daemon.start()?;
    for uid in UIDS {
        world.daemon.limit(&uid.to_string(), "200M")?;
    }
    Ok(())
}

fn four_accounts(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "physpages", "")?;
    start(&mut world)?;
    let _processes = ManyProcesses::gather(&world)?;
    // What others do to pages that these share with them may change between two looks: again then.
    for _ in 0..20 {
        let before = naive()?;
        let found = counted(&world)?;
        let bills = UIDS.map(|uid| bill_of(&world, &uid.to_string()));
        let after = naive()?;
        let ours = |parts: &BTreeMap<Option<u32>, u64>| -> Vec<u64> {
            UIDS.iter()
                .map(|uid| parts.get(&Some(*uid)).copied().unwrap_or(0))
                .collect()
        };
        if ours(&before) != ours(&after) {
            continue;
        }
        let machine = found.machine.as_ref().context("nothing of the machine")?;
        ensure!(machine.is_whole, "the parts are not the pages: {found:?}");
        ensure!(machine.crowded_pages == 0, "{machine:?}");
        // Some roots may not look at pid 1.
        ensure!(u64::from(machine.refused) == unreadable()?, "{machine:?}");
        for ((uid, bill), expected) in UIDS.iter().zip(bills).zip(ours(&before)) {
            let row = found
                .accounts
                .iter()
                .find(|it| it.uid.is_some_and(|it| it.get() == *uid));
            let row = row.with_context(|| format!("no row of {uid}"))?;
            // What does not divide by three goes to somebody: one part of each shared page at most.
            let slack = machine.shared_pages;
            ensure!(
                row.exact_parts.abs_diff(expected) <= slack,
                "{uid}: {} parts, by page maps {expected}",
                row.exact_parts
            );
            let bean = bill?.remove(&Resource::Physpages).context("no such row")?;
            ensure!(
                bean.held == Some(row.exact_parts.div_ceil(PARTS_OF_A_PAGE))
                    && bean.how == How::Sampled { every: None },
                "the bill of {uid} has {bean:?}, the count {row:?}"
            );
            // A share by halves is never more than twice, nor less than half, of one by n.
            let shared = |parts: u64| parts.saturating_sub(row.own_pages * PARTS_OF_A_PAGE);
            let (exact, shift) = (shared(row.exact_parts), shared(row.shift_parts));
            ensure!(shift <= 2 * exact && exact <= 2 * shift, "{row:?}");
        }
        println!(
            "        {} pages, {} shared, {} processes: {} ms of work in {} ms",
            machine.mapped_pages,
            machine.shared_pages,
            machine.processes,
            found.work_ns / 1_000_000,
            found.took_ns / 1_000_000,
        );
        return Ok(());
    }
    bail!("what others map changed all the time")
}

fn whole_machine(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "allpages", "")?;
    start(&mut world)?;
    let _processes = ManyProcesses::gather(&world)?;
    let mapped = || anyhow::Ok(map_counts()?.iter().filter(|&&count| count > 0).count() as u64);
    let mut seen = Vec::new();
    for _ in 0..40 {
        let before = mapped()?;
        let found = counted(&world)?;
        let after = mapped()?;
        let machine = found.machine.clone().context("nothing of the machine")?;
        ensure!(machine.is_whole, "the parts are not the pages: {found:?}");
        if before == after && machine.mapped_pages == before {
            let rows = found.accounts.iter().chain(&found.unaccounted);
            let (exact, shift) = rows.fold((0, 0), |(exact, shift), row| {
                (exact + row.exact_parts, shift + row.shift_parts)
            });
            ensure!(
                exact == before * PARTS_OF_A_PAGE && shift == exact,
                "{found:?}"
            );
            println!("        {before} pages are mapped, and as many are everybody's together");
            return Ok(());
        }
        seen.push((before, machine.mapped_pages, after, machine.moved_pages));
    }
    bail!("pages mapped by kpagecount, as counted, by kpagecount, moved: {seen:?}")
}

/// The unit that is shipped gives no CAP_SYS_ADMIN.
fn hidden(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(&binaries.under_unit(), "hidden", "")?;
    world.daemon.start()?;
    let _hog = world.there("uid=60401 hold=4M say=there pause")?;
    let output = world.bursar(&["physpages"]).output()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    ensure!(
        output.status.code() == Some(1) && text.contains("CapabilityBoundingSet=CAP_SYS_ADMIN"),
        "{}: {text}",
        output.status
    );
    // It asks for a count first, too.
    let output = world.bursar(&["beancounters", "60401"]).output()?;
    ensure!(output.status.success(), "{output:?}");
    let bill = bill_of(&world, "60401")?;
    for resource in [Resource::Physpages, Resource::Oomguarpages] {
        let bean = bill.get(&resource).context("a row")?;
        ensure!(
            bean.how == How::Modelled && bean.held >= Some(1024),
            "{bean:?}"
        );
    }
    Ok(())
}

fn own_only(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "ownpages", "")?;
    start(&mut world)?;
    fs::set_permissions(world.directory(), fs::Permissions::from_mode(0o755))?;
    let _hog = world.there("uid=60401 hold=4M say=there pause")?;
    let as_user = |arguments: &[&str]| -> Result<(i32, String)> {
        let output = world
            .bursar(arguments)
            .uid(60401)
            .gid(60401)
            .stdin(Stdio::null())
            .output()?;
        let text = [output.stdout, output.stderr].concat();
        let code = output.status.code().unwrap_or(-1);
        Ok((code, String::from_utf8_lossy(&text).into_owned()))
    };
    let (code, text) = as_user(&["physpages", "--json"])?;
    ensure!(code == 0, "{text}");
    let found: Physpages = serde_json::from_str(&text)?;
    ensure!(
        found.machine.is_none() && found.unaccounted.is_none(),
        "{text}"
    );
    ensure!(found.accounts.len() == 1, "{text}");
    let row = found.accounts.first().context("no row")?;
    ensure!(
        row.own_pages >= 1024 && row.exact_parts >= 1024 * PARTS_OF_A_PAGE,
        "{text}"
    );
    let (code, text) = as_user(&["physpages", "60402"])?;
    ensure!(code == 3 && text.contains("only root"), "{code}: {text}");
    let (code, text) = as_user(&["physpages", "--rule", "shift"])?;
    ensure!(code == 0 && text.contains("PHYSPAGES"), "{code}: {text}");
    Ok(())
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files, by tier and the moment that they begin at: `quarters-1795219200.usage`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::tier::Tier;

const SUFFIX: &str = ".usage";
/// Of a file that does not begin as ours do.
const ASIDE: &str = ".damaged";
/// Such files are kept, so that somebody can look at them.
const MOST_ASIDE: usize = 4;

/// Which file.
pub(crate) type Key = (Tier, u64);

/// What there is, and how large it is.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    sizes: BTreeMap<Key, u64>,
}

fn key_of(name: &str) -> Option<Key> {
    let (tier, start) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    let tier = Tier::ALL.into_iter().find(|it| it.name() == tier)?;
    let start = start.parse().ok().filter(|it| tier.file_of(*it) == *it)?;
    Some((tier, start))
}

impl Directory {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut sizes = BTreeMap::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let key = entry.file_name().to_str().and_then(key_of);
            if let Some(key) = key {
                sizes.insert(key, entry.metadata()?.len());
            }
        }
        Ok(Self {
            path: path.to_owned(),
            sizes,
        })
    }

    pub(crate) fn path_of(&self, (tier, start): Key) -> PathBuf {
        self.path.join(format!("{}-{start}{SUFFIX}", tier.name()))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.sizes
            .values()
            .fold(0, |sum, it| sum.saturating_add(*it))
    }

    pub(crate) fn note_size(&mut self, key: Key, bytes: u64) {
        self.sizes.insert(key, bytes);
    }

    /// Beginnings of a tier's files, oldest first.
    pub(crate) fn starts(&self, tier: Tier) -> Vec<u64> {
        let of_tier = self.sizes.keys().filter(|(it, _)| *it == tier);
        of_tier.map(|(_, start)| *start).collect()
    }

    /// Makes room: of each tier no more files than are kept, and all together no more than `most` bytes. What is
    /// farthest from now goes first, also where the clock was wrong once and files are of the future; not `open`.
    pub(crate) fn prune(&mut self, now: u64, most: u64, open: &[Key]) -> io::Result<()> {
        for tier in Tier::ALL {
            while self.starts(tier).len() > tier.files() {
                if !self.remove_farthest(tier, now, open)? {
                    break;
                }
            }
        }
        while self.bytes() > most {
            let mut tiers = Tier::ALL;
            tiers.sort_by_key(|tier| std::cmp::Reverse(self.bytes_of(*tier)));
            let mut has_removed = false;
            for tier in tiers {
                has_removed = has_removed || self.remove_farthest(tier, now, open)?;
            }
            if !has_removed {
                break;
            }
        }
        Ok(())
    }

    fn bytes_of(&self, tier: Tier) -> u64 {
        let of_tier = self.sizes.iter().filter(|((it, _), _)| *it == tier);
        of_tier.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    fn remove_farthest(&mut self, tier: Tier, now: u64, open: &[Key]) -> io::Result<bool> {
        let starts = self.starts(tier).into_iter();
        let farthest = starts
            .filter(|start| !open.contains(&(tier, *start)))
            .max_by_key(|start| start.abs_diff(now));
        let Some(start) = farthest else {
            return Ok(false);
        };
        match fs::remove_file(self.path_of((tier, start))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => self.sizes.remove(&(tier, start)),
        };
        Ok(true)
    }

    /// Takes a file out of the way. Returns where it is now; `None`: there are enough such already, and it was removed.
    pub(crate) fn set_aside(&mut self, key: Key) -> io::Result<Option<PathBuf>> {
        let path = self.path_of(key);
        self.sizes.remove(&key);
        let mut aside = path.clone().into_os_string();
        aside.push(ASIDE);
        let entries = fs::read_dir(&self.path)?.filter_map(Result::ok);
        let names = entries.filter_map(|it| it.file_name().into_string().ok());
        if names.filter(|it| it.ends_with(ASIDE)).count() >= MOST_ASIDE {
            fs::remove_file(path)?;
            return Ok(None);
        }
        fs::rename(path, &aside)?;
        Ok(Some(aside.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_names_and_what_has_another_name_is_not_ours() {
        assert_eq!(key_of("minutes-3600.usage"), Some((Tier::Minute, 3600)));
        for name in [
            "minutes-3601.usage",
            "hours-0.usage",
            "minutes-.usage",
            "days-0",
            "minutes-3600.usage.damaged",
        ] {
            assert_eq!(key_of(name), None, "{name}");
        }
    }

    fn with(files: &[(Key, u64)]) -> (tempfile::TempDir, Directory) {
        let folder = tempfile::tempdir().unwrap();
        let mut directory = Directory::open(folder.path()).unwrap();
        for (key, bytes) in files {
            fs::write(
                directory.path_of(*key),
                vec![0; usize::try_from(*bytes).unwrap()],
            )
            .unwrap();
            directory.note_size(*key, *bytes);
        }
        (folder, directory)
    }

    #[test]
    fn what_is_farthest_from_now_goes_first_also_of_the_future() {
        let hours = |count: u64| (Tier::Minute, count * 3600);
        let mut files: Vec<(Key, u64)> = (100..125).map(|it| (hours(it), 1)).collect();
        files.push((hours(1_000_000), 1));
        let (folder, mut directory) = with(&files);
        directory.prune(124 * 3600, u64::MAX, &[]).unwrap();
        assert_eq!(directory.starts(Tier::Minute).len(), 25);
        assert_eq!(directory.starts(Tier::Minute).last(), Some(&hours(124).1));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 25);
    }

    #[test]
    fn of_too_many_bytes_the_largest_tier_gives_its_oldest_and_not_what_is_being_written() {
        let files = [
            ((Tier::Minute, 0), 100),
            ((Tier::Minute, 3600), 100),
            ((Tier::Day, 0), 50),
        ];
        let (_folder, mut directory) = with(&files);
        let now = 3600;
        directory.prune(now, 160, &[(Tier::Minute, 3600)]).unwrap();
        assert_eq!(directory.bytes(), 150);
        assert_eq!(directory.starts(Tier::Minute), [3600]);
        directory.prune(now, 10, &[(Tier::Minute, 3600)]).unwrap();
        assert_eq!(
            (directory.bytes(), directory.starts(Tier::Day)),
            (100, vec![])
        );
    }

    #[test]
    fn damaged_files_are_kept_up_to_a_few() {
        let keys: Vec<(Key, u64)> = (0..6).map(|it| ((Tier::Minute, it * 3600), 5)).collect();
        let (folder, mut directory) = with(&keys);
        let kept = keys
            .iter()
            .filter(|(key, _)| directory.set_aside(*key).unwrap().is_some());
        assert_eq!(kept.count(), MOST_ASIDE);
        assert_eq!(directory.bytes(), 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), MOST_ASIDE);
    }
}

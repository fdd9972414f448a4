// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Getting a suite's kernel into the cache: sources → apt → packages → files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use super::ability::missing;
use super::apt::{PrivateApt, UpdateError, compare_versions, debian_sources};
use super::cache::{Cache, Kernel, Manifest};
use super::package::{Package, kernel_release};
use super::program;
use super::sources::Source;
use super::suite::Suite;

/// How to fetch.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// Look for a newer kernel even if one is cached.
    pub refresh: bool,
    /// Where apt's sources are: `/etc/apt`, or a directory like it.
    pub apt_dir: PathBuf,
    /// Go on without checking signatures where no trusted key can be had.
    pub allow_unverified: bool,
}

impl Default for Fetch {
    fn default() -> Fetch {
        Fetch {
            refresh: false,
            apt_dir: PathBuf::from("/etc/apt"),
            allow_unverified: false,
        }
    }
}

/// The small flavour first: it boots with fewer drivers and is a quarter of the download.
const METAPACKAGES: [&str; 2] = ["linux-image-cloud-amd64", "linux-image-amd64"];

/// Suites whose keyring package is signed by keys that older suites already have, in that order.
const KEYRING_CHAIN: [&str; 3] = ["bookworm", "trixie", "forky"];

/// A place where a metapackage was found.
struct Found {
    apt: PrivateApt,
    archive_suite: String,
    verified: bool,
}

/// The suite's kernel, downloaded if it is not there or not whole.
pub fn fetch(cache: &Cache, suite: Suite, how: &Fetch) -> Result<Kernel> {
    // Nothing to do and nothing to wait for: the usual case.
    if let Ok(Some(kernel)) = cached(cache, suite, how) {
        return Ok(kernel);
    }
    let _lock = cache.lock()?;
    match cached(cache, suite, how) {
        Ok(Some(kernel)) => return Ok(kernel),
        Ok(None) => {}
        Err(error) => {
            eprintln!("vm: the cached kernel of {suite} is damaged, fetching it again: {error:#}");
        }
    }
    program::ensure(program::FOR_FETCHING)?;
    let kernels = cache.root().join("kernels");
    fs::create_dir_all(&kernels).with_context(|| format!("create {kernels:?}"))?;
    remove_half_downloads(&kernels)?;
    let work = tempfile::Builder::new()
        .prefix(HALF)
        .tempdir_in(&kernels)
        .with_context(|| format!("create a directory in {kernels:?}"))?;
    let sources = debian_sources(&how.apt_dir)?;
    let found = find(suite, &sources, how, work.path())?;
    let mut lacking = Vec::new();
    for meta in METAPACKAGES {
        let Some(meta) = found.apt.newest(meta)? else {
            continue;
        };
        if let Some(kernel) = same_version(cache, suite, &meta) {
            eprintln!("vm: {suite}: {} is the newest", kernel.release());
            return Ok(kernel);
        }
        let dir = work.path().join(&meta.name);
        let kernel = unpack(&found, &meta, suite, &dir)?;
        let abilities = kernel.abilities()?;
        let missing = missing(&abilities, true);
        if missing.is_empty() {
            return keep(cache, suite, &dir);
        }
        eprintln!(
            "vm: {} {} lacks {}",
            meta.name,
            meta.version,
            missing.join(", ")
        );
        lacking.push(meta.name);
    }
    match lacking.as_slice() {
        [] => bail!("{} has no kernel package for amd64", found.archive_suite),
        _ => bail!(
            "no kernel of {} has all that guests need",
            found.archive_suite
        ),
    }
}

/// A whole kernel from the cache, unless a newer one is wanted.
fn cached(cache: &Cache, suite: Suite, how: &Fetch) -> Result<Option<Kernel>> {
    let Some(kernel) = cache.kernel(suite)?.filter(|_| !how.refresh) else {
        return Ok(None);
    };
    kernel.check_contents()?;
    Ok(Some(kernel))
}

/// What a refresh need not download again.
fn same_version(cache: &Cache, suite: Suite, meta: &Package) -> Option<Kernel> {
    let kernel = cache.kernel(suite).ok()??;
    let same = meta.image().and_then(|image| kernel_release(&image.name)) == Some(kernel.release())
        && kernel.manifest().version == meta.version;
    (same && kernel.check_contents().is_ok()).then_some(kernel)
}

/// The archive suite with the newest kernel, among those this suite means.
fn find(suite: Suite, sources: &[Source], how: &Fetch, work: &Path) -> Result<Found> {
    let mut best: Option<(Package, Found)> = None;
    let mut failures = Vec::new();
    for archive_suite in suite.archive_suites() {
        eprintln!("vm: asking apt for the kernels of {archive_suite}");
        let found = match lists(archive_suite, sources, how, &work.join(archive_suite)) {
            Ok(found) => found,
            Err(error) => {
                failures.push(format!("{archive_suite}: {error:#}"));
                continue;
            }
        };
        let Some(meta) = found.apt.newest(METAPACKAGES[1])? else {
            failures.push(format!("{archive_suite}: no package {}", METAPACKAGES[1]));
            continue;
        };
        let newer = best
            .as_ref()
            .is_none_or(|(best, _)| compare_versions(&meta.version, &best.version).is_gt());
        if newer {
            best = Some((meta, found));
        }
    }
    if let (Some(_), [failure, ..]) = (&best, failures.as_slice()) {
        eprintln!("vm: going on without {failure}");
    }
    best.map(|(_, found)| found)
        .ok_or_else(|| anyhow!("no kernel found for {suite}: {}", failures.join("; ")))
}

/// Package lists of one archive suite, their signatures checked as far as that can be had.
fn lists(archive_suite: &str, sources: &[Source], how: &Fetch, dir: &Path) -> Result<Found> {
    let swapped: Vec<Source> = sources
        .iter()
        .filter_map(|source| source.for_suite(archive_suite))
        .collect();
    let found = |apt, verified| Found {
        apt,
        archive_suite: archive_suite.to_owned(),
        verified,
    };
    let unknown_key = match update(&dir.join("machine-keys"), &swapped) {
        Ok(apt) => return Ok(found(apt, true)),
        Err(error) => match error.downcast_ref() {
            Some(unknown @ UpdateError::UnknownKey(_)) => unknown.to_string(),
            _ => return Err(error),
        },
    };
    eprintln!("vm: this machine does not have the keys of {archive_suite}; looking for newer ones");
    match chained_keyring(sources, dir) {
        Ok(keyring) => {
            let signed: Vec<Source> = swapped
                .iter()
                .map(|source| source.signed_by(&keyring))
                .collect();
            return Ok(found(update(&dir.join("chained-keys"), &signed)?, true));
        }
        Err(error) if !how.allow_unverified => bail!(
            "{unknown_key}; and no newer keyring: {error:#}; install a newer debian-archive-keyring, \
             or accept unchecked packages with --allow-unverified"
        ),
        Err(_) => {}
    }
    eprintln!("vm: WARNING: packages of {archive_suite} are NOT verified (--allow-unverified)");
    let unverified: Vec<Source> = swapped.iter().map(Source::unverified).collect();
    Ok(found(update(&dir.join("unverified"), &unverified)?, false))
}

/// Updates; a mirror may lack the updates or security pocket, the release it must have.
fn update(dir: &Path, sources: &[Source]) -> Result<PrivateApt> {
    let apt = PrivateApt::new(dir, sources)?;
    match apt.update() {
        Ok(()) => Ok(apt),
        Err(error @ UpdateError::UnknownKey(_)) => Err(error.into()),
        Err(error) => {
            let release: Vec<Source> = sources.iter().filter_map(Source::release_only).collect();
            if release.is_empty() || release == sources {
                return Err(error.into());
            }
            eprintln!("vm: {error}");
            eprintln!("vm: going on with the release alone, without updates and security");
            let apt = PrivateApt::new(&dir.join("release"), &release)?;
            apt.update()?;
            Ok(apt)
        }
    }
}

/// A keyring that knows the suite's keys and is itself trusted: each release's keyring package is
/// signed by a key the release before it has. The machine's keys check the first link, the
/// unpacked keyring the next; nothing is taken on faith.
fn chained_keyring(sources: &[Source], dir: &Path) -> Result<String> {
    let mut keyring: Option<String> = None;
    let mut reached = Vec::new();
    for link in KEYRING_CHAIN {
        let at = dir.join("keyring").join(link);
        let swapped: Vec<Source> = sources
            .iter()
            .filter_map(|source| source.for_suite(link)?.release_only())
            .map(|source| {
                keyring
                    .as_deref()
                    .map_or(source.clone(), |keyring| source.signed_by(keyring))
            })
            .collect();
        let newer = update(&at, &swapped).and_then(|apt| unpack_keyring(&apt, &at));
        match newer {
            Ok(newer) => {
                keyring = Some(newer);
                reached.push(link);
            }
            Err(error) => eprintln!("vm: no keyring from {link}: {error:#}"),
        }
    }
    let keyring = keyring.ok_or_else(|| anyhow!("no link of the chain could be verified"))?;
    eprintln!(
        "vm: using the keyring package of {}, verified",
        reached.join(", then ")
    );
    Ok(keyring)
}

fn unpack_keyring(apt: &PrivateApt, dir: &Path) -> Result<String> {
    let package = apt
        .newest("debian-archive-keyring")?
        .ok_or_else(|| anyhow!("no debian-archive-keyring"))?;
    let root = dir.join("keyring");
    for deb in apt.download(&[package.spec()], &dir.join("debs"))? {
        program::run(Command::new("dpkg").arg("-x").arg(deb).arg(&root))?;
    }
    // .pgp is the newer name; where both are there one links to the other.
    ["pgp", "gpg"]
        .map(|extension| {
            root.join(format!(
                "usr/share/keyrings/debian-archive-keyring.{extension}"
            ))
        })
        .into_iter()
        .find(|file| file.is_file())
        .map(|file| file.display().to_string())
        .ok_or_else(|| anyhow!("{} has no keyring file", package.spec()))
}

/// Downloads a kernel's packages and lays its files out in `dir` as the cache has them.
fn unpack(found: &Found, meta: &Package, suite: Suite, dir: &Path) -> Result<Kernel> {
    let image = meta
        .image()
        .ok_or_else(|| anyhow!("{} names no image", meta.spec()))?;
    let exact = |name: &str, accepts: &dyn Fn(&str) -> bool| -> Result<Package> {
        found
            .apt
            .show(name)?
            .into_iter()
            .find(|package| accepts(&package.version))
            .ok_or_else(|| anyhow!("{} has no fitting {name}", found.archive_suite))
    };
    let package = exact(&image.name, &|version| image.accepts(version))?;
    let mut specs = vec![package.spec()];
    for part in package.parts() {
        specs.push(exact(&part.name, &|version| part.accepts(version))?.spec());
    }
    eprintln!("vm: downloading {}", specs.join(" "));
    let root = dir.join("root");
    for deb in found.apt.download(&specs, &dir.join("debs"))? {
        program::run(Command::new("dpkg").arg("-x").arg(deb).arg(&root))?;
    }
    let release = kernel_release(&package.name)
        .ok_or_else(|| anyhow!("{} names no release", package.name))?;
    lay_out(&root, release, dir)?;
    fs::remove_dir_all(&root).with_context(|| format!("remove {root:?}"))?;
    fs::remove_dir_all(dir.join("debs")).with_context(|| format!("remove {dir:?}/debs"))?;
    let depmod = program::find("depmod").ok_or_else(|| anyhow!("depmod is not installed"))?;
    program::run(Command::new(depmod).arg("-b").arg(dir).arg(release))?;
    Kernel::describe(
        dir,
        |vmlinuz_bytes, vmlinuz_sha256, module_files, module_bytes| Manifest {
            suite,
            archive_suite: found.archive_suite.clone(),
            release: release.to_owned(),
            version: package.version.clone(),
            verified: found.verified,
            vmlinuz_bytes,
            vmlinuz_sha256,
            module_files,
            module_bytes,
        },
    )
}

/// Suites put the same files in different places.
fn lay_out(root: &Path, release: &str, dir: &Path) -> Result<()> {
    let modules_dirs =
        [root.join("usr/lib/modules"), root.join("lib/modules")].map(|dir| dir.join(release));
    let modules = first(&modules_dirs, "modules")?;
    for name in ["vmlinuz", "config"] {
        let places = [
            root.join("boot").join(format!("{name}-{release}")),
            modules.join(name),
        ];
        let file = first(&places, name)?;
        fs::rename(file, dir.join(name)).with_context(|| format!("move {file:?}"))?;
    }
    fs::create_dir_all(dir.join("lib/modules")).with_context(|| format!("create {dir:?}/lib"))?;
    let to = dir.join("lib/modules").join(release);
    fs::rename(modules, &to).with_context(|| format!("move {modules:?}"))
}

fn first<'a>(places: &'a [PathBuf], what: &str) -> Result<&'a PathBuf> {
    places
        .iter()
        .find(|place| place.exists())
        .ok_or_else(|| anyhow!("the packages hold no {what}; looked for {places:?}"))
}

/// Puts a finished directory in its place, at once.
fn keep(cache: &Cache, suite: Suite, dir: &Path) -> Result<Kernel> {
    let place = cache.kernel_dir(suite);
    if place.exists() {
        // Beside dir, so that it goes when the half download's directory goes.
        let old = dir.with_extension("replaced");
        fs::rename(&place, &old).with_context(|| format!("move {place:?}"))?;
    }
    fs::rename(dir, &place).with_context(|| format!("move {dir:?}"))?;
    cache
        .kernel(suite)?
        .ok_or_else(|| anyhow!("{place:?} vanished"))
}

const HALF: &str = ".half-";

fn remove_half_downloads(kernels: &Path) -> Result<()> {
    for entry in fs::read_dir(kernels).with_context(|| format!("read {kernels:?}"))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(HALF) {
            eprintln!("vm: removing a half download, {:?}", entry.path());
            fs::remove_dir_all(entry.path())
                .with_context(|| format!("remove {:?}", entry.path()))?;
        }
    }
    Ok(())
}

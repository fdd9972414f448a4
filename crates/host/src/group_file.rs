// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A group of this machine's own, by group(5). Nobody else is asked: that may take long, and groups of programs
//! stand in the file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bursar_model::Gid;

/// A larger file is no group file, bytes.
const MAX_FILE: u64 = 16 << 20;

/// The number of the group `name` in the file at `path`, usually `/etc/group`.
///
/// # Errors
/// When the file cannot be read.
pub fn gid_in_file(path: &Path, name: &str) -> io::Result<Option<Gid>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut bytes)?;
    let mut lines = bytes.split(|&byte| byte == b'\n');
    Ok(lines.find_map(|line| gid_of(line, name)))
}

/// `name:password:gid:members`.
fn gid_of(line: &[u8], name: &str) -> Option<Gid> {
    let mut fields = line.split(|&byte| byte == b':');
    if fields.next()? != name.as_bytes() {
        return None;
    }
    let gid = std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok()?;
    (gid != u32::MAX).then_some(Gid::new(gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_its_whole_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "root:x:0:\nbursar:x:7:a,b\n# bursar-events:x:1:\nbursar-events:x:991:\nodd:x\n";
        std::fs::write(file.path(), text).unwrap();
        let gid = |name| gid_in_file(file.path(), name).unwrap();
        assert_eq!(gid("bursar-events"), Some(Gid::new(991)));
        assert_eq!(gid("bursar"), Some(Gid::new(7)));
        for name in ["bursar-event", "odd", "nobody", ""] {
            assert_eq!(gid(name), None, "{name}");
        }
        assert!(gid_in_file(Path::new("/nowhere"), "root").is_err());
    }
}

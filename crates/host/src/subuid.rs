// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which uids a user may map into user namespaces of his: subuid(5). Where nsswitch.conf names another
//! source for `subid` this file is not it, and says nothing.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bursar_model::{Uid, abridged};

/// What lies beyond is not read, bytes.
const MAX_FILE: u64 = 4 << 20;
/// Lines that are no lines are said so far.
const MOST_SAID: usize = 3;

/// Who has subordinate uids.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubuidOwner {
    /// By number.
    Uid(Uid),
    /// By name.
    User(String),
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubuidLine {
    /// Whose subordinate uids these are.
    pub subuid_owner: SubuidOwner,
    /// The first of them.
    pub first: Uid,
    /// How many; at least one.
    pub count: u32,
}

/// What the file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subuids {
    /// What could be read.
    pub lines: Vec<SubuidLine>,
    /// What could not, for an administrator.
    pub remarks: Vec<String>,
}

/// Reads the file at `path`, usually `/etc/subuid`. Where there is none nobody has subordinate uids.
pub fn subuids(path: &Path) -> Subuids {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
    let mut found = match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Subuids::default(),
        Err(error) => Subuids {
            lines: Vec::new(),
            remarks: vec![format!("cannot read it: {error}")],
        },
        Ok(_) => parse(&bytes),
    };
    if bytes.len() as u64 >= MAX_FILE {
        let what = format!("only its first {} MiB are read", MAX_FILE >> 20);
        found.remarks.push(what);
    }
    for remark in &mut found.remarks {
        *remark = format!("{}: {remark}", path.display());
    }
    found
}

fn parse(bytes: &[u8]) -> Subuids {
    let mut found = Subuids::default();
    let mut wrong = Vec::new();
    for (number, line) in (1_usize..).zip(bytes.split(|&byte| byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        match parse_line(line) {
            Some(line) => found.lines.push(line),
            None => wrong.push(number),
        }
    }
    if let Some(lines) = abridged(&wrong, MOST_SAID) {
        found.remarks.push(format!(
            "left out, for they are not USER:FIRST:COUNT: lines {lines}"
        ));
    }
    found
}

fn parse_line(line: &[u8]) -> Option<SubuidLine> {
    let mut fields = str::from_utf8(line).ok()?.split(':');
    let (whose, first, count) = (fields.next()?, fields.next()?, fields.next()?);
    let (first, count) = (number(first)?, number(count)?);
    // What newuidmap could not map, for no uid is so large, or there are none.
    let is_room = first.checked_add(count).is_some();
    if whose.is_empty() || fields.next().is_some() || count == 0 || !is_room {
        return None;
    }
    let subuid_owner = match number(whose) {
        Some(uid) => SubuidOwner::Uid(Uid::new(uid)),
        None => SubuidOwner::User(whose.to_owned()),
    };
    Some(SubuidLine {
        subuid_owner,
        first: Uid::new(first),
        count,
    })
}

/// Digits and nothing else.
fn number(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_by_name_and_by_number_are_read() {
        let found = parse(b"alice:100000:65536\n\n# bob:1:2\n1001:165536:65536");
        let line = |subuid_owner, first| SubuidLine {
            subuid_owner,
            first: Uid::new(first),
            count: 65_536,
        };
        let alice = SubuidOwner::User("alice".to_owned());
        assert_eq!(
            found.lines,
            [
                line(alice, 100_000),
                line(SubuidOwner::Uid(Uid::new(1001)), 165_536)
            ]
        );
        assert!(found.remarks.is_empty(), "{found:?}");
    }

    #[test]
    fn what_is_no_line_is_left_out_and_said() {
        let wrong: [&[u8]; 8] = [
            b"alice",
            b"alice:1",
            b":1:2",
            b"alice:1:2:3",
            b"alice:x:2",
            b"alice:+1:2",
            b"alice:1:0",
            b"alice:4294967295:2",
        ];
        let text = [&wrong.join(&b'\n')[..], b"bob:1:2\n"].join(&b'\n');
        let found = parse(&text);
        assert_eq!(found.lines.len(), 1);
        assert_eq!(
            found.remarks,
            ["left out, for they are not USER:FIRST:COUNT: lines 1, 2, 3 and 5 more".to_owned()]
        );
    }

    #[test]
    fn no_file_is_no_subordinate_uids_and_an_unreadable_one_is_said() {
        assert_eq!(subuids(Path::new("/nonexistent")), Subuids::default());
        let remarks = subuids(Path::new("/")).remarks;
        assert!(remarks[0].starts_with("/: cannot read it: "), "{remarks:?}");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(text: Vec<u8>) {
            parse(&text);
        }
    }
}

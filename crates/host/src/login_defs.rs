// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where ordinary users begin: UID_MIN of login.defs(5).

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bursar_model::{Uid, printable};

/// Where ordinary users begin when nobody says otherwise, as in shadow and systemd.
pub const DEFAULT_UID_MIN: Uid = Uid::new(1000);

/// A larger file is no login.defs, bytes.
const MAX_FILE: u64 = 1 << 20;

/// Where ordinary users begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UidMin {
    /// The first of them.
    pub uid: Uid,
    /// What is wrong with the file, if anything; then the default stands.
    pub remark: Option<String>,
}

/// UID_MIN in the login.defs at `path`, usually `/etc/login.defs`. A machine without the file has the
/// default, and nothing is wrong with that.
pub fn uid_min(path: &Path) -> UidMin {
    let remark = |what: String| UidMin {
        uid: DEFAULT_UID_MIN,
        remark: Some(format!(
            "{}: UID_MIN: {what}; {DEFAULT_UID_MIN} is used, mend it or set accounts.uid_min",
            path.display()
        )),
    };
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return UidMin {
                uid: DEFAULT_UID_MIN,
                remark: None,
            };
        }
        Err(error) => return remark(format!("cannot read it: {error}")),
    }
    match value_of(&bytes, b"UID_MIN") {
        None => UidMin {
            uid: DEFAULT_UID_MIN,
            remark: None,
        },
        Some(value) => match uid(value) {
            Some(uid) => UidMin { uid, remark: None },
            None => remark(format!("\"{}\" is not a valid uid", printable(value, 40))),
        },
    }
}

/// The last value given to `key`, as shadow's getdef.c takes it: blanks and quotes around it aside.
fn value_of<'a>(text: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let is_frame = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'"';
    text.rsplit(|&byte| byte == b'\n').find_map(|line| {
        let rest = line.trim_ascii_start().strip_prefix(key)?;
        rest.first().filter(|byte| is_frame(byte))?;
        rest.split(is_frame).find(|word| !word.is_empty())
    })
}

/// Decimal, 0x… or 0… as strtol(3) reads it.
fn uid(text: &[u8]) -> Option<Uid> {
    let text = str::from_utf8(text).ok()?;
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (text.get(2..)?, 16),
        [b'0', _, ..] => (text.get(1..)?, 8),
        _ => (text, 10),
    };
    digits.bytes().next().filter(u8::is_ascii_hexdigit)?;
    let number = u32::from_str_radix(digits, radix).ok()?;
    (number < u32::MAX).then(|| Uid::new(number))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn read(text: &[u8]) -> UidMin {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        uid_min(file.path())
    }

    #[test]
    fn the_value_is_read_as_the_login_tools_read_it() {
        let table: [(&[u8], u32); 10] = [
            (b"UID_MIN\t\t\t 1000\nUID_MAX 60000\n", 1000),
            (b"UID_MIN 500", 500),
            (b"  UID_MIN \"500\"  # users\n", 500),
            (b"# UID_MIN 500\n", 1000),
            (b"SYS_UID_MIN 100\nUID_MIN_X 7\n", 1000),
            (b"UID_MIN 500\nUID_MIN 600\n", 600),
            (b"UID_MIN 0x3e8\n", 1000),
            (b"UID_MIN 01750\n", 1000),
            (b"UID_MIN 0\n", 0),
            (b"", 1000),
        ];
        for (text, uid) in table {
            assert_eq!(
                read(text),
                UidMin {
                    uid: Uid::new(uid),
                    remark: None
                }
            );
        }
    }

    #[test]
    fn what_is_no_uid_is_said_and_the_default_stands() {
        for text in ["x", "-5", "4294967295", "1e3", "0x", "+5", "09"] {
            let answer = read(format!("UID_MIN {text}\n").as_bytes());
            assert_eq!(answer.uid, DEFAULT_UID_MIN);
            let remark = answer.remark.unwrap();
            let what = format!(
                ": UID_MIN: \"{text}\" is not a valid uid; 1000 is used, mend it or set accounts.uid_min"
            );
            assert!(remark.ends_with(&what), "{remark}");
        }
    }

    #[test]
    fn no_file_is_the_default_and_an_unreadable_one_is_said() {
        assert_eq!(
            uid_min(Path::new("/nonexistent")),
            UidMin {
                uid: DEFAULT_UID_MIN,
                remark: None
            }
        );
        assert!(
            uid_min(Path::new("/"))
                .remark
                .unwrap()
                .contains("cannot read it")
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(value: Vec<u8>) {
            let mut text = b"UID_MIN ".to_vec();
            text.extend(value);
            let _ = value_of(&text, b"UID_MIN").map(uid);
        }
    }
}

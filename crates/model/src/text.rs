// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one door for text that other processes chose (comm, argv, paths): what leaves here can go to
//! a terminal, a log line or JSON without forging anything.

/// `bytes` as one line of harmless text: at most `limit` characters, then `…`.
///
/// Control characters, the C1 range, characters that change the writing direction or have no width,
/// backslashes and bytes that are no UTF-8 appear as `\n`, `\x1b`, `\u{202e}`, so that two different
/// names never look the same and none ends a line. A NUL ends the text, as in the kernel's comm.
pub fn printable(bytes: &[u8], limit: usize) -> String {
    let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    let mut out = String::new();
    let mut count = 0;
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if count == limit {
                out.push('…');
                return out;
            }
            push_harmless(&mut out, character);
            count += 1;
        }
        for byte in chunk.invalid() {
            if count == limit {
                out.push('…');
                return out;
            }
            out.push_str(&format!("\\x{byte:02x}"));
            count += 1;
        }
    }
    out
}

fn push_harmless(out: &mut String, character: char) {
    match character {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\\' => out.push_str("\\\\"),
        '\0'..='\x1f' | '\x7f' => out.push_str(&format!("\\x{:02x}", character as u32)),
        // C1 controls; characters without width (fillers, joiners, variation selectors) and direction marks; line and
        // paragraph separators; tags, BOM
        '\u{80}'..='\u{9f}'
        | '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}' => out.extend(character.escape_unicode()),
        _ => out.push(character),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hostile_names_become_one_harmless_line() {
        let table: [(&[u8], &str); 9] = [
            (b"python3", "python3"),
            (b"a\nkilled root", "a\\nkilled root"),
            (b"\x1b[2J\x07", "\\x1b[2J\\x07"),
            (b"caf\xc3\xa9", "café"),
            (b"\xff\xfe", "\\xff\\xfe"),
            (b"back\\slash", "back\\\\slash"),
            (b"end\0rest", "end"),
            ("a\u{202e}b".as_bytes(), "a\\u{202e}b"),
            (b"", ""),
        ];
        for (raw, shown) in table {
            assert_eq!(printable(raw, 64), shown);
        }
    }

    #[test]
    fn long_text_is_cut_and_says_so() {
        assert_eq!(printable(b"abcdef", 3), "abc…");
        assert_eq!(printable(b"abc", 3), "abc");
    }

    proptest! {
        #[test]
        fn nothing_that_comes_out_is_a_control(raw: Vec<u8>) {
            prop_assert!(printable(&raw, 200).chars().all(|c| !c.is_control()));
        }
    }
}

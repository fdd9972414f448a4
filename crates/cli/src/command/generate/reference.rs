// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Man pages that are parts of the reference (docs/reference): files and C functions.

use std::fs;
use std::io;
use std::path::Path;

use super::roff;

const CONFIGURATION: &str = include_str!("../../../../../docs/reference/configuration.md");
const C_LIBRARIES: &str = include_str!("../../../../../docs/reference/c-libraries.md");

/// A man page, and the parts of the reference that it is made of.
struct Page {
    name: &'static str,
    section: u8,
    about: &'static str,
    source: &'static str,
    /// Headings of the second level; the preface is each page's.
    parts: &'static [&'static str],
    see_also: &'static str,
}

const PAGES: &[Page] = &[
    Page {
        name: "bursar.toml",
        section: 5,
        about: "configuration of bursard",
        source: CONFIGURATION,
        parts: &["bursar.toml"],
        see_also: "limits.toml(5), bursard(8), bursar\\-check(1)",
    },
    Page {
        name: "limits.toml",
        section: 5,
        about: "who may hold how much memory",
        source: CONFIGURATION,
        parts: &["limits.toml", "limits.toml.d"],
        see_also: "bursar.toml(5), bursar\\-limit(1), bursard(8)",
    },
    Page {
        name: "libbursar",
        section: 3,
        about: "limits, reservations and notices of bursar in C",
        source: C_LIBRARIES,
        parts: &["libbursar"],
        see_also: "tmalloc(3), prefault(3), bursar\\-wait(1), bursard(8)",
    },
    Page {
        name: "tmalloc",
        section: 3,
        about: "malloc that reserves memory before it is granted",
        source: C_LIBRARIES,
        parts: &["libtmalloc"],
        see_also: "libbursar(3), bursar\\-run(1), malloc(3)",
    },
    Page {
        name: "prefault",
        section: 3,
        about: "memory that is resident and locked before it is used",
        source: C_LIBRARIES,
        parts: &["libprefault"],
        see_also: "libbursar(3), bursar\\-run(1), bursar\\-faults(1), mlock(2)",
    },
];

/// Writes the pages of a section of the manual.
pub(super) fn write(folder: &Path, section: u8) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for page in PAGES.iter().filter(|page| page.section == section) {
        let path = folder.join(format!("{}.{section}", page.name));
        fs::write(path, page.text())?;
    }
    Ok(())
}

impl Page {
    fn text(&self) -> String {
        let manual = match self.section {
            3 => "Library Functions",
            _ => "File Formats",
        };
        let preface = part(self.source, None);
        let parts: String = self
            .parts
            .iter()
            .map(|heading| part(self.source, Some(heading)))
            .collect();
        // tbl(1) is to be run first: man(1) reads that in the first line. Narrow cells do not look well adjusted.
        format!(
            "'\\\" t\n.TH {} {} \"\" bursar \"{manual}\"\n.ad l\n.SH NAME\n{} \\- {}\n.SH DESCRIPTION\n{}{}.SH \"SEE ALSO\"\n{}\n",
            self.name,
            self.section,
            self.name,
            self.about,
            roff::of_markdown(preface),
            roff::of_markdown(&parts),
            self.see_also
        )
    }
}

/// What stands below a heading of the second level, with it; or before the first one.
fn part<'a>(source: &'a str, heading: Option<&str>) -> &'a str {
    let begin = match heading {
        None => 0,
        Some(heading) => {
            let line = format!("\n## {heading}\n");
            source.find(&line).map_or(source.len(), |at| at + 1)
        }
    };
    let rest = source.get(begin..).unwrap_or_default();
    // Its own heading is at the beginning.
    let end = rest.find("\n## ").map_or(rest.len(), |at| at + 1);
    rest.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_has_its_parts() {
        for page in PAGES {
            for heading in page.parts {
                let part = part(page.source, Some(heading));
                assert!(part.len() > 500, "{}: {heading}: {part:?}", page.name);
            }
            let text = page.text();
            assert!(text.contains(".SH NAME\n"), "{}", page.name);
            assert_eq!(text.matches(".TS\n").count(), text.matches(".TE\n").count());
            assert!(!text.contains("<!--"), "{}", page.name);
        }
    }
}

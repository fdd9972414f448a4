// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page of the reference as man(7): so that there is no second text. Tables are tbl(1)'s.

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// Markdown as man(7), without its title. Pictures, HTML and where links lead are left out.
pub(super) fn of_markdown(markdown: &str) -> String {
    let mut page = Page::default();
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        page.take(event);
    }
    page.text
}

#[derive(Default)]
struct Page {
    text: String,
    /// Lists that are open: the number of the next item, or none.
    lists: Vec<Option<u64>>,
    /// Of a table, as long as it is open.
    columns: usize,
    cell: usize,
    is_verbatim: bool,
    /// What is inside is not for a man page.
    is_title: bool,
}

impl Page {
    fn take(&mut self, event: Event<'_>) {
        if self.is_title && !matches!(event, Event::End(TagEnd::Heading(_))) {
            return;
        }
        match event {
            Event::Start(tag) => self.begin(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => self.write(&text),
            Event::Code(code) => {
                self.text.push_str("\\fB");
                self.write(&code);
                self.text.push_str("\\fR");
            }
            Event::SoftBreak => self.line(),
            Event::HardBreak => self.request(".br"),
            _ => {}
        }
    }

    fn begin(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { level, .. } => match level {
                HeadingLevel::H1 => self.is_title = true,
                HeadingLevel::H2 => self.heading(".SH"),
                _ => self.heading(".SS"),
            },
            // In an item the first one stands beside its mark.
            Tag::Paragraph if self.lists.is_empty() => self.paragraph(),
            Tag::List(first) => {
                if !self.lists.is_empty() {
                    self.request(".RS 2");
                }
                self.lists.push(first);
            }
            Tag::Item => {
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!(".IP {}. 4", *number - 1)
                    }
                    _ => ".IP \\(bu 2".to_owned(),
                };
                self.request(&mark);
            }
            Tag::CodeBlock(CodeBlockKind::Fenced(_) | CodeBlockKind::Indented) => {
                self.paragraph();
                self.request(".RS 4");
                self.request(".EX");
                self.is_verbatim = true;
            }
            Tag::Table(columns) => {
                self.columns = columns.len();
                self.paragraph();
                self.request(".TS");
                self.request("allbox tab(@);");
                let layout = "lx ".repeat(self.columns);
                self.request(&format!("{}.", layout.trim_end()));
            }
            Tag::TableHead | Tag::TableRow => self.cell = 0,
            Tag::TableCell => {
                self.text.push_str("T{\n");
                self.cell += 1;
            }
            Tag::Emphasis => self.text.push_str("\\fI"),
            Tag::Strong => self.text.push_str("\\fB"),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(HeadingLevel::H1) => self.is_title = false,
            TagEnd::Heading(_) => self.text.push_str("\"\n"),
            TagEnd::Paragraph => self.line(),
            TagEnd::Item => self.line(),
            TagEnd::List(_) => {
                self.lists.pop();
                if !self.lists.is_empty() {
                    self.request(".RE");
                }
            }
            TagEnd::CodeBlock => {
                self.is_verbatim = false;
                self.request(".EE");
                self.request(".RE");
            }
            TagEnd::TableCell => {
                self.line();
                self.text.push_str("T}");
                self.text
                    .push(if self.cell < self.columns { '@' } else { '\n' });
            }
            TagEnd::Table => self.request(".TE"),
            TagEnd::Emphasis | TagEnd::Strong => self.text.push_str("\\fR"),
            _ => {}
        }
    }

    /// Ends the line that has begun.
    fn line(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
    }

    /// A heading, and the page, begin with one.
    fn paragraph(&mut self) {
        self.line();
        let last = self.text.lines().last().unwrap_or(".SH");
        if !last.starts_with(".SH") && !last.starts_with(".SS") {
            self.request(".PP");
        }
    }

    fn request(&mut self, request: &str) {
        self.line();
        self.text.push_str(request);
        self.text.push('\n');
    }

    fn heading(&mut self, request: &str) {
        self.line();
        self.text.push_str(request);
        self.text.push_str(" \"");
    }

    /// A line that begins with a dot or a quote would be a request.
    fn write(&mut self, text: &str) {
        for piece in text.split_inclusive('\n') {
            let begins = self.text.is_empty() || self.text.ends_with('\n');
            if begins && piece.starts_with(['.', '\'']) {
                self.text.push_str("\\&");
            }
            for char in piece.chars() {
                match char {
                    '\\' => self.text.push_str("\\e"),
                    '-' => self.text.push_str("\\-"),
                    '"' if !self.is_verbatim => self.text.push_str("\\(dq"),
                    _ => self.text.push(char),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_paragraphs_and_lists() {
        let page =
            of_markdown("# Title\n\nFirst `a-b`.\n\n## Part\n\n- one\n- **two**\n  - in it\n");
        assert_eq!(
            page,
            "First \\fBa\\-b\\fR.\n.SH \"Part\"\n.IP \\(bu 2\none\n.IP \\(bu 2\n\\fBtwo\\fR\n.RS 2\n.IP \\(bu 2\nin it\n.RE\n"
        );
    }

    #[test]
    fn a_table_has_a_block_for_each_cell() {
        let page = of_markdown("| a | b |\n|---|---|\n| 1 | x@y |\n");
        assert_eq!(
            page,
            ".TS\nallbox tab(@);\nlx lx.\nT{\na\nT}@T{\nb\nT}\nT{\n1\nT}@T{\nx@y\nT}\n.TE\n"
        );
    }

    #[test]
    fn what_looks_like_a_request_is_none() {
        let page = of_markdown("```\n.hidden \\n\n'quoted'\n```\n");
        assert_eq!(page, ".RS 4\n.EX\n\\&.hidden \\en\n\\&'quoted'\n.EE\n.RE\n");
    }
}

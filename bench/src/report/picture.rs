// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A drawing, as SVG. Black, white and hatching only: it must be readable from a bad printer.

use std::fmt::Write;

/// A drawing with a file name.
#[derive(Debug)]
pub(crate) struct Picture {
    pub(crate) name: &'static str,
    pub(crate) title: String,
    pub(crate) svg: String,
}

/// What draws it.
#[derive(Debug)]
pub(crate) struct Pen {
    body: String,
    width: f64,
    height: f64,
}

/// Where a text stands to its point.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// As many fills as there are contenders in a picture.
const FILLS: [&str; 8] = [
    "#000000",
    "#ffffff",
    "url(#slash)",
    "#999999",
    "url(#dots)",
    "url(#backslash)",
    "url(#lines)",
    "url(#cross)",
];

/// Black on white becomes white on black where the reader wants dark pages.
const DARK: &str =
    "<style>@media (prefers-color-scheme: dark) { svg { filter: invert(0.9) } }</style>\n";

const PATTERNS: &str = r##"<defs>
<pattern id="slash" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" fill="#fff"/><path d="M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2" stroke="#000" stroke-width="1.4"/></pattern>
<pattern id="backslash" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" fill="#fff"/><path d="M-1,5 l2,2 M0,0 l6,6 M5,-1 l2,2" stroke="#000" stroke-width="0.7"/></pattern>
<pattern id="cross" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" fill="#fff"/><path d="M0,0 l6,6 M0,6 l6,-6" stroke="#000" stroke-width="0.9"/></pattern>
<pattern id="lines" width="4" height="4" patternUnits="userSpaceOnUse"><rect width="4" height="4" fill="#fff"/><path d="M0,2 h4" stroke="#000" stroke-width="1.2"/></pattern>
<pattern id="dots" width="5" height="5" patternUnits="userSpaceOnUse"><rect width="5" height="5" fill="#fff"/><circle cx="2.5" cy="2.5" r="1.1" fill="#000"/></pattern>
</defs>
"##;

/// Text as it may stand in XML and HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

impl Pen {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self {
            body: String::new(),
            width,
            height,
        }
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), width: f64, dashes: &str) {
        let _ = writeln!(
            self.body,
            r##"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="#000" stroke-width="{width}" stroke-dasharray="{dashes}"/>"##,
            from.0, from.1, to.0, to.1
        );
    }

    /// A box with one of the fills.
    pub(crate) fn bar(&mut self, at: (f64, f64), width: f64, height: f64, fill: usize) {
        let _ = writeln!(
            self.body,
            r##"<rect x="{:.1}" y="{:.1}" width="{width:.1}" height="{height:.1}" fill="{}" stroke="#000" stroke-width="0.8"/>"##,
            at.0,
            at.1,
            FILLS[fill % FILLS.len()]
        );
    }

    /// A point: circle, square, diamond or triangle.
    pub(crate) fn mark(&mut self, at: (f64, f64), shape: usize) {
        let (x, y) = at;
        let _ = match shape % 4 {
            0 => writeln!(
                self.body,
                r##"<circle cx="{x:.1}" cy="{y:.1}" r="4" fill="#000"/>"##
            ),
            1 => writeln!(
                self.body,
                r##"<rect x="{:.1}" y="{:.1}" width="8" height="8" fill="#fff" stroke="#000"/>"##,
                x - 4.0,
                y - 4.0
            ),
            2 => writeln!(
                self.body,
                r##"<path d="M{x:.1},{:.1} l5,5 l-5,5 l-5,-5 z" fill="#999" stroke="#000"/>"##,
                y - 5.0
            ),
            _ => writeln!(
                self.body,
                r##"<path d="M{x:.1},{:.1} l5,9 l-10,0 z" fill="#fff" stroke="#000"/>"##,
                y - 5.0
            ),
        };
    }

    pub(crate) fn text(&mut self, at: (f64, f64), size: f64, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.body,
            r#"<text x="{:.1}" y="{:.1}" font-size="{size}" text-anchor="{anchor}">{}</text>"#,
            at.0,
            at.1,
            escaped(text)
        );
    }

    /// A text from bottom to top.
    pub(crate) fn upright(&mut self, at: (f64, f64), size: f64, text: &str) {
        let _ = writeln!(
            self.body,
            r#"<text transform="translate({:.1},{:.1}) rotate(-90)" font-size="{size}" text-anchor="middle">{}</text>"#,
            at.0,
            at.1,
            escaped(text)
        );
    }

    pub(crate) fn finish(self, title: &str) -> String {
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif">
<title>{}</title>
{DARK}{PATTERNS}<rect width="{w}" height="{h}" fill="#fff"/>
{}</svg>
"##,
            escaped(title),
            self.body,
            w = self.width,
            h = self.height
        )
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table of text: for a terminal, or as Markdown.

/// Rows of cells under a head. The first column is text, the others are numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Grid {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    text_columns: usize,
}

impl Grid {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self {
            head: head.iter().map(|&it| it.to_owned()).collect(),
            rows: Vec::new(),
            text_columns: 1,
        }
    }

    /// So many columns from the left are text.
    pub(crate) fn with_text_columns(mut self, count: usize) -> Self {
        self.text_columns = count;
        self
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.head.iter().map(|it| it.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let aligned = cells
            .iter()
            .zip(widths)
            .enumerate()
            .map(|(column, (cell, &width))| {
                let fill = " ".repeat(width.saturating_sub(cell.chars().count()));
                if column < self.text_columns {
                    format!("{cell}{fill}")
                } else {
                    format!("{fill}{cell}")
                }
            });
        aligned.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }

    /// For a terminal, each line indented by two.
    pub(crate) fn plain(&self) -> String {
        let widths = self.widths();
        let mut text = format!("  {}\n", self.line(&self.head, &widths));
        for row in &self.rows {
            text += &format!("  {}\n", self.line(row, &widths));
        }
        text
    }

    pub(crate) fn markdown(&self) -> String {
        let escaped = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|it| it.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = |column| {
            if column < self.text_columns {
                "---"
            } else {
                "---:"
            }
        };
        let rules: Vec<&str> = (0..self.head.len()).map(rule).collect();
        let mut text = escaped(&self.head) + &format!("|{}|\n", rules.join("|"));
        for row in &self.rows {
            text += &escaped(row);
        }
        text
    }

    pub(crate) fn html(&self) -> String {
        let mut text = String::from("<table><tr>");
        for cell in &self.head {
            text += &format!("<th>{}</th>", escaped(cell));
        }
        text += "</tr>\n";
        for row in &self.rows {
            text += "<tr>";
            for (column, cell) in row.iter().enumerate() {
                let class = if column < self.text_columns {
                    ""
                } else {
                    " class=\"number\""
                };
                text += &format!("<td{class}>{}</td>", escaped(cell));
            }
            text += "</tr>\n";
        }
        text + "</table>\n"
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

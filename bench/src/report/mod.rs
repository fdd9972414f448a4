// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pictures, a page and Markdown, made from the results alone.

mod bars;
mod claims;
mod lines;
mod markdown;
mod page;
mod picture;
mod pictures;
mod png;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::results::Results;

pub(crate) use claims::claims;

/// Writes everything into a directory. Returns remarks about what could not be made.
pub(crate) fn write(results: &Results, out: &Path) -> Result<Vec<String>> {
    fs::create_dir_all(out).with_context(|| format!("make {out:?}"))?;
    let save = |name: &str, bytes: &[u8]| {
        fs::write(out.join(name), bytes).with_context(|| format!("write {name} in {out:?}"))
    };
    let pictures = pictures::all(results);
    let mut remarks = Vec::new();
    for picture in &pictures {
        save(&format!("{}.svg", picture.name), picture.svg.as_bytes())?;
        match png::render(&picture.svg) {
            Ok(png) => save(&format!("{}.png", picture.name), &png)?,
            Err(error) => remarks.push(format!("no {}.png: {error:#}", picture.name)),
        }
    }
    save("index.html", page::page(results, &pictures).as_bytes())?;
    Ok(remarks)
}

/// docs/BENCHMARKS.md, and its pictures in a directory `benchmarks` beside it.
pub(crate) fn write_markdown(results: &Results, path: &Path) -> Result<()> {
    let beside = path.parent().unwrap_or(Path::new("")).join("benchmarks");
    fs::create_dir_all(&beside).with_context(|| format!("make {beside:?}"))?;
    for picture in pictures::all(results) {
        let file = beside.join(format!("{}.svg", picture.name));
        fs::write(&file, picture.svg).with_context(|| format!("write {file:?}"))?;
    }
    fs::write(path, markdown::markdown(results)).with_context(|| format!("write {path:?}"))
}

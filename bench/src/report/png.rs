// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same drawings as pixels.

use anyhow::{Context, Result, ensure};
use resvg::{tiny_skia, usvg};

/// Pixels for each unit of the drawing: sharp on paper too.
const SHARPNESS: f32 = 2.0;

pub(crate) fn render(svg: &str) -> Result<Vec<u8>> {
    let mut options = usvg::Options::default();
    let fonts = options.fontdb_mut();
    fonts.load_system_fonts();
    ensure!(
        !fonts.is_empty(),
        "no fonts on this machine; install one (Debian: fonts-dejavu-core)"
    );
    let family = fonts
        .faces()
        .find(|it| it.families.iter().any(|(name, _)| name == "DejaVu Sans"))
        .or_else(|| fonts.faces().next())
        .and_then(|it| it.families.first().map(|it| it.0.clone()));
    if let Some(family) = family {
        fonts.set_sans_serif_family(family);
    }
    let tree = usvg::Tree::from_str(svg, &options).context("read the drawing")?;
    let size = tree
        .size()
        .to_int_size()
        .scale_by(SHARPNESS)
        .context("its size")?;
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height()).context("its size")?;
    let transform = tiny_skia::Transform::from_scale(SHARPNESS, SHARPNESS);
    resvg::render(&tree, transform, &mut pixels.as_mut());
    pixels.encode_png().context("write pixels")
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same drawings as pixels, by librsvg's `rsvg-convert`.

use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// Pixels for each unit of the drawing: sharp on paper too.
const SHARPNESS: &str = "2";

pub(crate) fn render(svg: &str) -> Result<Vec<u8>> {
    let mut command = Command::new("rsvg-convert");
    command
        .args(["--format", "png", "--zoom", SHARPNESS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("no rsvg-convert on this machine; install it (Debian: librsvg2-bin)")
        }
        child => child.context("start rsvg-convert")?,
    };
    let mut drawing = child.stdin.take().context("hand the drawing over")?;
    // It reads all of it before it says anything. Whether it did, its end says.
    let handed = drawing.write_all(svg.as_bytes());
    drop(drawing);
    let output = child.wait_with_output().context("wait for rsvg-convert")?;
    ensure!(
        output.status.success(),
        "rsvg-convert: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    handed.context("hand the drawing over")?;
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_becomes_twice_as_many_pixels() {
        let svg = r#"<svg xmlns="http://www.w3.org/2000/svg" width="30" height="20"><rect width="9" height="9"/></svg>"#;
        let png = render(svg).unwrap();
        // ISO/IEC 15948, 5.2 and 11.2.2: the signature, then width and height in the first chunk.
        assert_eq!(png[..8], *b"\x89PNG\r\n\x1a\n");
        assert_eq!(png[16..24], [0, 0, 0, 60, 0, 0, 0, 40]);
    }

    #[test]
    fn what_is_no_drawing_is_an_error_with_its_words() {
        let error = render("<svg").unwrap_err().to_string();
        assert!(error.starts_with("rsvg-convert: "), "{error}");
    }
}

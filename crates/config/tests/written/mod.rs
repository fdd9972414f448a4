// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits, whose they are and what, from how they are written.

use std::path::Path;

use bursar_config::Limits;
use bursar_model::{BoundsSpec, Who};

pub(crate) fn parse(text: &str) -> Limits {
    Limits::parse(text, Path::new("/l.toml")).unwrap()
}

pub(crate) fn who(text: &str) -> Who {
    text.parse().unwrap()
}

pub(crate) fn spec(limit: &str, notice: Option<&str>, barrier: Option<&str>) -> BoundsSpec {
    let size = |text: &str| text.parse().unwrap();
    BoundsSpec {
        limit: size(limit),
        notice: notice.map(size),
        barrier: barrier.map(size),
    }
}

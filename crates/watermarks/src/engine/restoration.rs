// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was turned is put back: at the end, on request, and after a run that ended without.

use super::{Engine, Standing};
use crate::Paths;
use crate::saved::{Restored, SavedError, SavedValues};

/// Puts back what an earlier run of this boot left turned. Touches nothing where there is nothing to do.
///
/// # Errors
/// When the file of originals is in use or cannot be read or written.
pub fn recover(paths: &Paths) -> Result<Vec<Restored>, SavedError> {
    if !SavedValues::is_there(paths) {
        return Ok(Vec::new());
    }
    let mut saved = SavedValues::open(paths)?;
    Ok(saved.restore())
}

impl Engine {
    /// Puts everything back, and from now on only observes.
    pub fn put_back(&mut self) -> Vec<Restored> {
        let results = self.restore();
        if self.standing == Standing::Acting {
            self.standing = Standing::PutBack;
        }
        self.followed.clear();
        results
    }

    fn restore(&mut self) -> Vec<Restored> {
        self.observer.forget();
        let results = match &mut self.saved {
            Some(saved) => saved.restore(),
            None => Vec::new(),
        };
        for result in &results {
            match result {
                Restored::Done {
                    name: "vm.watermark_scale_factor",
                    to,
                    ..
                } => self.known_scale = u32::try_from(*to).unwrap_or(self.known_scale),
                Restored::Foreign {
                    name,
                    found,
                    written,
                } => {
                    tracing::warn!(
                        name,
                        found,
                        written,
                        "somebody else has set it: it is left to them"
                    );
                }
                Restored::Failed { name, to, reason } => {
                    tracing::error!(name, to, reason, "the original value could not be put back");
                }
                Restored::Done { .. } | Restored::Unchanged { .. } => {}
            }
        }
        results
    }

    /// Ends: everything is put back.
    pub fn finish(mut self) -> Vec<Restored> {
        self.compactor = None;
        self.reclaimer = None;
        self.restore()
    }
}

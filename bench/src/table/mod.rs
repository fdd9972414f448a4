// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables: each measures, and is plain data afterwards.

pub(crate) mod gate;
pub(crate) mod instructions;
pub(crate) mod malloc;
pub(crate) mod observe;
pub(crate) mod overcommit;
pub(crate) mod peers;
pub(crate) mod scale;
pub(crate) mod speed;
pub(crate) mod system;

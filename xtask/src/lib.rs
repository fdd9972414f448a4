// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The chores as a library, so that one chore can call another.

pub mod vm;

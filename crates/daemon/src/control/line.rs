// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replies and events as lines.

/// A reply as it goes over the wire.
pub(crate) fn to_line(reply: &impl serde::Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(reply).unwrap_or_else(|error| {
        // Only a map with keys that are no text could fail, and the protocol has none.
        format!("{{\"refused\":{{\"kind\":\"failed\",\"message\":\"{error}\"}}}}").into_bytes()
    });
    line.push(b'\n');
    line
}

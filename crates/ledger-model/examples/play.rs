// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plays one seed and says what was held when: `cargo run --release -p bursar-ledger-model --example play SEED`.

use bursar_ledger_model::{Current, Script};

fn main() {
    let seed = std::env::args()
        .nth(1)
        .and_then(|it| it.parse().ok())
        .unwrap_or(0);
    let script = Script::of(seed, 40).shrunk::<Current>();
    for line in script.told::<Current>() {
        println!("{line}");
    }
}

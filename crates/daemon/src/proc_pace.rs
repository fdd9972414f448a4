// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How often the loop looks through all of /proc, which it does itself and waits for: a tenth of its time at most.

use std::time::Duration;

/// From one look to the next at least.
pub(crate) const LEAST_REST: Duration = Duration::from_secs(1);
/// However long a look takes, nobody waits longer for the next one.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// How long nobody looks after a look that took so long.
pub(crate) fn rest_after(took: Duration) -> Duration {
    took.saturating_mul(9).clamp(LEAST_REST, LONGEST_REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_tenths_of_the_time_nobody_looks() {
        let rests = [0, 100, 200, 500, 60_000].map(|it| rest_after(Duration::from_millis(it)));
        assert_eq!(
            rests,
            [1000, 1000, 1800, 4500, 5000].map(Duration::from_millis)
        );
    }
}

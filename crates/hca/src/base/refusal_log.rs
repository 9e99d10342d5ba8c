//! The log of what programs can cause as often as they like, such as that a device refuses them.

use crate::base::clock::monotonic;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The shortest time between two log lines.
const BETWEEN_COMPLAINTS: Duration = Duration::from_secs(1);

/// Logs no more often than people can read.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    /// When something was logged last, and how often it was left out since.
    told: Mutex<(Option<Duration>, u64)>,
}

impl RefusalLog {
    /// Logs that an application is refused.
    pub fn tell(&self, error: &dyn std::fmt::Display) {
        self.warn(&format_args!("an application is refused: {error}"));
    }

    pub fn warn(&self, text: &dyn std::fmt::Display) {
        let untold = {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            let now = monotonic();
            if told.0.is_some_and(|at| now < at + BETWEEN_COMPLAINTS) {
                told.1 += 1;
                return;
            }
            told.0 = Some(now);
            std::mem::take(&mut told.1)
        };
        tracing::warn!(untold, "verbs: {text}");
    }
}

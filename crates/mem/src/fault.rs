//! The word that tells why a guest was disabled.

use std::sync::atomic::{AtomicU32, Ordering};

/// The reason why a guest is disabled: zero while it is not, otherwise a code that the owner chooses or
/// [`FaultWord::BUS`]. The first fault stays until it is cleared.
#[derive(Debug, Default)]
pub struct FaultWord(AtomicU32);

impl FaultWord {
    /// The guest's memory disappeared: a file was truncated, or no page was available.
    pub const BUS: u32 = 1;

    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Returns the fault, if any.
    #[must_use]
    #[inline]
    pub fn get(&self) -> Option<u32> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            code => Some(code),
        }
    }

    /// Records a fault and returns whether it is the first. Safe to call in a signal handler.
    pub fn raise(&self, code: u32) -> bool {
        self.0.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Clears the fault, because the guest starts afresh.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fault_stays_until_it_is_cleared() {
        let fault = FaultWord::new();
        assert_eq!(fault.get(), None);
        assert!(fault.raise(7));
        assert!(!fault.raise(FaultWord::BUS));
        assert_eq!(fault.get(), Some(7));
        fault.clear();
        assert_eq!(fault.get(), None);
        assert!(fault.raise(FaultWord::BUS));
        assert_eq!(fault.get(), Some(FaultWord::BUS));
    }
}

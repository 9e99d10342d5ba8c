//! Memory of the guest that a VMM keeps to itself: the VMM does not say so, and its guest would wait for
//! ever.

use crate::log::Log;
use std::time::{Duration, Instant};

/// How long a VMM may take to share the guest's memory, after it enabled rings for a driver; also the time
/// until the thread looks again whether the guest's memory is in the memory that the VMM shared.
const SHARES_WITHIN: Duration = Duration::from_secs(2);

/// The part that is missing of the memory of a driver that is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// All of the memory: the VMM has none that it could share.
    File,
    /// The contents: the VMM shares a file that it mapped privately.
    Contents,
}

/// Adds a remedy to a message.
macro_rules! advice {
    ($what:literal) => {
        concat!(
            $what,
            ": QEMU needs share=on in its memory backend, libvirt <access mode=\"shared\"/> in <memoryBacking>"
        )
    };
}

impl Lack {
    const fn words(self) -> &'static str {
        match self {
            Self::File => advice!("the VMM shares no memory"),
            Self::Contents => advice!("nothing of the guest is in the memory that its VMM shares"),
        }
    }
}

/// A VMM that does not share the guest's memory (yet), and since when.
#[derive(Default)]
pub(super) struct Unshared {
    lack: Option<(Lack, Instant)>,
    is_told: bool,
}

impl Unshared {
    /// Sets `fault` if the VMM has not shared the guest's memory for too long, unless there is a different
    /// fault. Returns after how long to look again.
    pub(super) fn tell(
        &mut self,
        lack: Option<Lack>,
        fault: &mut Option<String>,
        log: &Log,
    ) -> Option<Duration> {
        if self.lack.map(|(lack, _)| lack) != lack {
            let was =
                std::mem::replace(self, Self { lack: lack.map(|l| (l, Instant::now())), is_told: false });
            if let (Some((lack, _)), true) = (was.lack, was.is_told) {
                fault.take_if(|why| why == lack.words());
            }
        }
        let (lack, since) = self.lack?;
        let left = SHARES_WITHIN.checked_sub(since.elapsed());
        // If memory that the VMM did share was refused, the user needs to know the reason for that.
        if left.is_none() && !std::mem::replace(&mut self.is_told, true) && fault.is_none() {
            log.warn(format_args!("{}", lack.words()));
            *fault = Some(lack.words().to_owned());
        }
        // The guest sends no message when it begins to use its memory.
        left.or((lack == Lack::Contents).then_some(SHARES_WITHIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_ago(lack: Lack) -> Unshared {
        let since = Instant::now().checked_sub(SHARES_WITHIN).unwrap();
        Unshared { lack: Some((lack, since)), is_told: false }
    }

    #[test]
    fn memory_that_is_not_shared_hides_no_other_fault() {
        let log = Log::new("vm".to_owned());
        for lack in [Lack::File, Lack::Contents] {
            for before in [Some("the file is shorter".to_owned()), None] {
                let (mut fault, mut unshared) = (before.clone(), long_ago(lack));
                let again = unshared.tell(Some(lack), &mut fault, &log);
                assert_eq!(again.is_some(), lack == Lack::Contents);
                assert_eq!(fault, before.clone().or_else(|| Some(lack.words().to_owned())));
                assert_eq!(unshared.tell(None, &mut fault, &log), None);
                assert_eq!(fault, before);
            }
        }
    }

    #[test]
    fn memory_that_is_shared_privately_after_none_was_is_another_fault() {
        let log = Log::new("vm".to_owned());
        let (mut fault, mut unshared) = (None, long_ago(Lack::File));
        unshared.tell(Some(Lack::File), &mut fault, &log);
        assert_eq!(fault.as_deref(), Some(Lack::File.words()));
        assert!(unshared.tell(Some(Lack::Contents), &mut fault, &log).is_some());
        assert_eq!(fault, None, "it has its time");
    }
}

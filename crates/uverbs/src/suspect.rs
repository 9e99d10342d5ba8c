//! Programs of a virtual machine that had pages of a window when the daemon ended. Only another program of that machine
//! can tell whether they have ended since.

use crate::part::WindowKind;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

/// A program that may have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    /// The window of which the program had pages.
    pub window: WindowKind,
    /// The device's number for the program.
    pub number: u32,
    pub pid: i32,
    /// The process's start time ([`started`]).
    pub started: u64,
}

impl Suspect {
    /// Is true, for the library, if the program has ended; false if that can't be known.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        // Other users' processes may not be in `/proc`, but have numbers.
        let exists =
            Pid::from_raw(self.pid).is_none_or(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH));
        // `/proc` may belong to another namespace, where the number is another process's.
        let own = std::fs::read_link("/proc/self").ok();
        let is_ours = own.is_some_and(|own| own.as_os_str() == &*std::process::id().to_string());
        !exists || is_ours && started(&self.pid.to_string()).is_some_and(|started| started != self.started)
    }
}

/// Returns the start time of a process as the kernel counts it (`/proc/PID/stat`); `None` if it can't be known.
#[must_use]
pub fn started(process: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The process's name may contain anything.
    stat.rsplit_once(')')?.1.split(' ').nth(20)?.parse().ok()
}

#[cfg(all(test, not(any(miri, loom))))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// The test starts a program whose `/proc` is of another namespace: `unshare --pid --fork`, for administrators.
    #[test]
    #[cfg_attr(
        target_arch = "aarch64",
        ignore = "it starts itself, which needs a processor that is not emulated"
    )]
    fn a_proc_of_another_namespace_is_not_believed() {
        const INSIDE: &str = "IS_IN_A_NAMESPACE";
        if std::env::var_os(INSIDE).is_some() {
            let pid = std::process::id().cast_signed();
            assert!(!Suspect { window: WindowKind::Common, number: 1, pid, started: 1 }.is_gone());
            return;
        }
        let name = "suspect::tests::a_proc_of_another_namespace_is_not_believed";
        let mut inside = std::process::Command::new("unshare");
        let inside = inside.args(["--pid", "--fork"]).arg(std::env::current_exe().unwrap());
        let done = inside.args(["--exact", name]).env(INSIDE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        if said.contains("not permitted") {
            return eprintln!("not possible here: {said}");
        }
        let told = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && told.contains("1 passed"), "{told}{said}");
    }

    #[test]
    fn a_program_is_gone_once_its_number_is_nobodys_or_anothers() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let (pid, window) = (child.id().cast_signed(), WindowKind::Common);
        let suspect = Suspect { window, number: 1, pid, started: started(&pid.to_string()).unwrap() };
        assert!(!suspect.is_gone() && Suspect { started: 1, ..suspect }.is_gone());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(suspect.is_gone() && !Suspect { pid: 0, ..suspect }.is_gone());
    }
}

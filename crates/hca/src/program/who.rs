//! Who a program is.

use crate::window::host_process::HostProcess;
use crate::window::notes::ProgramNote;
use crate::window::source::{DeviceWindows, Reach};
use uverbs::{Claim, Uuid};

/// Most characters of a name.
const NAME: usize = 32;

/// A program, and how the daemon knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// It runs on this kernel, which knows its process and user.
    Local { pid: i32, uid: u32 },
    /// It is in a virtual machine, and claims this.
    Remote(Claim),
}

impl Who {
    /// Makes a program in a virtual machine out of its claim, whose name can be displayed afterwards.
    pub fn remote(claim: Claim) -> Self {
        let visible = |letter: &char| !letter.is_control();
        let program = claim.program.chars().filter(visible).take(NAME).collect();
        Self::Remote(Claim { program, ..claim })
    }

    pub const fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_))
    }

    /// Returns the process number: here, or in the virtual machine.
    pub const fn pid(&self) -> i32 {
        match self {
            Self::Local { pid, .. } | Self::Remote(Claim { pid, .. }) => *pid,
        }
    }

    /// Returns the user; `None`: the host does not know it.
    pub const fn uid(&self) -> Option<u32> {
        match self {
            Self::Local { uid, .. } => Some(*uid),
            Self::Remote(_) => None,
        }
    }

    /// Returns when the program's virtual machine was started, as the program claims.
    pub const fn boot(&self) -> Option<Uuid> {
        match self {
            Self::Local { .. } => None,
            Self::Remote(claim) => Some(claim.boot),
        }
    }

    /// Returns the name of a program in a virtual machine.
    pub fn program(&self) -> Option<&str> {
        match self {
            Self::Local { .. } => None,
            Self::Remote(claim) => Some(&claim.program),
        }
    }

    /// Makes the note of the program for windows of which it has pages. `vmm`: the process of its machine, if it is
    /// in one.
    pub fn note(&self, guest: &str, secret: Uuid, vmm: i32) -> ProgramNote {
        let (guest, shares) = (guest.to_owned(), false);
        match self {
            Self::Local { pid, .. } => ProgramNote {
                guest,
                shares,
                process: HostProcess::now(*pid),
                secret,
                ..ProgramNote::default()
            },
            Self::Remote(Claim { pid, boot, started, pid_namespace, .. }) => ProgramNote {
                guest,
                is_remote: true,
                shares,
                process: HostProcess::now(vmm),
                secret,
                boot: *boot,
                pid: *pid,
                started: *started,
                pid_namespace: *pid_namespace,
            },
        }
    }

    /// Returns the windows of a device that it can map.
    pub const fn reach(&self, windows: DeviceWindows) -> Reach {
        Reach { is_local: !self.is_remote(), windows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_says_can_be_displayed() {
        let claim =
            Claim { pid: 7, uid: 0, program: format!("\x1b[2Ja\nb{}", "é".repeat(100)), ..Claim::default() };
        let who = Who::remote(claim);
        assert_eq!(who.program(), Some(&*format!("[2Jab{}", "é".repeat(NAME - 5))));
        assert_eq!((who.pid(), who.uid(), who.is_remote()), (7, None, true));
    }
}

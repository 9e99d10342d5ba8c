//! Windows: the files that virtual machines have as devices, with memory of their programs that use verbs.

use config::{CommonWindow, CommonWindows, Guest};
use std::path::{Path, PathBuf};

/// Directory of windows, in the run-dir.
pub const WINDOW_DIR: &str = "rdma/vm";
/// Mode of a window, and of its socket, unless told otherwise.
const MODE: u32 = 0o660;
/// What follows the name of a window in that of its socket: what VMMs add to the path that they were told, for the
/// daemon's port of the family `AF_VSOCK`.
const SOCKET: &str = ".vsock_4791";

/// Whose window it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowOf {
    /// This guest's alone.
    Guest(String),
    /// That of all guests of this trust.
    Trust(String),
}

/// A window that is to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowSpec {
    /// Whose it is.
    pub of: WindowOf,
    /// Path of its file.
    pub path: PathBuf,
    /// Bytes of the file.
    pub bytes: u64,
    /// `user` or `user:group` of the VMM; `None`: the daemon's user.
    pub owner: Option<String>,
    /// Mode of the file.
    pub mode: u32,
    /// Its virtual machine may migrate: it is used only while that runs, and nobody copies its memory.
    pub migrates: bool,
}

impl WindowSpec {
    /// The own window of a guest, if it has one.
    pub(crate) fn own(guest: &Guest, run_dir: &Path) -> Option<Self> {
        let (mb, owner, mode) = (guest.window_mb?, guest.owner.clone(), guest.socket_mode.clone());
        let of = WindowOf::Guest(guest.name.clone());
        let window = Self::new(of, run_dir, guest.rdma.as_ref()?, &CommonWindow { mb, owner, mode });
        Some(Self { migrates: guest.window_migrates, ..window })
    }

    /// The window that a guest has in common with others. Who is watched shares nothing.
    pub(crate) fn common(guest: &Guest, run_dir: &Path, all: &CommonWindows) -> Option<Self> {
        let trust = guest.rdma_trust.as_ref().filter(|_| guest.rate.is_none() && guest.mirror.is_none())?;
        let name = format!("trust-{trust}");
        Some(Self::new(WindowOf::Trust(trust.clone()), run_dir, &name, all.get(trust)?))
    }

    fn new(
        of: WindowOf,
        run_dir: &Path,
        name: &str,
        CommonWindow { mb, owner, mode }: &CommonWindow,
    ) -> Self {
        Self {
            of,
            path: run_dir.join(WINDOW_DIR).join(name),
            bytes: u64::from(*mb) << 20,
            owner: owner.clone(),
            mode: mode.as_ref().map_or(MODE, |mode| u32::from_str_radix(mode, 8).unwrap_or(MODE)),
            migrates: false,
        }
    }

    /// The name of its file.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// What warnings call the window of this name.
    #[must_use]
    pub fn object(name: &str) -> String {
        format!("window \"{name}\"")
    }

    /// Where programs of the virtual machine reach the device, by VMMs that have no vhost-vsock of the kernel.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        let mut socket = self.path.clone().into_os_string();
        socket.push(SOCKET);
        socket.into()
    }

    /// Whether it is the same file, for the same use.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.path, self.bytes, self.migrates) == (&other.path, other.bytes, other.migrates)
    }
}

/// What a window tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowStatus {
    /// Its identifier.
    pub uuid: String,
    /// Bytes that programs have, of all devices.
    pub used: u64,
    /// Bytes that programs may still have which used it before the daemon was started, or the device opened anew.
    pub left: u64,
    /// Device and inode number of its file.
    pub file: (u64, u64),
    /// The programs of this device that have some.
    pub users: Vec<WindowUser>,
}

/// A program that has memory of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowUser {
    /// Its process number and name; of one in a virtual machine, as it says itself.
    pub pid: i32,
    /// See above.
    pub program: String,
    /// Bytes.
    pub bytes: u64,
}

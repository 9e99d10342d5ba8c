//! Windows: files that virtual machines have as devices, with memory of their programs that use verbs.

use config::{CommonWindow, CommonWindows, Guest};
use std::path::{Path, PathBuf};

/// Directory of windows, in the run-dir.
pub const WINDOW_DIR: &str = "rdma/vm";
/// Default mode of a window and its socket.
const MODE: u32 = 0o660;
/// Suffix of the name of a window's socket. VMMs add it to the path that they were given, for the daemon's
/// port of the family `AF_VSOCK`.
const SOCKET: &str = ".vsock_4791";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowOf {
    /// This guest alone.
    Guest(String),
    /// All guests of this trust.
    Trust(String),
}

/// A window that is to exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowSpec {
    pub of: WindowOf,
    /// Path of its file.
    pub path: PathBuf,
    /// Size of the file, bytes.
    pub bytes: u64,
    /// `user` or `user:group` of the VMM; `None`: the daemon's user.
    pub owner: Option<String>,
    pub mode: u32,
    /// Whether its virtual machine may migrate. Such a window is used only while the machine runs, and nobody
    /// copies its memory.
    pub migrates: bool,
}

impl WindowSpec {
    /// Returns the window of a guest alone, if it has one.
    pub(crate) fn own(guest: &Guest, run_dir: &Path) -> Option<Self> {
        let vhost = guest.vhost()?;
        let config::Window { mb, migrates } = vhost.window?;
        let (owner, mode) = (vhost.owner.clone(), vhost.socket_mode.clone());
        let of = WindowOf::Guest(guest.name.clone());
        let name = &guest.verbs.as_ref()?.name;
        let window = Self::new(of, run_dir, name, &CommonWindow { mb, owner, mode });
        Some(Self { migrates, ..window })
    }

    /// Returns the window that a guest shares with others. A guest whose traffic is limited or mirrored
    /// shares none.
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

    #[must_use]
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns the name that warnings use for the window `name`.
    #[must_use]
    pub fn object(name: &str) -> String {
        format!("window \"{name}\"")
    }

    /// Returns the socket by which programs of the virtual machine reach the device if the VMM does not use
    /// the kernel's vhost-vsock.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        let mut socket = self.path.clone().into_os_string();
        socket.push(SOCKET);
        socket.into()
    }

    /// Is true if both are the same file, for the same use.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.path, self.bytes, self.migrates) == (&other.path, other.bytes, other.migrates)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowStatus {
    pub uuid: String,
    /// Bytes that programs of all devices have.
    pub used: u64,
    /// Bytes that programs may still have from before the daemon was started or the device opened again.
    pub left: u64,
    /// Device and inode number of its file.
    pub file: (u64, u64),
    /// The programs of this device that have memory of it.
    pub users: Vec<WindowUser>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowUser {
    /// Process ID. A program in a virtual machine names it itself.
    pub pid: i32,
    /// Name. A program in a virtual machine names it itself.
    pub program: String,
    pub bytes: u64,
}

//! Rights to the window: the agent gives it only to users who may open its device.

use rustix::fs::{FileType, Stat};
use std::os::fd::{AsFd, AsRawFd};

/// Most groups of a user that are looked at.
const GROUPS: usize = 1024;
const SO_PEERGROUPS: i32 = 59;

/// A user with his groups, as they were when he connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub groups: Vec<u32>,
}

impl User {
    /// Returns the user at the other end of a socket.
    pub fn of(socket: impl AsFd) -> Option<Self> {
        let credentials = rustix::net::sockopt::socket_peercred(&socket).ok()?;
        let mut groups = vec![0_u32; GROUPS];
        let mut len = (GROUPS * size_of::<u32>()) as libc::socklen_t;
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: there is room for as much as the length says.
        let failed = unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, SO_PEERGROUPS, groups.as_mut_ptr().cast(), &raw mut len)
        };
        groups.truncate(if failed == 0 { len as usize / size_of::<u32>() } else { 0 });
        groups.push(credentials.gid.as_raw());
        Some(Self { uid: credentials.uid.as_raw(), groups })
    }

    /// Returns whether the user may open a file for reading and writing, by its mode.
    pub fn may_open(&self, file: &Stat) -> bool {
        let shift = match () {
            () if self.uid == 0 => return true,
            () if self.uid == file.st_uid => 6,
            () if self.groups.contains(&file.st_gid) => 3,
            () => 0,
        };
        let is_known = FileType::from_raw_mode(file.st_mode) != FileType::Unknown;
        is_known && file.st_mode >> shift & 0o6 == 0o6
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn may_open(uid: u32, groups: &[u32], mode: u32) -> bool {
        let file = tempfile();
        let mut stat = rustix::fs::fstat(&file).unwrap();
        (stat.st_uid, stat.st_gid) = (1000, 100);
        stat.st_mode = stat.st_mode & !0o777 | mode;
        User { uid, groups: groups.to_vec() }.may_open(&stat)
    }

    fn tempfile() -> std::fs::File {
        std::fs::File::open("/dev/null").unwrap()
    }

    #[test]
    fn who_may_open_the_device_may_have_it() {
        assert!(may_open(0, &[], 0));
        assert!(may_open(1000, &[], 0o600) && !may_open(1000, &[100], 0o460) && !may_open(1001, &[1], 0o660));
        assert!(may_open(1001, &[7, 100], 0o660) && !may_open(1001, &[100], 0o640));
        assert!(may_open(1001, &[], 0o666));
    }

    #[test]
    fn a_peer_has_its_groups() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let user = User::of(&one).unwrap();
        // SAFETY: it takes nothing.
        assert_eq!(user.uid, unsafe { libc::geteuid() });
        // SAFETY: as above.
        assert!(user.groups.contains(&unsafe { libc::getegid() }));
    }
}

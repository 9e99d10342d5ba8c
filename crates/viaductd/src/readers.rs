//! The socket for those who only read. It belongs to a group; if the group does not exist yet, a thread waits
//! for it.

use crate::listeners::lacks;
use crate::privileges::Privileges;
use control::Missing;
use sockets::ListeningFile;
use std::sync::Weak;
use std::time::Duration;

/// The mode of the socket once it belongs to the group.
pub const MODE: u32 = 0o660;
/// The mode while there is no such group.
pub const CLOSED: u32 = 0o600;

/// How often we look for the group. It may come from a directory on the network, so no file shows it.
const EVERY: Duration = Duration::from_secs(2);

/// Returns user and group of the socket.
///
/// # Errors
/// Says that there is no such group.
pub fn owner(privileges: &Privileges, group: &str) -> Result<(u32, u32), String> {
    let (_, group) = privileges.owner("readers", &format!("root:{group}"))?;
    Ok((rustix::process::getuid().as_raw(), group))
}

/// The socket of a group that does not exist yet.
pub struct Late {
    pub group: String,
    pub file: Weak<dyn ListeningFile>,
    pub privileges: Privileges,
    pub missing: Missing,
    /// The message that names the problem meanwhile.
    pub message: String,
}

impl Late {
    /// Gives the socket to the group once it exists, on a separate thread.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn wait(mut self) -> std::io::Result<()> {
        let wait = move || {
            while !self.is_over() {
                std::thread::sleep(EVERY);
            }
        };
        std::thread::Builder::new().name("readers".into()).spawn(wait).map(drop)
    }

    /// Looks once. Returns whether there is nothing more to wait for.
    fn is_over(&mut self) -> bool {
        // Hold the file only while it is given away: its owner removes it at once by dropping it.
        let Ok(owner) = owner(&self.privileges, &self.group) else { return self.file.strong_count() == 0 };
        let Some(file) = self.file.upgrade() else { return true };
        match file.give_to(Some(owner), MODE) {
            Ok(()) => {
                tracing::info!("[host] readers: the group \"{}\" is there, and is served", self.group);
                self.missing.remove(&self.message);
                return true;
            }
            Err(e) => self.fails(&e),
        }
        false
    }

    /// Logs once why the socket can't be given away.
    fn fails(&mut self, why: &sockets::Error) {
        let why = format!("readers: the socket can't be given to the group \"{}\": {why}", self.group);
        if !self.message.starts_with(&why) {
            self.missing.remove(&self.message);
            self.message = lacks(&self.missing, why, "that changes");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inherit::Succession;
    use crate::listeners::{Clients, Open};
    use std::collections::BTreeMap;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;

    /// A daemon takes over while the group does not exist: the old daemon's readers go on until it has.
    #[test]
    fn a_shared_socket_is_closed_when_the_other_daemon_has_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = api::readers_socket(dir.path());
        let listening: OwnedFd = UnixListener::bind(&path).unwrap().into();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(MODE)).unwrap();
        let mode = || path.symlink_metadata().unwrap().permissions().mode() & 0o777;
        for takes_over in [false, true] {
            let shared = BTreeMap::from([("readers".to_owned(), listening.try_clone().unwrap())]);
            let (succession, missing) = (Arc::<Succession>::default(), Missing::default());
            let (privileges, counted) = (&Privileges::here(), succession.clone());
            let clients = Clients { privileges, shared, succession: counted, missing };
            let Open { files, .. } = clients.open(dir.path(), Some("no-such-group"), None).unwrap();
            assert_eq!(mode(), MODE);
            if takes_over {
                succession.succeed(&sockets::Here);
                assert_eq!(mode(), CLOSED);
            }
            drop(files);
            assert_eq!(path.exists(), !takes_over);
        }
    }
}

//! The holder of the daemon's privileges: its helper, or without a sandbox the daemon itself.

use control::{ConfigFile, Sandbox};
use helper::{Directories, Helper, Refusal};
use sandbox::{Calls, CapabilitySet, Keep};
use sockets::Sockets;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use wire::Opener;

/// Opens and looks up things that need privileges.
#[derive(Clone)]
pub struct Privileges {
    pub opener: Arc<dyn Opener>,
    pub sockets: Arc<dyn Sockets>,
    helper: Option<Helper>,
}

impl Privileges {
    /// Uses the daemon's own privileges.
    pub fn here() -> Self {
        Self { opener: wire::here(), sockets: sockets::here(), helper: None }
    }

    /// Starts a helper for sockets in these directories and this configuration file, and uses its privileges. The
    /// daemon `takes_over` from one that runs, or has the run-dir alone. The process must have a single thread.
    ///
    /// # Errors
    /// The helper can't be started.
    pub fn of_helper(
        directories: &Directories,
        config: &Path,
        log: &str,
        takes_over: bool,
    ) -> Result<Self, helper::HelperError> {
        let helper = Helper::start(directories, config, log, takes_over)?;
        let all = Arc::new(helper.clone());
        Ok(Self { opener: all.clone(), sockets: all, helper: Some(helper) })
    }

    /// Looks up the user and group ID of `user` or `user:group`, the value of `key` in the file.
    ///
    /// # Errors
    /// There is no such user or group.
    pub fn owner(&self, key: &str, names: &str) -> Result<(u32, u32), String> {
        let found = self.helper.as_ref().map_or_else(|| helper::lookup(names), |helper| helper.owner(names));
        found.map_err(|e| format!("{key}: {e}"))
    }

    /// Opens the socket by which programs in virtual machines connect; see [`helper::listen_to_machines`].
    ///
    /// # Errors
    /// As for [`helper::listen_to_machines`].
    pub fn machines(&self) -> io::Result<OwnedFd> {
        self.helper.as_ref().map_or_else(helper::listen_to_machines, Helper::machines)
    }

    /// Begins to connect to a BGP peer, from an address if there is one; see [`helper::Request::Peer`].
    ///
    /// # Errors
    /// As for [`helper::peer`]; or the file names no such peer.
    pub fn peer(&self, to: (SocketAddr, Option<IpAddr>), password: Option<&str>) -> Result<OwnedFd, Refusal> {
        match &self.helper {
            Some(helper) => helper.peer(to, password),
            None => Ok(helper::peer(to, password)?),
        }
    }

    /// Connects to a resolver of names; see [`helper::Request::Resolver`].
    ///
    /// # Errors
    /// As for [`helper::resolver`]; or the file names no such resolver.
    pub fn resolver(&self, server: Option<IpAddr>, number: u8, by_tcp: bool) -> io::Result<OwnedFd> {
        match &self.helper {
            Some(helper) => helper.resolver(server, number, by_tcp),
            None => helper::resolver(server, number, by_tcp),
        }
    }

    /// Connects to a DHCP server; see [`helper::Request::DhcpServer`].
    ///
    /// # Errors
    /// As for [`helper::dhcp_server`]; or the file names no such server.
    pub fn dhcp_server(&self, server: IpAddr) -> io::Result<OwnedFd> {
        match &self.helper {
            Some(helper) => helper.dhcp_server(server),
            None => helper::dhcp_server(server),
        }
    }

    /// Begins to connect to a metadata service; see [`helper::Request::MetadataService`].
    ///
    /// # Errors
    /// As for [`helper::stream`]; or the file names no such service.
    pub fn metadata_service(&self, server: SocketAddr) -> io::Result<OwnedFd> {
        match &self.helper {
            Some(helper) => helper.metadata_service(server),
            None => helper::stream(server),
        }
    }

    /// Returns the daemon's configuration file, which can be read again.
    pub fn config(&self, path: &Path) -> ConfigFile {
        let (helper, own) = (self.helper.clone(), path.to_owned());
        let open = move || match &helper {
            Some(helper) => helper.config(),
            None => helper::config_file(&own),
        };
        let (helper, folder) = (self.helper.clone(), config::folder_of(path).to_owned());
        let included = move |patterns: &[String]| match &helper {
            Some(helper) => helper.included(patterns),
            None => config::open_included(&folder, patterns),
        };
        ConfigFile::new(path, open, included)
    }

    /// Returns a descriptor that polls readable when the helper has ended, if there is a helper.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn ended(&self) -> io::Result<Option<OwnedFd>> {
        self.helper.as_ref().map(Helper::ended).transpose()
    }

    /// Tells the helper that the daemon has opened its ports; see [`Helper::settle`].
    pub fn settle(&self) {
        self.helper.iter().for_each(Helper::settle);
    }

    /// Returns these privileges with a different way to open devices and sockets.
    pub fn opening_by(&self, opener: Arc<dyn Opener>, sockets: Arc<dyn Sockets>) -> Self {
        Self { opener, sockets, ..self.clone() }
    }

    pub const fn helper(&self) -> Option<&Helper> {
        self.helper.as_ref()
    }

    /// Tells the helper whether a new daemon takes over; see [`Helper::retire`].
    pub fn retire(&self, retires: bool) {
        self.helper.iter().for_each(|helper| helper.retire(retires));
    }

    /// Tells the helper that this daemon has taken over; see [`Helper::succeed`].
    pub fn succeed(&self) {
        if let Some(Err(e)) = self.helper.as_ref().map(Helper::succeed) {
            tracing::warn!("taps will end with the daemon: {e}");
        }
    }

    /// Tells the helper that the daemon stops; see [`Helper::stop`].
    pub fn stop(&self) {
        self.helper.iter().for_each(Helper::stop);
    }

    /// Gives up all privileges that the helper has. The process must have a single thread. Later the daemon
    /// opens only `/dev/null`, to signal eventfds, its own program, to name functions in a panic, and
    /// settings of the kernel's network, to warn about them.
    pub fn give_up(&self) -> Sandbox {
        let Some(helper) = &self.helper else {
            return Sandbox { report: sandbox::now(), helper: None };
        };
        let program = std::env::current_exe().unwrap_or_default();
        let files = [Path::new("/dev/null"), &program, Path::new("/proc/sys/net")].map(sandbox::readable);
        let keep = Keep {
            capabilities: CapabilitySet::empty(),
            calls: Calls::Daemon,
            files: &files,
            outside: false,
        };
        let report = sandbox::enter(sandbox::account(), &keep);
        for missing in &report.missing {
            tracing::warn!("the sandbox lacks {missing}");
        }
        Sandbox { report, helper: Some(helper.pid()) }
    }
}

//! The ways in which a guest is connected, each with the keys that only it has.

use super::check_socket;
use super::guest::check_owner;
use crate::reader::Reader;
use crate::value::{Within, names};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// The way in which a guest is connected, as files name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestKind {
    /// vhost-user.
    Vhost,
    /// A TAP device that Viaduct creates.
    Tap,
    /// Verbs only.
    Rdma,
    /// The host itself, by a TAP device that Viaduct creates and gives the guest's addresses.
    Host,
}

names!(GuestKind { Vhost = "vhost", Tap = "tap", Rdma = "rdma", Host = "host" });

/// The side that listens on a vhost-user socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Viaduct.
    #[default]
    Server,
    /// The VMM.
    Client,
}

names!(Role { Server = "server", Client = "client" });

/// The way in which a guest is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// A virtual machine, by vhost-user.
    Vhost(VhostUser),
    /// A container, by a TAP device that Viaduct creates.
    Tap(TapDevice),
    /// The host itself, by a TAP device that Viaduct creates and gives the guest's addresses.
    Host(TapDevice),
    /// A verbs device, and no port.
    Rdma,
}

/// A virtual machine's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUser {
    /// The socket, relative to the run-dir.
    pub socket: String,
    /// The side that listens.
    pub role: Role,
    /// Queue pairs.
    pub queues: u16,
    /// Owner of the socket, `user` or `user:group`.
    pub owner: Option<String>,
    /// Mode of the socket, octal.
    pub socket_mode: Option<String>,
    /// While the VMM is not connected, the guest is on another host, or on its way: this host treats its addresses,
    /// MAC and label as if the guest were not in the file.
    pub standby: bool,
    /// The window of the guest's verbs device. `None`: programs in the virtual machine can't use the device.
    pub window: Option<Window>,
}

/// The file by which programs in a virtual machine share memory with the verbs device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Size, megabytes of 2^20 bytes.
    pub mb: u32,
    /// Whether the virtual machine may migrate although it has a window. Its programs then lose their device.
    pub migrates: bool,
}

/// A TAP device that Viaduct creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapDevice {
    /// Name of the device.
    pub device: String,
    /// Queue pairs.
    pub queues: u16,
}

impl Connection {
    /// Returns the kind that files name.
    pub(super) const fn kind(&self) -> GuestKind {
        match self {
            Self::Vhost(_) => GuestKind::Vhost,
            Self::Tap(_) => GuestKind::Tap,
            Self::Host(_) => GuestKind::Host,
            Self::Rdma => GuestKind::Rdma,
        }
    }
}

/// Writes the keys of a file.
impl Serialize for Connection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut keys = serializer.serialize_struct("Connection", 9)?;
        keys.serialize_field("kind", &self.kind())?;
        match self {
            Self::Vhost(vhost) => {
                keys.serialize_field("socket", &vhost.socket)?;
                keys.serialize_field("role", &vhost.role)?;
                keys.serialize_field("queues", &vhost.queues)?;
                for (key, text) in [("owner", &vhost.owner), ("socket_mode", &vhost.socket_mode)] {
                    text.iter().try_for_each(|text| keys.serialize_field(key, text))?;
                }
                keys.serialize_field("standby", &vhost.standby)?;
                if let Some(window) = vhost.window {
                    keys.serialize_field("window_mb", &window.mb)?;
                    if window.migrates {
                        keys.serialize_field("window_migrates", &true)?;
                    }
                }
            }
            Self::Tap(tap) | Self::Host(tap) => {
                keys.serialize_field("device", &tap.device)?;
                keys.serialize_field("queues", &tap.queues)?;
            }
            Self::Rdma => keys.serialize_field("queues", &1)?,
        }
        // Clients of the API have always found these with every guest.
        if !matches!(self, Self::Vhost(_)) {
            keys.serialize_field("role", &Role::default())?;
            keys.serialize_field("standby", &false)?;
        }
        keys.end()
    }
}

/// Most queue pairs of a guest.
const MAX_QUEUES: u32 = 64;

/// The keys of all connections, as a file has them.
#[derive(Debug)]
pub(super) struct Keys {
    socket: Option<String>,
    device: Option<String>,
    role: Role,
    queues: u16,
    owner: Option<String>,
    socket_mode: Option<String>,
    pub(super) standby: bool,
    pub(super) window_mb: Option<u32>,
    pub(super) window_migrates: bool,
}

impl Keys {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        Self {
            socket: r.get("socket"),
            device: r.get("device"),
            role: r.get("role").unwrap_or_default(),
            queues: r.get("queues").map_or(1, Within::<1, MAX_QUEUES>::short),
            owner: r.get("owner"),
            socket_mode: r.get("socket_mode"),
            standby: r.get("standby").unwrap_or_default(),
            window_mb: r.get("window_mb"),
            window_migrates: r.get("window_migrates").unwrap_or_default(),
        }
    }

    /// Checks the keys by themselves, and that a guest of this kind may have them.
    pub(super) fn check(&self, r: &Reader<'_>, kind: GuestKind) {
        match kind {
            GuestKind::Vhost => {
                if self.device.is_some() {
                    r.problem(Some("device"), "`device` is for kind = \"tap\"; a vhost guest has a `socket`");
                }
            }
            GuestKind::Tap | GuestKind::Host => self.check_tap(r),
            // Defaults are written out with every object, so they do no harm.
            GuestKind::Rdma => not_without_port(
                r,
                &[
                    ("socket", self.socket.is_some()),
                    ("device", self.device.is_some()),
                    ("role", self.role != Role::Server),
                    ("queues", self.queues != 1),
                    ("owner", self.owner.is_some()),
                    ("socket_mode", self.socket_mode.is_some()),
                ],
            ),
        }
        if self.standby && kind != GuestKind::Vhost {
            r.problem(Some("standby"), "`standby` is for kind = \"vhost\": other guests do not migrate");
        }
        let unfit = |c: char| c == '/' || c.is_whitespace() || c.is_control();
        if self.device.as_ref().is_some_and(|d| d.is_empty() || d.len() > 15 || d.contains(unfit)) {
            r.problem(Some("device"), "`device` takes the name of a network device, 1 to 15 characters");
        }
        self.socket.iter().for_each(|socket| check_socket(r, "socket", socket));
        let is_mode = |mode: &String| u32::from_str_radix(mode, 8).is_ok_and(|mode| mode <= 0o777);
        if self.socket_mode.as_ref().is_some_and(|mode| !is_mode(mode)) {
            r.problem(Some("socket_mode"), "`socket_mode` is octal, as in \"0660\"");
        }
        check_owner(r, "owner", self.owner.as_deref());
    }

    fn check_tap(&self, r: &Reader<'_>) {
        if self.device.is_none() {
            r.problem(None, "`device` is missing: the name of the TAP device to create");
        }
        if self.socket.is_some() {
            r.problem(Some("socket"), "`socket` is for kind = \"vhost\"; this guest has a `device`");
        }
        for (key, is_used) in [("owner", self.owner.is_some()), ("socket_mode", self.socket_mode.is_some())] {
            if is_used {
                r.problem(Some(key), format!("`{key}` is for kind = \"vhost\""));
            }
        }
    }

    /// Returns the connection of a guest with this name and kind. Leaves out what [`Self::check`] refuses.
    pub(super) fn connection(&self, name: &str, kind: GuestKind) -> Connection {
        let tap = TapDevice { device: self.device.clone().unwrap_or_default(), queues: self.queues };
        match kind {
            GuestKind::Vhost => Connection::Vhost(VhostUser {
                socket: self.socket.clone().unwrap_or_else(|| format!("{name}.sock")),
                role: self.role,
                queues: self.queues,
                owner: self.owner.clone(),
                socket_mode: self.socket_mode.clone(),
                standby: self.standby,
                window: self.window_mb.map(|mb| Window { mb, migrates: self.window_migrates }),
            }),
            GuestKind::Tap => Connection::Tap(tap),
            GuestKind::Host => Connection::Host(tap),
            GuestKind::Rdma => Connection::Rdma,
        }
    }
}

/// Refuses the keys that are used, because they are of a port.
pub(super) fn not_without_port(r: &Reader<'_>, keys: &[(&str, bool)]) {
    for (key, _) in keys.iter().filter(|(_, is_used)| *is_used) {
        r.problem(Some(key), format!("`{key}` is of a port, and a guest of kind \"rdma\" has none"));
    }
}

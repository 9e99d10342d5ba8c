//! A guest's verbs device.

use super::Guest;
use super::connection::{self, GuestKind};
use super::guest::check_owner;
use super::mode::Mode;
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Value, describe};
use serde::Serialize;
use std::ops::RangeInclusive;

/// A guest's verbs device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verbs {
    /// The name of its socket in `rdma/` of the run-dir.
    #[serde(rename = "rdma")]
    pub name: String,
    /// The user who may open it, `user` or `user:group`.
    #[serde(rename = "rdma_owner", skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Limits of all of its clients together.
    #[serde(rename = "rdma_limits")]
    pub limits: RdmaLimits,
}

/// Limits of all clients of a verbs device together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RdmaLimits {
    /// Queue pairs.
    pub qps: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Memory registered, megabytes of 2^20 bytes.
    pub registered_mb: u32,
    /// Memory of queues and tables of regions, megabytes.
    pub queues_mb: u32,
    /// Connections: each program has one for each context that it opens, and one for the connection manager.
    pub connections: u32,
}

impl std::default::Default for RdmaLimits {
    fn default() -> Self {
        Self { qps: 4096, mrs: 65_536, registered_mb: 1_048_576, queues_mb: 512, connections: 256 }
    }
}

impl RdmaLimits {
    /// Upper bounds of the limits.
    const MOST: Self = Self {
        qps: 262_144,
        mrs: 1_048_576,
        registered_mb: 16_777_216,
        queues_mb: 65_536,
        connections: 4096,
    };
}

impl Value for RdmaLimits {
    const TABLE: Option<fn(Reader<'_>) -> Option<Self>> = Some(|mut r| {
        let (default, most) = (Self::default(), Self::MOST);
        let mut limit = |key, default, most| {
            let Some(value) = r.get::<i128>(key) else { return default };
            let fits = u32::try_from(value).ok().filter(|value| (1..=most).contains(value));
            fits.unwrap_or_else(|| {
                r.problem(Some(key), format!("{key} {value} is out of range; use 1 to {most}"));
                default
            })
        };
        let limits = Self {
            qps: limit("qps", default.qps, most.qps),
            mrs: limit("mrs", default.mrs, most.mrs),
            registered_mb: limit("registered_mb", default.registered_mb, most.registered_mb),
            queues_mb: limit("queues_mb", default.queues_mb, most.queues_mb),
            connections: limit("connections", default.connections, most.connections),
        };
        r.finish();
        Some(limits)
    });

    fn read(value: &Node<'_>) -> Result<Self, String> {
        Err(format!(
            "expected {{ qps = N, mrs = N, registered_mb = N, queues_mb = N, connections = N }}, found {}",
            describe(value)
        ))
    }
}

/// Least and greatest size of a window, megabytes.
const WINDOW_MB: RangeInclusive<u32> = 16..=1_048_576;
/// Greatest size of a window that migrates, megabytes: the notes on its pages must fit in front of its data.
const MIGRATES_MB: u32 = 65_000;
/// Name of the windows' directory, in the directory of verbs devices.
const WINDOWS: &str = "vm";
/// Prefix of the name of a trust's window.
const COMMON: &str = "trust-";
/// Suffix that makes the name of a window's socket from the window's name.
const SOCKET: &str = ".vsock";

/// Most characters of a verbs device's name.
const MAX_NAME: usize = 64;

/// Returns whether a text can be both the name of a file among others and a word in a command.
fn is_plain(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=MAX_NAME).contains(&text.len()) && text.chars().all(plain) && !text.starts_with(['.', '-'])
}

/// The keys of a verbs device, as a file has them.
pub(super) struct Keys {
    rdma: Option<String>,
    rdma_owner: Option<String>,
    rdma_limits: Option<RdmaLimits>,
}

impl Keys {
    pub(super) fn read(r: &mut Reader<'_>) -> Self {
        Self { rdma: r.get("rdma"), rdma_owner: r.get("rdma_owner"), rdma_limits: r.get("rdma_limits") }
    }

    /// Returns the verbs device of a guest with this name and kind.
    pub(super) fn device(&self, name: &str, kind: GuestKind) -> Option<Verbs> {
        let own = (kind == GuestKind::Rdma && !name.is_empty()).then(|| name.to_owned());
        let name = self.rdma.clone().or(own)?;
        Some(Verbs { name, owner: self.rdma_owner.clone(), limits: self.rdma_limits.unwrap_or_default() })
    }

    /// Returns the keys that are of a verbs device, and whether the guest has them.
    pub(super) fn all(&self, guest: &Guest, port: &connection::Keys) -> [(&'static str, bool); 6] {
        [
            ("rdma", self.rdma.is_some()),
            ("rdma_owner", self.rdma_owner.is_some()),
            ("rdma_trust", guest.rdma_trust.is_some()),
            ("rdma_limits", self.rdma_limits.is_some()),
            ("window_mb", port.window_mb.is_some()),
            ("window_migrates", port.window_migrates),
        ]
    }

    /// Checks the keys by themselves and with those of the guest and its port.
    pub(super) fn check(&self, guest: &Guest, port: &connection::Keys, r: &Reader<'_>) {
        if port.standby && guest.verbs.is_some() && guest.kind() == GuestKind::Vhost && !port.window_migrates
        {
            let message = "`standby` and `rdma` exclude each other, because verbs devices do not migrate; add `window_mb` \
                           and `window_migrates` if programs may lose their device when their VM migrates";
            r.problem(Some("standby"), message);
        }
        // [`super::mode`] refuses all of these keys.
        if guest.mode == Mode::Ovs {
            return;
        }
        let name = guest.verbs.as_ref().map(|verbs| &verbs.name);
        for (key, text) in [("rdma", name), ("rdma_trust", guest.rdma_trust.as_ref())] {
            if let Some(text) = text.filter(|text| !is_plain(text)) {
                let message = format!(
                    "\"{text}\" can't be a name; use 1 to {MAX_NAME} letters, digits, '.', '_' or '-', not starting with \
                     '.' or '-'"
                );
                r.problem(Some(key), message);
            }
        }
        check_owner(r, "rdma_owner", self.rdma_owner.as_deref());
        check_sockets(guest, r);
        check_window(guest, port, r);
        if let Some(Verbs { name, .. }) = &guest.verbs {
            if name == WINDOWS {
                let message = format!("\"{WINDOWS}\" is the directory of windows; name the device otherwise");
                r.problem(Some("rdma"), message);
            }
            if guest.addresses.is_empty() {
                r.problem(None, "`addresses` is missing; they are the GIDs of the guest's verbs device");
            }
            return;
        }
        // Trust is also of sockets.
        let is_of_device = |key: &str| key != "rdma_trust" || !guest.sockets;
        for (key, _) in self.all(guest, port).iter().filter(|(key, used)| *used && is_of_device(key)) {
            let message =
                format!("`{key}` is of a verbs device, which the guest lacks; add rdma = \"{}\"", guest.name);
            r.problem(Some(key), message);
        }
    }
}

/// Checks that programs of a guest can pass their sockets to the daemon, and which sockets these are.
fn check_sockets(guest: &Guest, r: &Reader<'_>) {
    if !guest.sockets {
        return;
    }
    let has_window = guest.window().is_some() && guest.rdma_trust.is_some();
    if guest.kind() != GuestKind::Tap && !has_window {
        let message = "`sockets` is for kind = \"tap\", and for kind = \"vhost\" with `rdma`, `window_mb` and `rdma_trust`: \
                       programs of other guests have no memory in common";
        r.problem(Some("sockets"), message);
    }
    if guest.addresses.is_empty() {
        r.problem(
            None,
            "`addresses` is missing; with `sockets`, they tell which connections are the guest's",
        );
    }
    if !is_plain(&guest.name) {
        r.problem(
            Some("sockets"),
            "the guest's name can't be that of a socket; use letters, digits, '.', '_' or '-'",
        );
    }
}

/// Checks the size of a guest's window, and that its files have names of their own.
fn check_window(guest: &Guest, port: &connection::Keys, r: &Reader<'_>) {
    let Some(mb) = port.window_mb else {
        if port.window_migrates {
            r.problem(
                Some("window_migrates"),
                "`window_migrates` is of a window, which the guest lacks; add `window_mb`",
            );
        }
        return;
    };
    if port.window_migrates && mb > MIGRATES_MB {
        let message =
            format!("a window that migrates has {MIGRATES_MB} MB at most; set a smaller `window_mb`");
        r.problem(Some("window_migrates"), message);
    }
    if port.window_migrates && guest.rdma_trust.is_some() {
        r.problem(
            Some("window_migrates"),
            "`window_migrates` and `rdma_trust` exclude each other: the window of a trust stays with its other guests",
        );
    }
    if guest.kind() != GuestKind::Vhost {
        r.problem(
            Some("window_mb"),
            "`window_mb` is for kind = \"vhost\": other guests' programs open the device's socket",
        );
    }
    if !WINDOW_MB.contains(&mb) || !mb.is_multiple_of(2) {
        let (least, most) = WINDOW_MB.into_inner();
        r.problem(
            Some("window_mb"),
            format!("window_mb {mb} is no size of a window; use a multiple of 2 from {least} to {most}"),
        );
    }
    let is_taken = |name: &&str| name.starts_with(COMMON) || name.contains(SOCKET);
    if let Some(name) = guest.verbs.as_ref().map(|verbs| verbs.name.as_str()).filter(is_taken) {
        let message = format!(
            "\"{name}\" can't be the name of a device with a window; use one without \"{SOCKET}\" that does not begin \
             with \"{COMMON}\""
        );
        r.problem(Some("rdma"), message);
    }
}

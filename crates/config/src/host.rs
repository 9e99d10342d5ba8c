//! `[host]`: the settings of the daemon as a whole.

use crate::bgp::Bgp;
use crate::object::{Place, Wire};
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Prefix, Value, Within, describe, text};
use ipnet::IpNet;
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::path::{Component, Path};

/// `[host]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// The host's name.
    pub name: String,
    /// Cores that workers are pinned to, one worker each. Empty: one worker, not pinned.
    pub workers: Vec<u16>,
    /// The device that forwards packets.
    pub executor: Executor,
    /// Outer source addresses of tunnels, at most one per family. If empty, [`Host::tunnel_sources`] finds
    /// them.
    pub tunnel_source: Vec<IpAddr>,
    /// Prefixes from which tunnel packets are accepted, besides the remotes that targets name.
    pub tunnel_peers: Vec<IpNet>,
    /// Whether tunnel packets over IPv6 may have no UDP checksum (RFC 6935, 5).
    pub udp6_zero_checksum: bool,
    /// Whether tunnel packets over IPv4 leave with Don't Fragment. `false`: they may be fragmented, and fragments from
    /// remotes are reassembled.
    pub tunnel_df: bool,
    /// Milliseconds between two packets of BFD with tunnels' remotes (RFC 5883); `None`: remotes are not watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel_bfd: Option<u32>,
    /// The address that serves Prometheus; `None`: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
    /// Group whose members may read by a second API socket; `None`: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readers: Option<String>,
    /// Programs that own objects by a name of their own, beside the file and the API.
    pub owners: Vec<OwnerName>,
    /// Directories in which sockets may be that are added while the daemon runs, besides the run-dir and
    /// those of sockets in the file. `DIR/**` is `DIR` with all below it. If a file names none, they are
    /// [`SOCKET_DIRS`].
    pub socket_dirs: Vec<String>,
    /// Most megabytes of memory of a VM; `None`: as many as the host has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_memory_mb: Option<u32>,
    /// Most megabytes of all VMs together; `None`: eight times as many as the host has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guests_memory_mb: Option<u32>,
    /// `[bgp]`; `None`: the host speaks to nobody.
    #[serde(skip)]
    pub bgp: Option<Bgp>,
}

/// The directories for sockets of libvirt, OpenStack and Open vSwitch.
pub const SOCKET_DIRS: [&str; 3] = ["/var/lib/libvirt/qemu/**", "/var/lib/vhost_sockets", "/run/openvswitch"];

impl Default for Host {
    fn default() -> Self {
        Self {
            name: String::new(),
            workers: Vec::new(),
            executor: Executor::default(),
            tunnel_source: Vec::new(),
            tunnel_peers: Vec::new(),
            udp6_zero_checksum: false,
            tunnel_df: true,
            tunnel_bfd: None,
            metrics: None,
            readers: None,
            owners: Vec::new(),
            socket_dirs: Vec::new(),
            guest_memory_mb: None,
            guests_memory_mb: None,
            bgp: None,
        }
    }
}

/// The name of a program that owns objects, and who may use it besides root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct OwnerName {
    /// The name.
    pub name: String,
    /// The number of the user; `None`: root alone.
    pub user: Option<u32>,
}

impl OwnerName {
    /// Returns whether a user may act as this owner.
    #[must_use]
    pub fn may_be_used_by(&self, uid: u32) -> bool {
        uid == 0 || self.user == Some(uid)
    }
}

/// Returns whether a program can own objects by this name.
#[must_use]
pub fn is_owner(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=32).contains(&name.len()) && name.chars().all(is_plain)
}

impl From<OwnerName> for String {
    fn from(OwnerName { name, user }: OwnerName) -> Self {
        match user {
            Some(uid) => format!("{name}:{uid}"),
            None => name,
        }
    }
}

impl Value for OwnerName {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        let text = text(value)?;
        let (name, user) = text.split_once(':').map_or((text, None), |(name, user)| (name, Some(user)));
        if !is_owner(name) {
            return Err(format!(
                "\"{text}\" is no owner: 1 to 32 lowercase letters, digits and \"-\", as in \"jobs\""
            ));
        }
        if ["file", "api", "bgp", "ovs"].contains(&name) {
            return Err(format!("\"{name}\" is the name of an owner that is always there"));
        }
        let user = user.map(str::parse).transpose().map_err(|_| {
            format!("\"{text}\": the user is a number, as `id -u` prints it, for example \"{name}:1000\"")
        })?;
        Ok(Self { name: name.to_owned(), user })
    }
}

/// A directory of sockets.
struct SocketDir(String);

impl Value for SocketDir {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        let dir = text(value)?;
        let mut names = Path::new(dir).components();
        let is_plain =
            names.next() == Some(Component::RootDir) && names.all(|c| matches!(c, Component::Normal(_)));
        if !is_plain || dir.contains(['\0', '\n']) {
            return Err(format!("\"{dir}\" is no absolute path of a directory"));
        }
        Ok(Self(dir.to_owned()))
    }
}

/// The interval of BFD packets to tunnels' remotes, in milliseconds, or that there are none.
struct TunnelBfd(Option<u32>);

impl Value for TunnelBfd {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        const USUAL: u32 = 10;
        match value {
            Node::Boolean(is_on) => Ok(Self(is_on.then_some(USUAL))),
            Node::Integer(_) => Within::<10, 10_000>::read(value).map(|interval| Self(Some(interval.wide()))),
            other => {
                Err(format!("expected true, false or a time in milliseconds, found {}", describe(other)))
            }
        }
    }
}

/// The name of a group, or its number.
struct Group(String);

impl Value for Group {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        let name = text(value)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        match !name.is_empty() && name.len() <= 32 && name.chars().all(is_plain) {
            true => Ok(Self(name.to_owned())),
            false => Err(format!("\"{name}\" is no name of a group")),
        }
    }
}

/// The device that forwards packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Executor {
    /// CPU cores.
    #[default]
    Cpu,
    /// A simulated card, and CPU cores beside it.
    CardSim,
}

impl Value for Executor {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        match text(value)? {
            "cpu" => Ok(Self::Cpu),
            "card-sim" if cfg!(feature = "card-sim") => Ok(Self::CardSim),
            "card-sim" => Err("this build has no card-sim; use \"cpu\"".to_owned()),
            card if card.starts_with("card:") => {
                Err(format!("cards carry no packets yet, so not {card}; use \"cpu\""))
            }
            other => Err(format!("\"{other}\" is no executor; use \"cpu\"")),
        }
    }
}

impl Host {
    /// Returns `[host]` and `[bgp]` in TOML for people: the name first, no defaults of `[host]`.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let body = toml::Table::try_from(self).unwrap_or_default();
        let is_default = |key: &str, value: &toml::Value| match key {
            "tunnel_df" => self.tunnel_df,
            "executor" => self.executor == Executor::default(),
            "socket_dirs" => self.has_default_socket_dirs(),
            _ => value.as_bool() == Some(false) || value.as_array().is_some_and(Vec::is_empty),
        };
        let mut set: Vec<_> = body.iter().filter(|(key, value)| !is_default(key, value)).collect();
        set.sort_by_key(|(key, _)| *key != "name");
        let lines = set.into_iter().map(|(key, value)| format!("{key} = {value}\n"));
        let bgp = self.bgp.as_ref().map(Bgp::to_toml).unwrap_or_default();
        format!("[host]\n{}\n{bgp}", lines.collect::<String>())
    }

    /// Returns whether the file leaves it to us where sockets may be.
    #[must_use]
    pub fn has_default_socket_dirs(&self) -> bool {
        self.socket_dirs == SOCKET_DIRS
    }

    /// Returns the source addresses of tunnels: the configured ones, or else the first address of each family
    /// on a wire.
    pub fn tunnel_sources<'a>(&self, wires: impl Iterator<Item = &'a Wire>) -> Vec<IpAddr> {
        if !self.tunnel_source.is_empty() {
            return self.tunnel_source.clone();
        }
        let addresses: Vec<IpAddr> = wires.flat_map(|wire| &wire.addresses).map(|net| net.addr()).collect();
        let first = |v4| addresses.iter().copied().find(|addr| addr.is_ipv4() == v4);
        first(true).into_iter().chain(first(false)).collect()
    }

    pub(crate) fn read(mut r: Reader<'_>) -> (Self, Place) {
        let host = Self {
            name: r.require("name").unwrap_or_default(),
            workers: r.list("workers"),
            executor: r.get("executor").unwrap_or_default(),
            tunnel_source: r.one_or_many("tunnel_source"),
            tunnel_peers: r.list::<Prefix>("tunnel_peers").into_iter().map(|prefix| prefix.0).collect(),
            udp6_zero_checksum: r.get("udp6_zero_checksum").unwrap_or_default(),
            tunnel_df: r.get("tunnel_df").unwrap_or(true),
            tunnel_bfd: r.get::<TunnelBfd>("tunnel_bfd").and_then(|interval| interval.0),
            metrics: r.get("metrics"),
            readers: r.get::<Group>("readers").map(|group| group.0),
            owners: r.list("owners"),
            socket_dirs: match r.given::<SocketDir>("socket_dirs") {
                Some(dirs) => dirs.into_iter().map(|dir| dir.0).collect(),
                None => SOCKET_DIRS.map(str::to_owned).to_vec(),
            },
            guest_memory_mb: r.get::<Within<1, { u32::MAX }>>("guest_memory_mb").map(Within::wide),
            guests_memory_mb: r.get::<Within<1, { u32::MAX }>>("guests_memory_mb").map(Within::wide),
            bgp: None,
        };
        for (i, core) in host.workers.iter().enumerate() {
            if host.workers[..i].contains(core) {
                r.problem(Some("workers"), format!("core {core} is listed twice in `workers`"));
            }
        }
        for (i, owner) in host.owners.iter().enumerate() {
            if host.owners[..i].iter().any(|other| other.name == owner.name) {
                r.problem(Some("owners"), format!("\"{}\" is listed twice in `owners`", owner.name));
            }
        }
        if host.tunnel_source.iter().filter(|a| a.is_ipv4()).count() > 1
            || host.tunnel_source.iter().filter(|a| a.is_ipv6()).count() > 1
        {
            r.problem(Some("tunnel_source"), "`tunnel_source` takes one address per family");
        }
        (host, r.finish())
    }
}

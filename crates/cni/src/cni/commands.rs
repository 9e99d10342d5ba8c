//! The commands of CNI.

use super::config::Config;
use super::delegate::Delegate;
use super::result::{Interface, Outcome};
use super::version::Version;
use super::{Error, variable};
use crate::attachment::Attachment;
use crate::attend::{attach, check_free, detach};
use crate::daemon::Daemon;
use crate::interface;
use crate::netns::Netns;
use crate::records::Records;
use serde_json::{Map, Value};
use std::path::Path;

/// An attachment, and everything that work on it needs.
struct Call<'a> {
    config: &'a Config,
    it: Attachment,
    records: Records,
    ipam: Option<Delegate<'a>>,
}

impl<'a> Call<'a> {
    fn new(config: &'a Config) -> Result<Self, Error> {
        let it = Attachment::new(&config.name, &variable("CNI_CONTAINERID")?, &variable("CNI_IFNAME")?)?;
        Self::about(config, it)
    }

    fn about(config: &'a Config, it: Attachment) -> Result<Self, Error> {
        let ipam = config.ipam.as_deref().map(|name| Delegate::find(name, config)).transpose()?;
        Ok(Self { config, it, records: Records::new(config.data_dir.clone()), ipam })
    }

    fn interface(&self) -> &str {
        self.config.interface.as_deref().unwrap_or(&self.it.ifname)
    }

    fn addresses(&self, command: &str) -> Result<Option<Vec<u8>>, Error> {
        let of = Some((self.it.container.as_str(), self.interface()));
        self.ipam.as_ref().map(|ipam| ipam.call(command, of)).transpose()
    }

    /// Removes everything that belongs to the attachment. The record goes last: until then, a later call can
    /// find what is left.
    fn clear(&self) -> Result<(), Error> {
        detach(&self.config.run_dir, &self.records, &self.it)?;
        self.addresses("DEL")?;
        self.records.remove(&self.it)
    }
}

pub(super) fn add(config: &Config) -> Result<Value, Error> {
    let call = Call::new(config)?;
    let path = variable("CNI_NETNS")?;
    let netns = Netns::open(Path::new(&path))?;
    let previous = config.previous.as_ref().map(Outcome::previous).transpose()?.unwrap_or_default();
    check_free(&call.records, &call.it, &netns, call.interface())?;
    let mut daemon = Daemon::connect(&config.run_dir)?;
    // An interrupted call may have left something; so may a container from before the host's last start.
    if call.records.has(&call.it) || daemon.guest(&call.it.guest())?.is_some() {
        call.clear()?;
    }
    call.records.begin(&call.it)?;
    match plug(&call, &mut daemon, &netns) {
        Ok((interface, ours)) => {
            let mut outcome = previous;
            outcome.push(config.version, interface, ours);
            serde_json::to_value(outcome).map_err(|e| Error::Decode("the result", e))
        }
        Err(e) => Err(e.and(call.clear())),
    }
}

/// Gets addresses, and plugs in the interface. Returns our part of the result.
fn plug(call: &Call<'_>, daemon: &mut Daemon, netns: &Netns) -> Result<(Interface, Outcome), Error> {
    let config = call.config;
    let mut ours = match call.addresses("ADD")? {
        Some(printed) => Outcome::read("the result of ipam", &printed)?,
        None => Outcome::default(),
    };
    if let Some(dns) = config.dns.as_ref().filter(|_| is_empty(&ours.dns)) {
        ours.dns.clone_from(dns);
    }
    let interface = interface::Interface {
        name: call.interface().to_owned(),
        addresses: ours.ips.iter().map(|ip| ip.address).collect(),
        routes: ours.whole_routes(),
    };
    let mut guest = config.guest.clone();
    guest.mac = config.mac.clone().or_else(mac_argument);
    let link = attach(daemon, &call.records, &call.it, netns, guest, interface)?;
    let interface = Interface {
        name: call.interface().to_owned(),
        mac: link.mac,
        mtu: (config.version >= Version::V1_1).then_some(link.mtu),
        sandbox: netns.path().display().to_string(),
        other: Map::new(),
    };
    Ok((interface, ours))
}

/// Detaches the container. It is no error if parts are gone already.
pub(super) fn del(config: &Config) -> Result<(), Error> {
    Call::new(config)?.clear()
}

/// Checks that the container is attached as `prevResult` says.
pub(super) fn check(config: &Config) -> Result<(), Error> {
    let call = Call::new(config)?;
    let netns = Netns::open(Path::new(&variable("CNI_NETNS")?))?;
    let previous =
        config.previous.as_ref().ok_or_else(|| Error::Config("prevResult is missing".to_owned()))?;
    let previous = Outcome::previous(previous)?;
    let name = call.interface();
    let ours = previous.interfaces.iter().position(|one| one.name == name && !one.sandbox.is_empty());
    let ours =
        ours.ok_or_else(|| Error::Config(format!("prevResult: there is no interface {name} in a sandbox")))?;
    let addresses =
        previous.ips.iter().filter(|ip| ip.interface == Some(ours)).map(|ip| ip.address).collect();
    let interface =
        interface::Interface { name: name.to_owned(), addresses, routes: previous.whole_routes() };
    let mut daemon = Daemon::connect(&config.run_dir)?;
    check_guest(&mut daemon, &call, &interface)?;
    interface::check(&netns, &interface, &previous.interfaces[ours].mac)?;
    daemon.is_up(&call.it.guest())?;
    call.addresses("CHECK").map(drop)
}

/// Checks that the daemon has the guest as it was added.
fn check_guest(daemon: &mut Daemon, call: &Call<'_>, interface: &interface::Interface) -> Result<(), Error> {
    let name = call.it.guest();
    let broken = |what: String| Error::Broken(format!("viaductd's guest {name}: {what}"));
    let guest = daemon.guest(&name)?.ok_or_else(|| broken("it is gone".to_owned()))?;
    if guest.network != call.config.guest.network {
        return Err(broken(format!("its network is {}, not {}", guest.network, call.config.guest.network)));
    }
    let missing = interface.addresses.iter().find(|net| !guest.addresses.contains(&net.addr().to_string()));
    missing.map_or(Ok(()), |net| Err(broken(format!("it has no address {}", net.addr()))))
}

/// Checks that containers can be attached.
pub(super) fn status(config: &Config) -> Result<(), Error> {
    let network = &config.guest.network;
    if Daemon::connect(&config.run_dir)?.network(network)?.is_none() {
        return Err(Error::Refused(format!("there is no network \"{network}\"")));
    }
    let ipam = config.ipam.as_deref().map(|name| Delegate::find(name, config)).transpose()?;
    ipam.map_or(Ok(()), |ipam| ipam.call("STATUS", None).map(drop))
}

/// Removes what is left of attachments to this network that the runtime does not know. Goes on after errors. A runtime
/// that names none, not even by an empty list, is wrong: everything would go.
pub(super) fn gc(config: &Config) -> Result<(), Error> {
    let valid = config.valid.as_deref().ok_or_else(|| {
        Error::Config("cni.dev/valid-attachments is missing: it names the attachments to keep".to_owned())
    })?;
    let known = |it: &Attachment| {
        valid.iter().any(|valid| (&valid.container, &valid.ifname) == (&it.container, &it.ifname))
    };
    let mut errors = Vec::new();
    for it in Records::new(config.data_dir.clone()).of(&config.name)?.into_iter().filter(|it| !known(it)) {
        errors.extend(Call::about(config, it).and_then(|call| call.clear()).err());
    }
    let ipam = config.ipam.as_deref().map(|name| Delegate::find(name, config)).transpose()?;
    errors.extend(ipam.and_then(|ipam| ipam.call("GC", None).err()));
    Error::all(errors)
}

/// Returns the MAC that the runtime asks for in `CNI_ARGS`, the old way.
fn mac_argument() -> Option<String> {
    let arguments = std::env::var("CNI_ARGS").ok()?;
    let mac = arguments.split(';').find_map(|argument| argument.strip_prefix("MAC="))?;
    Some(mac.to_owned()).filter(|mac| !mac.is_empty())
}

fn is_empty(dns: &Value) -> bool {
    dns.as_object().is_none_or(Map::is_empty)
}

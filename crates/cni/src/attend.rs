//! Attaches and detaches containers, and returns their taps after the daemon's restart.

use crate::attachment::Attachment;
use crate::daemon::Daemon;
use crate::error::Error;
use crate::interface::{self, Interface, Link};
use crate::netns::Netns;
use crate::records::{Record, Records};
use api::v1;
use serde_json::{Map, Value};
use std::path::Path;

/// Keys of `[[guest]]` that a runtime's network may set for all its containers.
const KEYS: [&str; 9] =
    ["allowed", "dhcp_server", "dscp", "mirror", "policy", "queues", "rate", "router", "shape"];

/// Returns the keys that all guests of a runtime's network have in common.
///
/// # Errors
/// [`Error::Config`] names the key that is wrong.
pub(crate) fn template(
    network: &str,
    mtu: Option<u32>,
    keys: &Map<String, Value>,
) -> Result<v1::Guest, Error> {
    if let Some(key) = keys.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(Error::Config(format!(
            "guest: the key \"{key}\" can't be set here; use {}",
            KEYS.join(", ")
        )));
    }
    let guest: v1::Guest = serde_json::from_value(Value::Object(keys.clone()))
        .map_err(|e| Error::Config(format!("guest: {e}")))?;
    Ok(v1::Guest { network: network.to_owned(), kind: "tap".to_owned(), mtu, ..guest })
}

/// Checks that the container has no interface of this name. An interface that an interrupted call left does
/// not count.
///
/// # Errors
/// [`Error::Config`].
pub(crate) fn check_free(records: &Records, it: &Attachment, netns: &Netns, name: &str) -> Result<(), Error> {
    let interrupted = records.has(it) && records.read(it).is_none();
    if interrupted || !interface::exists(netns, name)? {
        return Ok(());
    }
    Err(Error::Config(format!("{name}: the container has an interface of this name already")))
}

/// Adds the guest and plugs its tap into the container. After a failure, [`detach`] removes the parts that were made.
///
/// `guest` has the keys from [`template`], and its MAC if it is given one.
pub(crate) fn attach(
    daemon: &mut Daemon,
    records: &Records,
    it: &Attachment,
    netns: &Netns,
    guest: v1::Guest,
    interface: Interface,
) -> Result<Link, Error> {
    let guest = v1::Guest {
        name: it.guest(),
        device: Some(it.device()),
        mac: Some(guest.mac.unwrap_or_else(|| it.mac())),
        addresses: interface.addresses.iter().map(|net| net.addr().to_string()).collect(),
        ..guest
    };
    daemon.add(guest)?;
    let link = interface::plug(&it.device(), netns, &interface)?;
    records.complete(it, &Record { netns: netns.path().to_owned(), inode: netns.inode, interface })?;
    Ok(link)
}

/// Removes the guest, and its tap with it. It is no error if they do not exist.
///
/// A daemon that does not run is an error only if the guest may be in the daemon's store.
pub(crate) fn detach(run_dir: &Path, records: &Records, it: &Attachment) -> Result<(), Error> {
    match Daemon::connect(run_dir).and_then(|mut daemon| daemon.remove(&it.guest())) {
        Err(Error::NoDaemon(_)) if !records.has(it) => Ok(()),
        other => other,
    }
}

/// Plugs the taps into their containers again, after the daemon's restart made new ones. Returns how many.
///
/// # Errors
/// All that occurred; the other taps are plugged in nevertheless.
pub(crate) fn restore(records: &Records) -> Result<usize, Error> {
    let (mut restored, mut errors) = (0, Vec::new());
    for it in records.all()? {
        match restore_one(records, &it) {
            Ok(true) => restored += 1,
            Ok(false) => {}
            Err(e) => errors.push(e),
        }
    }
    Error::all(errors).map(|()| restored)
}

/// Plugs in one tap, if its container still exists and the tap is on the host. Returns whether it did.
fn restore_one(records: &Records, it: &Attachment) -> Result<bool, Error> {
    let Some(record) = records.read(it) else { return Ok(false) };
    // A container that is gone is its runtime's affair.
    let Ok(netns) = Netns::open(&record.netns) else { return Ok(false) };
    if netns.inode != record.inode || !interface::on_host_exists(&it.device())? {
        return Ok(false);
    }
    interface::plug(&it.device(), &netns, &record.interface).map(|_| true)
}

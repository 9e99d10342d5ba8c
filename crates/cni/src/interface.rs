//! A container's interface: a tap is moved into its namespace and configured there, through rtnetlink.

use crate::error::Error;
use crate::netns::{Netns, on_host};
use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteScope};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

/// The properties that an interface gets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Interface {
    /// The interface's name in the container.
    pub name: String,
    pub addresses: Vec<IpNet>,
    pub routes: Vec<Route>,
}

/// A route in CNI's form (1.1.0, section 5).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Route {
    pub dst: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
    /// All other keys.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The kernel's view of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    index: u32,
    /// In the form `02:00:00:00:00:01`.
    pub mac: String,
    /// Bytes.
    pub mtu: u32,
    up: bool,
}

/// Moves the tap `device` into the container, and configures it.
///
/// # Errors
/// [`Error::Kernel`]. The device may then be in the container; it goes when its guest is removed.
pub(crate) fn plug(device: &str, netns: &Netns, interface: &Interface) -> Result<Link, Error> {
    on_host(async |handle| {
        let link = link(&handle, device).await?;
        let link = link.ok_or_else(|| kernel(device, "the daemon's tap is not in this network namespace"))?;
        let message = LinkUnspec::new_with_index(link.index).name(&interface.name);
        let message = message.setns_by_fd(netns.as_fd().as_raw_fd()).build();
        let moved = handle.link().set(message).execute().await;
        moved.map_err(|e| kernel(&format!("moving {device} into the container as {}", interface.name), e))
    })?;
    netns.work(async |handle| configure(&handle, interface).await)
}

async fn configure(handle: &Handle, interface: &Interface) -> Result<Link, Error> {
    let Interface { name, addresses, routes } = interface;
    let found = link(handle, name).await?.ok_or_else(|| kernel(name, "it is gone"))?;
    if addresses.iter().any(|address| address.addr().is_ipv6()) {
        // Runtimes switch IPv6 off in containers that have no other IPv6. A kernel without IPv6 has no such
        // file.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "0");
    }
    for address in addresses {
        let mut request = handle.address().add(found.index, address.addr(), address.prefix_len());
        // No duplicates are possible: the daemon drops packets that others send from this address.
        request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        request.execute().await.map_err(|e| kernel(&format!("address {address} of {name}"), e))?;
    }
    let up = LinkUnspec::new_with_index(found.index).up().build();
    handle.link().set(up).execute().await.map_err(|e| kernel(&format!("setting {name} up"), e))?;
    for route in routes {
        let message = route.message(found.index).map_err(|e| kernel(&format!("route {}", route.dst), e))?;
        let added = handle.route().add(message).execute().await;
        added.map_err(|e| kernel(&format!("route to {} by {name}", route.dst), e))?;
    }
    Ok(found)
}

impl Route {
    fn message(&self, link: u32) -> Result<RouteMessage, String> {
        let mut builder = RouteMessageBuilder::<IpAddr>::new().output_interface(link);
        let set = builder.destination_prefix(self.dst.network(), self.dst.prefix_len());
        builder = set.map_err(|e| e.to_string())?;
        if let Some(priority) = self.priority {
            builder = builder.priority(priority);
        }
        if let Some(table) = self.table {
            builder = builder.table_id(table);
        }
        if let Some(gateway) = self.gw {
            builder = builder.gateway(gateway).map_err(|e| e.to_string())?;
        }
        let scope = self.scope.map(RouteScope::from).or(self.gw.is_none().then_some(RouteScope::Link));
        if let Some(scope) = scope {
            builder = builder.scope(scope);
        }
        let metrics = [self.mtu.map(RouteMetric::Mtu), self.advmss.map(RouteMetric::Advmss)];
        let metrics: Vec<RouteMetric> = metrics.into_iter().flatten().collect();
        if !metrics.is_empty() {
            builder.get_mut().attributes.push(RouteAttribute::Metrics(metrics));
        }
        Ok(builder.build())
    }
}

pub(crate) fn exists(netns: &Netns, name: &str) -> Result<bool, Error> {
    netns.work(async |handle| Ok(link(&handle, name).await?.is_some()))
}

pub(crate) fn on_host_exists(name: &str) -> Result<bool, Error> {
    on_host(async |handle| Ok(link(&handle, name).await?.is_some()))
}

/// Checks that the interface is up, and has this MAC, these addresses and at least these routes.
///
/// # Errors
/// [`Error::Broken`] names what is missing.
pub(crate) fn check(netns: &Netns, interface: &Interface, mac: &str) -> Result<(), Error> {
    netns.work(async |handle| {
        let Interface { name, addresses, routes } = interface;
        let broken = |what: String| Error::Broken(format!("interface {name}: {what}"));
        let found = link(&handle, name).await?.ok_or_else(|| broken("it is gone".to_owned()))?;
        if !found.mac.eq_ignore_ascii_case(mac) {
            return Err(broken(format!("its MAC is {}, not {mac}", found.mac)));
        }
        if !found.up {
            return Err(broken("it is down".to_owned()));
        }
        let has = addresses_of(&handle, found.index).await?;
        if let Some(missing) = addresses.iter().find(|address| !has.contains(address)) {
            return Err(broken(format!("address {missing} is missing")));
        }
        for route in routes.iter().filter(|route| route.table.is_none()) {
            let has = destinations(&handle, route.dst.addr().is_ipv6()).await?;
            if !has.contains(&route.dst.trunc()) {
                return Err(broken(format!("route to {} is missing", route.dst)));
            }
        }
        Ok(())
    })
}

async fn link(handle: &Handle, name: &str) -> Result<Option<Link>, Error> {
    match handle.link().get().match_name(name).execute().try_next().await {
        Ok(message) => Ok(message.map(|message| describe(&message))),
        Err(rtnetlink::Error::NetlinkError(e))
            if e.raw_code() == -rustix::io::Errno::NODEV.raw_os_error() =>
        {
            Ok(None)
        }
        Err(e) => Err(kernel(&format!("looking for {name}"), e)),
    }
}

fn describe(message: &LinkMessage) -> Link {
    let up = message.header.flags.contains(LinkFlags::Up);
    let mut link = Link { index: message.header.index, mac: String::new(), mtu: 0, up };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(mac) => {
                link.mac = mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
            }
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            _ => {}
        }
    }
    link
}

async fn addresses_of(handle: &Handle, index: u32) -> Result<Vec<IpNet>, Error> {
    let mut addresses = handle.address().get().set_link_index_filter(index).execute();
    let mut found = Vec::new();
    while let Some(message) = addresses.try_next().await.map_err(|e| kernel("listing addresses", e))? {
        let length = message.header.prefix_len;
        found.extend(message.attributes.iter().filter_map(|attribute| match attribute {
            AddressAttribute::Address(address) => IpNet::new(*address, length).ok(),
            _ => None,
        }));
    }
    Ok(found)
}

/// Returns the destinations in the main table.
async fn destinations(handle: &Handle, ipv6: bool) -> Result<Vec<IpNet>, Error> {
    let default: IpAddr = if ipv6 { [0; 16].into() } else { [0; 4].into() };
    let message = match default {
        IpAddr::V4(_) => RouteMessageBuilder::<Ipv4Addr>::new().build(),
        IpAddr::V6(_) => RouteMessageBuilder::<Ipv6Addr>::new().build(),
    };
    let mut routes = handle.route().get(message).execute();
    let mut found = Vec::new();
    while let Some(route) = routes.try_next().await.map_err(|e| kernel("listing routes", e))? {
        let destination = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
            RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
            _ => None,
        });
        let destination = destination.unwrap_or(default);
        found.extend(IpNet::new(destination, route.header.destination_prefix_length));
    }
    Ok(found)
}

fn kernel(what: &str, why: impl ToString) -> Error {
    Error::Kernel(what.to_owned(), why.to_string())
}

//! State of a guest, on its way from one host to another: connections, learned MACs, and what it leased.
//!
//! Policers are left out: a migration takes longer than their buckets take to fill. Floating addresses have
//! no state besides connections, which are remembered by their inside addresses.

use super::Service;
use crate::core::{Core, View};
use crate::history::Author;
use crate::leases::{self, Brought};
use api::v1::{self, GuestConnection, GuestLease, GuestMac, GuestState, GuestTcp, GuestTcpSide};
use config::{Guest, Key, Kind, Lease, Object};
use executor::{Counters, FlowInfo};
use ipnet::IpNet;
use model::tcp::{Edge, UNSCALED};
use model::{BridgeTarget, Connection, Endpoint, FlowKey, FlowState, Learn, Seconds, Tcp, VifId, Vrf};
use packet::{Mac, proto};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::channel;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// The format that this daemon writes, and the only one that it reads.
const VERSION: u32 = 1;
/// Connections per part.
const PART: usize = 1000;
/// Most connections of an import: as many as a guest may have.
const MOST_CONNECTIONS: usize = 1 << 20;
/// Most MACs of an import: as many as are learned behind one interface.
const MOST_MACS: usize = 4096;

/// How often we look whether a guest has stopped: nobody carries its packets meanwhile.
const LOOK: Duration = Duration::from_millis(5);

/// The place of a guest in a network: its addresses, also leased ones, and the prefixes for which it forwards. A guest
/// without addresses may use any.
struct Place {
    vrf: Vrf,
    addresses: Vec<IpAddr>,
    allowed: Vec<IpNet>,
}

impl Place {
    fn has(&self, end: &Endpoint) -> bool {
        let is_its = self.addresses.is_empty()
            || self.addresses.contains(&end.addr)
            || self.allowed.iter().any(|net| net.contains(&end.addr));
        end.vrf == self.vrf && is_its
    }
}

/// The guest whose state is exported or imported.
struct Subject {
    vif: VifId,
    /// The guest's place in its own network, then those of its VLANs.
    places: Vec<Place>,
    /// Addresses that it brings into its own network.
    brought: Vec<IpAddr>,
    /// The source MACs that the guest may use.
    mac: Option<Mac>,
    macs: Vec<Mac>,
}

impl Subject {
    fn of(view: &View, guest: &Guest) -> Result<Self, Status> {
        let vrf = |network: &str| view.network(network).map(|network| network.vrf);
        let place = |network: &str, addresses: &[IpAddr], allowed: &[IpNet]| {
            let (addresses, allowed) = (addresses.to_vec(), allowed.to_vec());
            Some(Place { vrf: vrf(network)?, addresses, allowed })
        };
        let lease = lease_of(view, &guest.name);
        let leased = lease.map_or(&[][..], |lease| &lease.addresses);
        let own = place(&guest.network, &[&guest.addresses, leased].concat(), &guest.allowed);
        let vlans = guest.vlans.iter().map(|vlan| place(&vlan.network, &vlan.addresses, &vlan.allowed));
        let vif = view.ids.vif(&guest.name).ok_or_else(|| missing(&guest.name))?;
        let places = own.into_iter().chain(vlans.flatten()).collect();
        Ok(Self { vif, places, brought: Vec::new(), mac: guest.mac, macs: guest.macs.clone() })
    }

    fn has(&self, end: &Endpoint) -> bool {
        let is_own = |own: &Place| own.vrf == end.vrf && self.brought.contains(&end.addr);
        self.has_here(end) || self.places.first().is_some_and(is_own)
    }

    fn has_here(&self, end: &Endpoint) -> bool {
        self.places.iter().any(|place| place.has(end))
    }

    /// Is true if a connection belongs to the guest. One of its ends must be the guest's. If the guest has no
    /// addresses in some network, the connection must also have been charged to the guest.
    fn takes_part(&self, flow: &FlowInfo) -> bool {
        let tells = self.places.iter().all(|place| !place.addresses.is_empty());
        (tells || flow.charged.0 == self.vif) && (self.has(&flow.key.src) || self.has(&flow.key.dst))
    }
}

fn missing(name: &str) -> Status {
    super::missing(format!("there is no guest \"{name}\""))
}

fn guest_of<'a>(view: &'a View, name: &str) -> Result<&'a Guest, Status> {
    let key = Key { kind: Kind::Guest, network: None, name: name.to_owned() };
    match view.objects.other(&key).map(|owned| &owned.object) {
        Some(Object::Guest(guest)) => Ok(guest),
        _ => Err(missing(name)),
    }
}

/// Returns what a guest leased.
fn lease_of<'a>(view: &'a View, guest: &str) -> Option<&'a Lease> {
    let key = Key { kind: Kind::Guest, network: None, name: guest.to_owned() };
    leases::of(&view.objects, &view.objects.other(&key)?.object)
}

/// Checks that no program of the guest uses a verbs device, because programs can't move, unless the guest's
/// programs may lose the device.
fn check_verbs(core: &Core, guest: &Guest) -> Result<(), Status> {
    if guest.window().is_some_and(|window| window.migrates) {
        return Ok(());
    }
    let programs = |verbs: &config::Verbs| {
        let devices = core.ports().rdma();
        devices.iter().filter(|device| device.name == verbs.name).map(|device| device.clients.len()).sum()
    };
    match guest.verbs.as_ref().map_or(0, programs) {
        0 => Ok(()),
        n => Err(Status::failed_precondition(format!(
            "{n} programs use the verbs device of guest \"{}\", and their queue pairs and memory can't move; end them \
             first (`viaduct rdma` lists them)",
            guest.name
        ))),
    }
}

/// Collects the state of a guest, in parts.
pub(super) fn export(core: &Core, name: &str) -> Result<Vec<GuestState>, Status> {
    let view = core.view();
    let guest = guest_of(&view, name)?;
    check_verbs(core, guest)?;
    let subject = Subject::of(&view, guest)?;
    let mut connections = Vec::new();
    view.executor.settle();
    view.executor.flows(&mut |flow| {
        if subject.takes_part(&flow) {
            connections.push(connection(&view, &flow, subject.has(&flow.key.src)));
        }
        true
    });
    let learned = view.executor.learned().into_iter();
    let learned = learned.filter(|learned| learned.target == BridgeTarget::Vif(subject.vif));
    let mac =
        |of: executor::LearnedMac| GuestMac { network: view.network_name(of.vrf), mac: of.mac.to_string() };
    let first = GuestState {
        version: VERSION,
        guest: name.to_owned(),
        macs: learned.map(mac).collect(),
        lease: lease_of(&view, name).map(|lease| GuestLease {
            network: lease.network.clone(),
            mac: lease.mac.map(|mac| mac.to_string()),
            addresses: lease.addresses.iter().map(ToString::to_string).collect(),
        }),
        ..GuestState::default()
    };
    let part = |of: &[GuestConnection]| GuestState { connections: of.to_vec(), ..GuestState::default() };
    Ok(std::iter::once(first).chain(connections.chunks(PART).map(part)).collect())
}

/// Exports the state once the guest's VMM has stopped the queues or is gone, unless the client leaves before.
pub(super) fn export_when_stopped(of: Service, name: String) -> ReceiverStream<Result<GuestState, Status>> {
    let (to, parts) = channel(1);
    tokio::spawn(async move {
        while of.view().port(&name).up {
            if to.is_closed() {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
        let exported = of.blocking(move |core| export(core, &name)).await;
        let parts = exported.map_or_else(|e| vec![Err(e)], |parts| parts.into_iter().map(Ok).collect());
        for part in parts {
            if to.send(part).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(parts)
}

fn connection(view: &View, flow: &FlowInfo, opened: bool) -> GuestConnection {
    let FlowKey { src, dst, protocol } = flow.key;
    GuestConnection {
        network: view.network_name(src.vrf),
        source: src.addr.to_string(),
        source_port: src.port.into(),
        destination_network: view.network_name(dst.vrf),
        destination: dst.addr.to_string(),
        destination_port: dst.port.into(),
        protocol: protocol.into(),
        state: flow.state.to_string(),
        seen: flow.seen.into(),
        tcp: (protocol == proto::TCP).then(|| tcp(&flow.tcp)),
        packets: flow.forward.packets,
        bytes: flow.forward.bytes,
        reply_packets: flow.reply.packets,
        reply_bytes: flow.reply.bytes,
        age: flow.age,
        idle: flow.idle,
        approximate: flow.approximate,
        opened,
    }
}

fn tcp(of: &Tcp) -> GuestTcp {
    let side = |i: usize| GuestTcpSide {
        end: of.edges[i].map(|edge| edge.end),
        ack: of.edges[i].and_then(|edge| edge.ack),
        window: of.windows[i].into(),
        scale: of.scales[i].into(),
    };
    GuestTcp { opener: Some(side(0)), answerer: Some(side(1)), reopen: of.reopen, liberal: of.liberal }
}

/// An import on its way. Nothing is entered before all of it was checked.
pub(super) struct Import {
    view: Arc<View>,
    of: Option<(String, Subject)>,
    flows: Vec<FlowInfo>,
    macs: Vec<(Learn, Seconds)>,
    lease: Option<Brought>,
    /// Number of entries that do not fit this host, by reason.
    left_out: BTreeMap<String, u64>,
    /// Entries read so far.
    read: [usize; 2],
}

impl Import {
    pub(super) fn new(view: Arc<View>) -> Self {
        let (flows, macs, left_out) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { view, of: None, flows, macs, lease: None, left_out, read: [0; 2] }
    }

    /// Reads and checks a part.
    ///
    /// # Errors
    /// What is wrong with the part, and in which entry.
    pub(super) fn take(&mut self, part: GuestState) -> Result<(), Status> {
        let (name, subject) = match self.of.take() {
            Some(of) => of,
            None => self.begin(&part)?,
        };
        for of in &part.connections {
            let n = self.count(0, MOST_CONNECTIONS, "connections")?;
            let flow =
                self.flow(&subject, of).map_err(|why| super::invalid(format!("connection {n}: {why}")))?;
            self.flows.extend(flow);
        }
        for of in &part.macs {
            let n = self.count(1, MOST_MACS, "MACs")?;
            let learn = self.learn(&subject, of).map_err(|why| super::invalid(format!("MAC {n}: {why}")))?;
            self.macs.extend(learn.map(|learn| (learn, 0)));
        }
        self.of = Some((name, subject));
        Ok(())
    }

    fn begin(&mut self, part: &GuestState) -> Result<(String, Subject), Status> {
        if part.version != VERSION {
            let text = format!("a guest's state of version {}; this daemon reads {VERSION}", part.version);
            return Err(super::invalid(text));
        }
        let view = self.view.clone();
        let guest = guest_of(&view, &part.guest)?;
        let mut subject = Subject::of(&view, guest)?;
        if let Some(of) = &part.lease {
            let brought = read_lease(of).map_err(|why| super::invalid(format!("lease: {why}")))?;
            if of.network != guest.network {
                self.leave_out("its lease is of a network that the guest is not in here", 1);
            } else if !brought.addresses.iter().all(|addr| guest.addresses.contains(addr)) {
                subject.brought.clone_from(&brought.addresses);
                self.lease = Some(brought);
            }
        }
        Ok((part.guest.clone(), subject))
    }

    /// Counts an entry of the import, and returns its number.
    fn count(&mut self, kind: usize, most: usize, what: &str) -> Result<usize, Status> {
        self.read[kind] += 1;
        match self.read[kind] {
            n if n <= most => Ok(n),
            _ => Err(super::invalid(format!("more than {most} {what}; a guest has fewer"))),
        }
    }

    /// Finds the network of this name. If there is none, counts the entry as left out.
    fn network(&mut self, name: &str) -> Option<Vrf> {
        let found = self.view.network(name).map(|network| network.vrf);
        if found.is_none() {
            // The reason does not name the network, so unknown names can't fill the memory.
            self.leave_out("its network is not on this host", 1);
        }
        found
    }

    fn leave_out(&mut self, reason: &str, entries: usize) {
        *self.left_out.entry(reason.to_owned()).or_default() += entries as u64;
    }

    fn flow(&mut self, subject: &Subject, of: &GuestConnection) -> Result<Option<FlowInfo>, String> {
        let (Some(src_vrf), Some(dst_vrf)) =
            (self.network(&of.network), self.network(&of.destination_network))
        else {
            return Ok(None);
        };
        let src = Endpoint { vrf: src_vrf, addr: address(&of.source)?, port: small(of.source_port, "port")? };
        let dst = Endpoint {
            vrf: dst_vrf,
            addr: address(&of.destination)?,
            port: small(of.destination_port, "port")?,
        };
        if src.addr.is_ipv4() != dst.addr.is_ipv4() {
            return Err("its addresses are of different families".to_owned());
        }
        let protocol = u8::try_from(of.protocol).map_err(|_| format!("{} is no protocol", of.protocol))?;
        let opener = if of.opened { &src } else { &dst };
        if !subject.has(opener) {
            return Err(format!("{} is not the guest's address", opener.addr));
        }
        let seen = u8::try_from(of.seen).ok().filter(|seen| seen & !SEEN == 0);
        let tcp = match &of.tcp {
            Some(of) if protocol == proto::TCP => read_tcp(of)?,
            None if protocol != proto::TCP => Tcp::default(),
            _ => return Err("sequence numbers are of TCP, and of each connection of TCP".to_owned()),
        };
        Ok(Some(FlowInfo {
            key: FlowKey { src, dst, protocol },
            state: state(&of.state)?,
            rule: None,
            forward: Counters { packets: of.packets, bytes: of.bytes },
            reply: Counters { packets: of.reply_packets, bytes: of.reply_bytes },
            approximate: of.approximate,
            age: of.age.max(of.idle),
            idle: of.idle,
            seen: seen.ok_or_else(|| format!("{} is no set of what is seen", of.seen))?,
            tcp,
            // A port outside is of the host that the guest comes from.
            binding: None,
            charged: (subject.vif, !of.opened),
        }))
    }

    fn learn(&mut self, subject: &Subject, of: &GuestMac) -> Result<Option<Learn>, String> {
        let Some(vrf) = self.network(&of.network) else { return Ok(None) };
        let mac: Mac = of.mac.parse().map_err(|_| format!("{:?} is no MAC", of.mac))?;
        let is_its = subject.places.iter().any(|place| place.vrf == vrf)
            && (subject.mac.is_none() || subject.mac == Some(mac) || subject.macs.contains(&mac));
        if !is_its || mac.is_group() || mac.is_zero() || mac == model::GATEWAY_MAC {
            return Err(format!("{mac} is not the guest's"));
        }
        Ok(Some(Learn { vrf, mac, at: BridgeTarget::Vif(subject.vif) }))
    }

    /// Gives the guest the addresses that it brings, and returns them. If it can't have them here, it asks anew, and
    /// its connections by them are left out.
    fn bring(&mut self, core: &Core, by: Author, name: &str, subject: &Subject) -> Vec<IpAddr> {
        let Some(brought) = self.lease.take() else { return Vec::new() };
        let addresses = brought.addresses.clone();
        let Err(e) = core.bring_lease(by, name, &brought) else { return addresses };
        let why: Vec<String> = e.to_string().lines().map(str::to_owned).collect();
        self.leave_out(&format!("its lease: {}", why.join("; ")), 1);
        let before = self.flows.len();
        self.flows.retain(|flow| {
            let FlowKey { src, dst, .. } = &flow.key;
            subject.has_here(if flow.charged.1 { dst } else { src })
        });
        self.leave_out("by an address that the guest does not have here", before - self.flows.len());
        Vec::new()
    }

    /// Enters the whole import; returns the guest's name and what was done.
    ///
    /// # Errors
    /// Nothing was read.
    pub(super) fn finish(
        mut self,
        core: &Core,
        by: Author,
    ) -> Result<(String, v1::ImportGuestReply), Status> {
        let Some((name, subject)) = self.of.take() else {
            return Err(super::invalid("there is no guest's state in it"));
        };
        let addresses = self.bring(core, by, &name, &subject);
        let addresses = addresses.iter().map(ToString::to_string).collect();
        let executor = &self.view.executor;
        let (flows, macs) = (executor.enter_flows(&self.flows), executor.enter_learned(&self.macs));
        let known = self.flows.len() - flows + self.macs.len() - macs;
        self.leave_out("known here already, timed out, or beyond the guest's share", known);
        let left_out = self.left_out.into_iter().filter(|(_, count)| *count > 0);
        let left_out = left_out.map(|(reason, count)| v1::LeftOut { reason, count }).collect();
        let (connections, macs) = (flows as u64, macs as u64);
        Ok((name, v1::ImportGuestReply { connections, macs, left_out, addresses }))
    }
}

fn read_lease(of: &GuestLease) -> Result<Brought, String> {
    let addresses: Vec<IpAddr> = of.addresses.iter().map(|addr| address(addr)).collect::<Result<_, _>>()?;
    match &addresses[..] {
        [_] => {}
        [one, other] if one.is_ipv4() != other.is_ipv4() => {}
        _ => return Err("a lease has one address, or one of each family".to_owned()),
    }
    let mac = |text: &String| {
        let mac: Mac = text.parse().map_err(|_| format!("{text:?} is no MAC"))?;
        match mac.is_group() || mac.is_zero() || mac == model::GATEWAY_MAC {
            true => Err(format!("{mac} is no guest's MAC")),
            false => Ok(mac),
        }
    };
    Ok(Brought { network: of.network.clone(), mac: of.mac.as_ref().map(mac).transpose()?, addresses })
}

const SEEN: u8 = Connection::FIN | Connection::REPLY_FIN | Connection::BOTH_WAYS;

fn address(text: &str) -> Result<IpAddr, String> {
    let addr: IpAddr = text.parse().map_err(|_| format!("{text:?} is no address"))?;
    match addr.is_multicast() || addr.is_unspecified() {
        true => Err(format!("{addr} is no address of a connection")),
        false => Ok(addr),
    }
}

fn small(number: u32, what: &str) -> Result<u16, String> {
    u16::try_from(number).map_err(|_| format!("{number} is no {what}"))
}

fn state(text: &str) -> Result<FlowState, String> {
    let all = [FlowState::New, FlowState::Established, FlowState::Closing, FlowState::Closed];
    all.into_iter().find(|state| state.to_string() == text).ok_or_else(|| format!("{text:?} is no state"))
}

fn read_tcp(of: &GuestTcp) -> Result<Tcp, String> {
    let mut tcp = Tcp { reopen: of.reopen, liberal: of.liberal, ..Tcp::default() };
    for (i, side) in [of.opener, of.answerer].into_iter().enumerate() {
        let side = side.ok_or("a side of TCP is missing")?;
        if side.end.is_none() && side.ack.is_some() {
            return Err("a side of TCP acknowledged and did not send".to_owned());
        }
        tcp.edges[i] = side.end.map(|end| Edge { end, ack: side.ack });
        tcp.windows[i] = small(side.window, "window")?;
        let scale = u8::try_from(side.scale).ok().filter(|scale| *scale <= UNSCALED);
        tcp.scales[i] = scale.ok_or_else(|| format!("{} is no shift of windows", side.scale))?;
    }
    Ok(tcp)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

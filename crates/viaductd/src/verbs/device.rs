//! One device: what the control plane wants, in the words of the adapter, and what that says, in the API's.

use super::AnyError;
use api::v1::{RdmaCm, RdmaCounter, RdmaCq, RdmaDevice, RdmaHolder, RdmaMr, RdmaQp, RdmaReply, RdmaTable};
use control::RdmaSpec;
use hca::{
    Answers, ClientDescription, CmDescription, DeviceSpec, Fabric, HolderDescription, Limits, QpDescription,
    Rate,
};
use rdmaport::{Downlink, Uplink};
use sockets::{Place, Sockets};
use std::net::Ipv6Addr;
use std::sync::Arc;

/// A verbs device.
pub struct Device {
    adapter: hca::Device,
}

impl Device {
    /// Opens it, for this user and group.
    ///
    /// # Errors
    /// Where its socket can't be made.
    pub fn open(
        spec: &RdmaSpec,
        owner: Option<(u32, u32)>,
        (fabric, sockets): (&Arc<Fabric>, &dyn Sockets),
        port: (Uplink, Downlink),
    ) -> Result<Self, AnyError> {
        let socket = Place { path: spec.socket.clone(), owner, mode: spec.mode };
        Ok(Self { adapter: hca::Device::open(adapter_spec(spec), (&socket, sockets), fabric, port)? })
    }

    /// Makes it be another.
    ///
    /// # Errors
    /// Where its socket can't be given to its new owner.
    pub fn update(&self, spec: &RdmaSpec, owner: Option<(u32, u32)>) -> Result<(), AnyError> {
        self.adapter.give_to(owner, spec.mode)?;
        self.adapter.update(adapter_spec(spec));
        Ok(())
    }

    /// The number of its interface.
    pub fn set_port(&self, port: u16) {
        self.adapter.set_port(port);
    }

    /// Rules or ways may be others now.
    pub fn review(&self) {
        self.adapter.review();
    }

    /// Asks its applications what they have.
    pub fn ask(&self) -> Answers {
        self.adapter.ask()
    }

    /// Adds what it, and its applications, have to say of a table.
    pub fn describe(
        &self,
        name: &str,
        table: RdmaTable,
        clients: &[ClientDescription],
        reply: &mut RdmaReply,
    ) {
        match table {
            RdmaTable::Device => reply.devices.push(self.device(name, clients)),
            RdmaTable::Qp => reply.qps.extend(clients.iter().flat_map(|client| qps(name, client))),
            RdmaTable::Mr => reply.mrs.extend(clients.iter().flat_map(|client| mrs(name, client))),
            RdmaTable::Cq => reply.cqs.extend(clients.iter().flat_map(|client| cqs(name, client))),
            RdmaTable::Cm => {
                let connections = self.adapter.describe_connections();
                reply.cms.extend(connections.iter().map(|one| connection(name, one)));
            }
            RdmaTable::Holder => {
                reply.holders.extend(self.adapter.holders().into_iter().map(|one| holder(name, one)));
            }
            RdmaTable::Unspecified => {}
        }
    }

    fn device(&self, name: &str, clients: &[ClientDescription]) -> RdmaDevice {
        let sum = |of: fn(&ClientDescription) -> usize| clients.iter().map(of).sum::<usize>() as u32;
        let counters = self.adapter.counters(clients);
        let distrusted = self.adapter.holders().into_iter().filter(|holder| !holder.is_trusted);
        RdmaDevice {
            name: name.to_owned(),
            clients: clients.len() as u32,
            qps: sum(|client| client.qps.len()),
            mrs: sum(|client| client.mrs.len()),
            cqs: sum(|client| client.cqs.len()),
            stuck: clients.iter().filter(|client| client.is_stuck).count() as u32,
            distrusted: distrusted.count() as u32,
            registered_bytes: clients.iter().map(|client| client.registered).sum(),
            counters: counters
                .into_iter()
                .map(|(name, value)| RdmaCounter { name: name.to_owned(), value })
                .collect(),
            ..RdmaDevice::default()
        }
    }
}

fn adapter_spec(spec: &RdmaSpec) -> DeviceSpec {
    let limits = Limits {
        qps: spec.limits.qps,
        mrs: spec.limits.mrs,
        registered: u64::from(spec.limits.registered_mb) << 20,
        queues: u64::from(spec.limits.queues_mb) << 20,
        connections: spec.limits.connections,
    };
    DeviceSpec {
        guest: spec.guest.clone(),
        vrf: spec.vrf.0.into(),
        mac: spec.mac.0,
        addresses: spec.addresses.clone(),
        mtu: spec.mtu,
        limits,
        trust: spec.trust.clone(),
        is_watched: spec.watched,
        // The other half of the burst is for sockets.
        rate: spec
            .rate
            .map(|rate| Rate { bits_per_second: rate.bits_per_second, burst_bytes: rate.burst_bytes / 2 }),
    }
}

/// An address as people write it.
fn address(gid: Ipv6Addr) -> String {
    gid.to_ipv4_mapped().map_or_else(|| gid.to_string(), |v4| v4.to_string())
}

fn pid(client: &ClientDescription) -> u32 {
    client.pid.unsigned_abs()
}

fn qps<'a>(device: &'a str, client: &'a ClientDescription) -> impl Iterator<Item = RdmaQp> + 'a {
    let qp = |qp: &QpDescription| RdmaQp {
        device: device.to_owned(),
        pid: pid(client),
        qpn: qp.qpn,
        r#type: qp.kind.name().to_owned(),
        state: qp.state.name().to_owned(),
        error: qp.error.map(str::to_owned),
        peer: qp.peer.map(address),
        peer_qpn: qp.peer.map(|_| qp.peer_qpn),
        transport: qp.transport.to_owned(),
        reason: qp.reason.to_owned(),
        rq_psn: qp.rq_psn,
        sq_psn: qp.sq_psn,
        path_mtu: qp.path_mtu,
        retries: qp.retries,
        ..RdmaQp::default()
    };
    client.qps.iter().map(qp)
}

fn mrs<'a>(device: &'a str, client: &'a ClientDescription) -> impl Iterator<Item = RdmaMr> + 'a {
    client.mrs.iter().map(|mr| RdmaMr {
        device: device.to_owned(),
        pid: pid(client),
        mrn: mr.key,
        address: mr.address,
        iova: mr.iova,
        length: mr.len,
        access: mr.access.clone(),
        memory: if mr.is_shared { "shared" } else { "process" }.to_owned(),
        ..RdmaMr::default()
    })
}

fn cqs<'a>(device: &'a str, client: &'a ClientDescription) -> impl Iterator<Item = RdmaCq> + 'a {
    client.cqs.iter().map(|cq| RdmaCq {
        device: device.to_owned(),
        pid: pid(client),
        cqn: cq.cq,
        entries: cq.entries,
        users: cq.users,
        overrun: cq.overrun,
        ..RdmaCq::default()
    })
}

fn holder(device: &str, of: HolderDescription) -> RdmaHolder {
    RdmaHolder {
        device: device.to_owned(),
        pid: of.of.unsigned_abs(),
        holder: of.guest,
        holder_pid: of.pid.unsigned_abs(),
        memory: of.given.name().to_owned(),
        trusted: of.is_trusted,
        ..RdmaHolder::default()
    }
}

fn connection(device: &str, of: &CmDescription) -> RdmaCm {
    let CmDescription { pid, id } = of;
    let ip = |address: std::net::SocketAddr| address.ip().to_canonical().to_string();
    RdmaCm {
        device: device.to_owned(),
        pid: pid.unsigned_abs(),
        id: id.id,
        state: id.state.to_owned(),
        port_space: id.space.name().to_owned(),
        source: id.local.map(ip).unwrap_or_default(),
        source_port: id.local.map_or(0, |local| local.port().into()),
        destination: id.peer.map(ip),
        destination_port: id.peer.map(|peer| peer.port().into()),
        qpn: id.queue_pair,
        ..RdmaCm::default()
    }
}

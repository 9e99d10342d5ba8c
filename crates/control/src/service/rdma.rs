//! Requests about verbs devices and the objects of their clients.

mod windows;

use crate::compile::verbs_vif;
use crate::core::{Core, View};
use crate::rdma::{RdmaSpec, RdmaStatus};
use api::v1::{self, RdmaCm, RdmaCq, RdmaHolder, RdmaMr, RdmaQp, RdmaTable};
use config::{CommonWindows, Guest, Kind, Object};
use hca::{ClientDescription, CmDescription, HolderDescription, QpDescription};
use model::Vrf;
use std::net::Ipv6Addr;
use tonic::Status;

struct Configured<'a> {
    spec: RdmaSpec,
    guest: &'a Guest,
}

pub(super) fn reply(core: &Core, request: &v1::RdmaRequest) -> Result<v1::RdmaReply, Status> {
    let table = match request.table() {
        RdmaTable::Unspecified => return Err(super::invalid("which table?")),
        table => table,
    };
    let view = core.view();
    let mut configured = configured(core, &view);
    if let Some(name) = &request.device {
        configured.retain(|device| device.spec.name == *name);
        if configured.is_empty() {
            return Err(super::missing(format!(
                "there is no verbs device \"{name}\"; `viaduct rdma` lists them"
            )));
        }
    }
    let live = core.ports().rdma();
    let mut reply = v1::RdmaReply::default();
    if table == RdmaTable::Device {
        reply.devices = devices(&configured, &live);
    }
    if table == RdmaTable::Window {
        reply.windows = windows::list(&view, &configured, &live, &core.ports().window_problems());
    }
    for live in &live {
        // A device may go between two looks, so skip objects of devices that are no longer configured.
        if let Some(of) = configured.iter().find(|of| of.spec.name == live.name) {
            list(&mut reply, table, &Named { device: &of.spec.name, guest: &of.guest.name }, live);
        }
    }
    Ok(reply)
}

pub(crate) fn overview(core: &Core) -> (Vec<v1::RdmaDevice>, Vec<v1::RdmaWindow>) {
    let view = core.view();
    let (configured, live) = (configured(core, &view), core.ports().rdma());
    let problems = core.ports().window_problems();
    (devices(&configured, &live), windows::list(&view, &configured, &live, &problems))
}

fn devices(configured: &[Configured<'_>], live: &[RdmaStatus]) -> Vec<v1::RdmaDevice> {
    let status = |of: &Configured<'_>| live.iter().find(|live| live.name == of.spec.name);
    configured.iter().map(|of| device(of, status(of))).collect()
}

fn configured<'a>(core: &Core, view: &'a View) -> Vec<Configured<'a>> {
    let guests =
        view.objects.in_order_of([Kind::Guest]).into_iter().filter_map(|owned| match &owned.object {
            Object::Guest(guest) => Some(&**guest),
            _ => None,
        });
    let guests: Vec<_> = guests.collect();
    let commons = CommonWindows::of(guests.iter().copied());
    let configured = |guest: &'a Guest| {
        let name = verbs_vif(guest).unwrap_or_else(|| guest.name.clone());
        let vif = view.tables.vifs.get(&view.ids.vif(&name)?)?;
        // The interface of a guest on standby that is away is in no network.
        let vrf = vif.vrf.unwrap_or(Vrf(0));
        let spec = RdmaSpec::of(guest, core.run_dir(), (vrf, vif.mtu), &commons)?;
        Some(Configured { spec, guest })
    };
    guests.into_iter().filter_map(configured).collect()
}

/// Describes a device, from the configuration and from its status if it is open.
fn device(Configured { spec, guest }: &Configured<'_>, live: Option<&RdmaStatus>) -> v1::RdmaDevice {
    let limits = guest.verbs.as_ref().map(|verbs| verbs.limits).unwrap_or_default();
    let device = v1::RdmaDevice {
        name: spec.name.clone(),
        guest: guest.name.clone(),
        network: guest.network.clone(),
        socket: spec.socket.display().to_string(),
        mac: guest.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        net_device: spec.tap.clone(),
        addresses: guest.addresses.iter().map(ToString::to_string).collect(),
        gids: spec.adapter.gids().iter().map(ToString::to_string).collect(),
        mtu: spec.adapter.mtu.into(),
        trust: guest.rdma_trust.clone(),
        limits: Some(v1::RdmaLimits {
            qps: Some(limits.qps),
            mrs: Some(limits.mrs),
            registered_mb: Some(limits.registered_mb),
            queues_mb: Some(limits.queues_mb),
            connections: Some(limits.connections),
        }),
        ..v1::RdmaDevice::default()
    };
    match live {
        Some(live) => counted(device, live),
        None => device,
    }
}

/// Adds the counts of its status to a device.
fn counted(device: v1::RdmaDevice, live: &RdmaStatus) -> v1::RdmaDevice {
    let clients = &live.clients;
    let sum = |of: fn(&ClientDescription) -> usize| clients.iter().map(of).sum::<usize>() as u32;
    let counter = |&(name, value): &(&'static str, u64)| v1::RdmaCounter { name: name.to_owned(), value };
    v1::RdmaDevice {
        clients: clients.len() as u32,
        qps: sum(|client| client.qps.len()),
        mrs: sum(|client| client.mrs.len()),
        cqs: sum(|client| client.cqs.len()),
        stuck: clients.iter().filter(|client| client.is_stuck).count() as u32,
        distrusted: live.holders.iter().filter(|holder| !holder.is_trusted).count() as u32,
        registered_bytes: clients.iter().map(|client| client.registered).sum(),
        counters: live.counters.iter().map(counter).collect(),
        ..device
    }
}

/// Adds the rows of one table for a device and its clients.
fn list(reply: &mut v1::RdmaReply, table: RdmaTable, of: &Named<'_>, live: &RdmaStatus) {
    let clients = &live.clients;
    match table {
        RdmaTable::Qp => reply.qps.extend(clients.iter().flat_map(|client| qps(of, client))),
        RdmaTable::Mr => reply.mrs.extend(clients.iter().flat_map(|client| mrs(of, client))),
        RdmaTable::Cq => reply.cqs.extend(clients.iter().flat_map(|client| cqs(of, client))),
        RdmaTable::Cm => reply.cms.extend(live.connections.iter().map(|one| connection(of, one))),
        RdmaTable::Holder => reply.holders.extend(live.holders.iter().map(|one| holder(of, one))),
        RdmaTable::Device | RdmaTable::Window | RdmaTable::Unspecified => {}
    }
}

struct Named<'a> {
    device: &'a str,
    guest: &'a str,
}

/// Writes an address as people do: IPv4 addresses without their IPv6 mapping.
fn address(gid: Ipv6Addr) -> String {
    gid.to_ipv4_mapped().map_or_else(|| gid.to_string(), |v4| v4.to_string())
}

fn pid(client: &ClientDescription) -> u32 {
    client.pid.unsigned_abs()
}

fn qps<'a>(of: &'a Named<'_>, client: &'a ClientDescription) -> impl Iterator<Item = RdmaQp> + 'a {
    let qp = |qp: &QpDescription| RdmaQp {
        device: of.device.to_owned(),
        guest: of.guest.to_owned(),
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
        program: client.program.clone(),
        ..RdmaQp::default()
    };
    client.qps.iter().map(qp)
}

fn mrs<'a>(of: &'a Named<'_>, client: &'a ClientDescription) -> impl Iterator<Item = RdmaMr> + 'a {
    client.mrs.iter().map(|mr| RdmaMr {
        device: of.device.to_owned(),
        guest: of.guest.to_owned(),
        pid: pid(client),
        mrn: mr.key,
        address: mr.address,
        iova: mr.iova,
        length: mr.len,
        access: mr.access.clone(),
        memory: if mr.is_shared { "shared" } else { "process" }.to_owned(),
    })
}

fn cqs<'a>(of: &'a Named<'_>, client: &'a ClientDescription) -> impl Iterator<Item = RdmaCq> + 'a {
    client.cqs.iter().map(|cq| RdmaCq {
        device: of.device.to_owned(),
        guest: of.guest.to_owned(),
        pid: pid(client),
        cqn: cq.cq,
        entries: cq.entries,
        users: cq.users,
        overrun: cq.overrun,
    })
}

fn holder(of: &Named<'_>, one: &HolderDescription) -> RdmaHolder {
    RdmaHolder {
        device: of.device.to_owned(),
        guest: of.guest.to_owned(),
        pid: one.of.unsigned_abs(),
        holder: one.guest.clone(),
        holder_pid: one.pid.unsigned_abs(),
        memory: one.given.name().to_owned(),
        trusted: one.is_trusted,
    }
}

fn connection(of: &Named<'_>, CmDescription { pid, id }: &CmDescription) -> RdmaCm {
    let ip = |address: std::net::SocketAddr| address.ip().to_canonical().to_string();
    RdmaCm {
        device: of.device.to_owned(),
        guest: of.guest.to_owned(),
        pid: pid.unsigned_abs(),
        id: id.id,
        state: id.state.to_owned(),
        port_space: id.space.name().to_owned(),
        source: id.local.map(ip).unwrap_or_default(),
        source_port: id.local.map_or(0, |local| local.port().into()),
        destination: id.peer.map(ip),
        destination_port: id.peer.map(|peer| peer.port().into()),
        qpn: id.queue_pair,
    }
}

//! Verbs devices, and what their clients have.

use crate::compile::verbs_vif;
use crate::core::{Core, View};
use crate::rdma::RdmaSpec;
use api::v1::{self, RdmaTable};
use config::{Guest, Object};
use tonic::Status;

pub(super) fn reply(core: &Core, request: &v1::RdmaRequest) -> Result<v1::RdmaReply, Status> {
    let table = match request.table() {
        RdmaTable::Unspecified => return Err(Status::invalid_argument("which table?")),
        table => table,
    };
    let view = core.view();
    let specs = specs(core, &view);
    if let Some(device) = request.device.as_ref().filter(|name| !specs.iter().any(|s| s.name == **name)) {
        return Err(Status::not_found(format!("there is no verbs device \"{device}\"")));
    }
    let mut reply = core.ports().rdma(table);
    if table == RdmaTable::Device {
        reply.devices = specs.iter().map(|spec| device(&view, spec, &mut reply.devices)).collect();
    }
    // A device may go between two looks; what was its is of no device then.
    let guest_of = |device: &str| {
        let wanted = request.device.as_ref().is_none_or(|only| only == device);
        specs.iter().find(|spec| wanted && spec.name == device).map(|spec| spec.guest.clone())
    };
    macro_rules! complete {
        ($($table:ident),*) => {
            $(reply.$table.retain_mut(|entry| {
                let guest = guest_of(&entry.device);
                let known = guest.is_some();
                entry.guest = guest.unwrap_or_default();
                known
            });)*
        };
    }
    complete!(qps, mrs, cqs, cms, holders);
    reply.devices.retain(|device| request.device.as_ref().is_none_or(|only| *only == device.name));
    Ok(reply)
}

/// All devices.
pub(crate) fn devices(core: &Core) -> Vec<v1::RdmaDevice> {
    let request = v1::RdmaRequest { table: RdmaTable::Device.into(), device: None };
    reply(core, &request).map(|reply| reply.devices).unwrap_or_default()
}

fn specs(core: &Core, view: &View) -> Vec<RdmaSpec> {
    let guests = view.objects.in_order().into_iter().filter_map(|owned| match &owned.object {
        Object::Guest(guest) => Some(&**guest),
        _ => None,
    });
    let spec = |guest: &Guest| {
        let name = verbs_vif(guest).unwrap_or_else(|| guest.name.clone());
        let vif = view.tables.vifs.get(&view.ids.vif(&name)?)?;
        RdmaSpec::of(guest, core.run_dir(), vif.vrf?, vif.mtu)
    };
    guests.filter_map(spec).collect()
}

/// What is known of a device: by the configuration, and by the device itself.
fn device(view: &View, spec: &RdmaSpec, live: &mut [v1::RdmaDevice]) -> v1::RdmaDevice {
    let live =
        live.iter_mut().find(|device| device.name == spec.name).map(std::mem::take).unwrap_or_default();
    v1::RdmaDevice {
        name: spec.name.clone(),
        guest: spec.guest.clone(),
        network: view.network_name(spec.vrf),
        socket: spec.socket.display().to_string(),
        mac: spec.mac.to_string(),
        net_device: spec.tap.clone(),
        addresses: spec.addresses.iter().map(ToString::to_string).collect(),
        gids: spec.gids().iter().map(ToString::to_string).collect(),
        mtu: spec.mtu.into(),
        trust: spec.trust.clone(),
        limits: Some(v1::RdmaLimits {
            qps: Some(spec.limits.qps),
            mrs: Some(spec.limits.mrs),
            registered_mb: Some(spec.limits.registered_mb),
            queues_mb: Some(spec.limits.queues_mb),
            connections: Some(spec.limits.connections),
        }),
        ..live
    }
}

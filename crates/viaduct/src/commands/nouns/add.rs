//! Objects from arguments.

use crate::args::{
    BridgeArgs, GuestArgs, MplsArgs, NetworkArgs, NexthopArgs, RouteArgs, RuleArgs, VxlanArgs, WireArgs,
};
use crate::client::Failure;
use crate::target;
use api::v1::{self, Target, object::Object};
use serde_json::Value;

fn to(text: &str) -> Result<Target, Failure> {
    target::parse(text).map_err(Failure::Usage)
}

fn all_to(texts: &[String]) -> Result<Vec<Target>, Failure> {
    texts.iter().map(|text| to(text)).collect()
}

pub fn guest(args: GuestArgs) -> Result<Object, Failure> {
    Ok(Object::Guest(v1::Guest {
        name: args.name,
        network: args.network,
        kind: args.kind,
        socket: args.socket,
        device: args.device,
        role: args.role,
        queues: args.queues,
        mac: args.mac,
        addresses: args.addresses,
        label: args.label,
        rate: args.rate.map(|mbps| v1::Rate { mbps, burst_kb: args.burst }),
        mirror: args.mirror,
        policy: args.no_policy.then_some(false),
        allowed: args.allowed,
        owner: args.owner,
        socket_mode: args.socket_mode,
        mtu: args.mtu,
    }))
}

pub fn wire(args: WireArgs) -> Result<Object, Failure> {
    Ok(Object::Wire(v1::Wire {
        name: args.name,
        driver: args.driver,
        device: args.device,
        addresses: args.addresses,
        gateway: args.gateway,
        mtu: args.mtu,
    }))
}

pub fn network(args: NetworkArgs) -> Result<Object, Failure> {
    Ok(Object::Network(v1::Network {
        name: args.name,
        vrf: args.vrf,
        gateways: args.gateways,
        vni: args.vni,
        learning: args.no_learning.then_some(false),
        wire: args.wire,
        vlan: args.vlan,
        mtu: args.mtu,
    }))
}

pub fn nexthop(args: NexthopArgs) -> Result<Object, Failure> {
    Ok(Object::Nexthop(v1::Nexthop { name: args.name, to: all_to(&args.to)? }))
}

pub fn route(network: String, args: RouteArgs) -> Result<Object, Failure> {
    Ok(Object::Route(v1::Route { network, prefix: args.prefix, to: all_to(&args.to)? }))
}

pub fn bridge(network: String, args: BridgeArgs) -> Result<Object, Failure> {
    Ok(Object::Mac(v1::Mac { network, mac: args.mac, to: Some(to(&args.to)?) }))
}

pub fn mpls(args: MplsArgs) -> Result<Object, Failure> {
    Ok(Object::Mpls(v1::Mpls { label: args.label, to: Some(to(&args.to)?) }))
}

pub fn vxlan(args: VxlanArgs) -> Result<Object, Failure> {
    Ok(Object::Vxlan(v1::Vxlan { vni: args.vni, network: args.network }))
}

/// A rule's ends are guests where one has that name, else prefixes.
pub fn rule(network: String, args: RuleArgs, guests: &[Value]) -> Result<Object, Failure> {
    let endpoint = |text: Option<String>| {
        let text = text.filter(|text| text != "any")?;
        Some(if guests.iter().any(|guest| guest["name"] == *text) {
            v1::Endpoint { guest: Some(text), cidr: None }
        } else {
            v1::Endpoint { cidr: Some(text), guest: None }
        })
    };
    Ok(Object::Rule(v1::Rule {
        network,
        priority: args.priority,
        from: endpoint(args.from),
        to: endpoint(args.to),
        protocol: args.protocol,
        ports: args.ports,
        action: args.action,
    }))
}

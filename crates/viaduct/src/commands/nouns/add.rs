//! Makes objects from arguments.

use crate::args::{
    BridgeArgs, DefaultArgs, FloodArgs, ForwardArgs, GuestArgs, LeaseArgs, Midstream, MplsArgs, NatArgs,
    NetworkArgs, NexthopArgs, RouteArgs, RuleArgs, VxlanArgs, WireArgs,
};
use crate::client::Failure;
use crate::input::{self, lines};
use crate::target;
use api::v1::{self, Target, object::Object};
use serde_json::Value;

fn to(text: &str) -> Result<Target, Failure> {
    target::parse(text).map_err(Failure::Usage)
}

fn all_to(texts: &[String]) -> Result<Vec<Target>, Failure> {
    texts.iter().map(|text| to(text)).collect()
}

pub fn guest(args: GuestArgs) -> Result<Vec<Object>, Failure> {
    let rdma_limits = v1::RdmaLimits {
        qps: args.rdma_qps,
        mrs: args.rdma_mrs,
        registered_mb: args.rdma_registered,
        queues_mb: args.rdma_queues,
        connections: args.rdma_connections,
    };
    let rdma_limits = (rdma_limits != v1::RdmaLimits::default()).then_some(rdma_limits);
    Ok(vec![Object::Guest(v1::Guest {
        name: args.name,
        network: args.network.unwrap_or_default(),
        mode: args.mode,
        kind: args.kind,
        socket: args.socket,
        device: args.device,
        role: args.role,
        queues: args.queues,
        mac: args.mac,
        macs: args.macs,
        // VLANs need a file or the API.
        vlans: Vec::new(),
        addresses: args.addresses,
        label: args.label,
        rate: args.rate.map(|mbps| v1::Rate { mbps, burst_kb: args.burst }),
        shape: shape(args.shape_in, args.shape_out),
        dscp: args.dscp,
        mirror: args.mirror,
        policy: args.no_policy.then_some(false),
        allowed: args.allowed,
        router: args.router.then_some(true),
        dhcp_server: args.dhcp_server.then_some(true),
        standby: args.standby.then_some(true),
        link_follows: args.link_follows,
        owner: args.owner,
        socket_mode: args.socket_mode,
        mtu: args.mtu,
        rdma: args.rdma,
        rdma_owner: args.rdma_owner,
        rdma_trust: args.rdma_trust,
        rdma_limits,
        window_mb: args.window,
        window_migrates: args.window_migrates.then_some(true),
        sockets: args.sockets.then_some(true),
        hostname: args.hostname,
        user_data: args.user_data.as_deref().map(input::whole).transpose()?,
        ssh_keys: args.ssh_keys,
    })])
}

fn shape(inward: Option<u32>, outward: Option<u32>) -> Option<v1::Shape> {
    let rate = |mbps: Option<u32>| mbps.map(|mbps| v1::ShapeRate { mbps });
    let shape = v1::Shape { r#in: rate(inward), out: rate(outward) };
    (shape != v1::Shape::default()).then_some(shape)
}

pub fn wire(args: WireArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Wire(v1::Wire {
        name: args.name,
        driver: args.driver,
        device: args.device,
        remote: args.remote,
        vni: args.vni,
        addresses: args.addresses,
        gateway: args.gateway,
        mtu: args.mtu,
        mode: args.mode,
        shared: args.shared.then_some(true),
    })])
}

pub fn network(args: NetworkArgs) -> Result<Vec<Object>, Failure> {
    let midstream = args.no_tcp_midstream.then_some(Midstream::False).or(args.tcp_midstream);
    let midstream = midstream.map(|which| match which {
        Midstream::False => v1::TcpMidstream::False,
        Midstream::True => v1::TcpMidstream::True,
        Midstream::Reverse => v1::TcpMidstream::Reverse,
    });
    Ok(vec![Object::Network(v1::Network {
        name: args.name,
        vrf: args.vrf,
        gateways: args.gateways,
        vni: args.vni,
        learning: args.no_learning.then_some(false),
        wire: args.wire,
        vlan: args.vlan,
        l2_gateway: args.l2_gateway,
        mtu: args.mtu,
        tcp_midstream: midstream.map(Into::into),
        tcp_asymmetric: args.tcp_asymmetric.then_some(true),
        mss_clamp: args.mss_clamp.then_some(true),
        routed_outside: args.routed_outside.then_some(true),
        dhcp: args.dhcp.then_some(true),
        ra: args.ra.then_some(true),
        dns: args.dns.then_some(true),
        metadata: args.metadata.then_some(true),
        metadata_proxy: args.metadata_proxy,
        metadata_secret: None,
        metadata_tenant: args.metadata_tenant,
        domain: args.domain,
        dhcp_relay: args.dhcp_relay,
        resolvers: args.resolvers,
        pool: args.pool,
        dhcp_options: None,
        bgp: args.no_bgp.then_some(false),
        rd: args.rd,
        import: args.import,
        export: args.export,
        import_unicast: args.import_unicast,
        evpn: args.evpn.then_some(true),
        l3vni: args.l3vni,
        l3_import: args.l3_import,
        l3_export: args.l3_export,
        snat: args.snat,
        snat_ports: args.snat_ports,
        snat_mapping: args.snat_mapping,
        default: args.default,
    })])
}

pub fn nexthop(args: NexthopArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Nexthop(v1::Nexthop { name: args.name, to: all_to(&args.to)? })])
}

pub fn route(network: String, args: RouteArgs) -> Result<Vec<Object>, Failure> {
    let default = all_to(&args.to)?;
    let route = |prefix: String, to| Object::Route(v1::Route { network: network.clone(), prefix, to });
    let Some(file) = &args.file else {
        return Ok(args.prefix.map(|prefix| route(prefix, default)).into_iter().collect());
    };
    let line = |(prefix, to): (String, Vec<String>)| match &to[..] {
        [] if default.is_empty() => Err(Failure::Refused(format!(
            "{}: where to with {prefix}? Name its targets behind it, or --to for all",
            file.display()
        ))),
        [] => Ok(route(prefix, default.clone())),
        own => Ok(route(prefix, all_to(own)?)),
    };
    lines(file)?.into_iter().map(line).collect()
}

pub fn bridge(network: String, args: BridgeArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Mac(v1::Mac { network, mac: args.mac, to: Some(to(&args.to)?) })])
}

pub fn mpls(args: MplsArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Mpls(v1::Mpls { label: args.label, to: Some(to(&args.to)?) })])
}

pub fn vxlan(args: VxlanArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Vxlan(v1::Vxlan { vni: args.vni, network: args.network.unwrap_or_default() })])
}

pub fn forward(network: String, args: ForwardArgs) -> Vec<Object> {
    let ForwardArgs { protocol, outside, port, guest, to_port } = args;
    let to = Some(v1::ForwardTo { guest, port: to_port.unwrap_or(port) });
    vec![Object::Forward(v1::Forward { network, outside, protocol, port, to })]
}

pub fn lease(args: LeaseArgs) -> Result<Vec<Object>, Failure> {
    let LeaseArgs { guest, network, mac, addresses } = args;
    let network = network.unwrap_or_default();
    Ok(vec![Object::Lease(v1::Lease { guest, network, mac, addresses, foreign: None })])
}

pub fn nat(network: String, args: NatArgs) -> Vec<Object> {
    let NatArgs { inside, outside, outside_network } = args;
    vec![Object::Nat(v1::Nat { network, inside, outside, outside_network })]
}

pub fn flood(args: FloodArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Flood(v1::Flood { network: args.network.name(), to: all_to(&args.to)? })])
}

pub fn default(args: DefaultArgs) -> Vec<Object> {
    vec![Object::Default(v1::Default { network: args.network.name(), action: args.action })]
}

/// Returns whether a rule may have a guest at one of its ends.
pub fn may_name_guests(args: &RuleArgs) -> bool {
    args.from.iter().chain(&args.to).any(|text| text != "any" && !text.contains('/'))
}

/// Makes a rule. Each end is the guest of that name, if there is one, or a prefix.
pub fn rule(network: String, args: RuleArgs, guests: &[Value]) -> Result<Vec<Object>, Failure> {
    let endpoint = |text: Option<String>| {
        let text = text.filter(|text| text != "any")?;
        Some(if guests.iter().any(|guest| guest["name"] == *text) {
            v1::Endpoint { guest: Some(text), cidr: None }
        } else {
            v1::Endpoint { cidr: Some(text), guest: None }
        })
    };
    Ok(vec![Object::Rule(v1::Rule {
        network,
        name: args.name,
        priority: args.priority,
        from: endpoint(args.from),
        to: endpoint(args.to),
        protocol: args.protocol,
        ports: args.ports,
        action: args.action,
    })])
}

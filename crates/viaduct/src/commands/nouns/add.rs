//! Makes objects from arguments.

use crate::args::{
    DefaultArgs, FloodArgs, ForwardArgs, GuestArgs, LeaseArgs, MacArgs, MplsArgs, NatArgs, NetworkArgs,
    NexthopArgs, RouteArgs, RuleArgs, VxlanArgs, WireArgs, targets,
};
use crate::client::Failure;
use crate::input::lines;
use api::v1::{self, object::Object};
use serde_json::Value;

pub fn guest(args: GuestArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Guest(args.message()?)])
}

pub fn wire(args: WireArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Wire(args.message()?)])
}

pub fn network(args: NetworkArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Network(args.message()?)])
}

pub fn nexthop(args: NexthopArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Nexthop(args.message()?)])
}

pub fn route(network: String, args: RouteArgs) -> Result<Vec<Object>, Failure> {
    let default = targets(&args.to)?;
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
        own => Ok(route(prefix, targets(own)?)),
    };
    lines(file)?.into_iter().map(line).collect()
}

pub fn bridge(network: String, args: MacArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Mac(v1::Mac { network, ..args.message()? })])
}

pub fn mpls(args: MplsArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Mpls(args.message()?)])
}

pub fn vxlan(args: VxlanArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Vxlan(args.message()?)])
}

pub fn forward(network: String, args: ForwardArgs) -> Vec<Object> {
    let ForwardArgs { protocol, outside, port, guest, to_port } = args;
    let to = Some(v1::ForwardTo { guest, port: to_port.unwrap_or(port) });
    vec![Object::Forward(v1::Forward { network, outside, protocol, port, to })]
}

pub fn lease(args: LeaseArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Lease(args.message()?)])
}

pub fn nat(network: String, args: NatArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Nat(v1::Nat { network, ..args.message()? })])
}

pub fn flood(args: FloodArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Flood(args.message()?)])
}

pub fn default(args: DefaultArgs) -> Result<Vec<Object>, Failure> {
    Ok(vec![Object::Default(args.message()?)])
}

/// Returns whether a rule may have a guest at one of its ends.
pub fn may_name_guests(args: &RuleArgs) -> bool {
    [&args.from.from, &args.to.to].into_iter().flatten().any(|text| text != "any" && !text.contains('/'))
}

/// Makes a rule. Each end is the guest of that name, if there is one, or a prefix.
pub fn rule(network: String, args: RuleArgs, guests: &[Value]) -> Result<Vec<Object>, Failure> {
    let endpoint = |end: v1::Endpoint| match end.cidr {
        Some(name) if guests.iter().any(|guest| guest["name"] == *name) => {
            v1::Endpoint { guest: Some(name), cidr: None }
        }
        cidr => v1::Endpoint { cidr, guest: None },
    };
    let rule = args.message()?;
    let (from, to) = (rule.from.clone().map(endpoint), rule.to.clone().map(endpoint));
    Ok(vec![Object::Rule(v1::Rule { network, from, to, ..rule })])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use clap::{Args, Parser};

    #[derive(Parser)]
    struct Line<A: Args> {
        #[command(flatten)]
        args: A,
    }

    fn read<A: Args>(words: &str) -> A {
        Line::<A>::try_parse_from(format!("add {words}").split(' ')).unwrap().args
    }

    #[test]
    fn a_guest_has_the_fields_that_are_given_and_no_others() {
        let plain = v1::Guest { name: "vm1".into(), kind: "vhost".into(), ..v1::Guest::default() };
        assert_eq!(read::<GuestArgs>("vm1").message().unwrap(), plain);
        let words = "vm1 --network blue --no-policy --router --rate 50 --burst 64 --shape-out 7 --rdma-qps 9 \
                     --window 32 --address 10.1.1.1 --address fd00::1";
        let full = v1::Guest {
            network: "blue".into(),
            policy: Some(false),
            router: Some(true),
            rate: Some(v1::Rate { mbps: 50, burst_kb: Some(64) }),
            shape: Some(v1::Shape { r#in: None, out: Some(v1::ShapeRate { mbps: 7 }) }),
            rdma_limits: Some(v1::RdmaLimits { qps: Some(9), ..v1::RdmaLimits::default() }),
            window_mb: Some(32),
            addresses: vec!["10.1.1.1".into(), "fd00::1".into()],
            ..plain
        };
        assert_eq!(read::<GuestArgs>(words).message().unwrap(), full);
    }

    #[test]
    fn ends_of_a_rule_are_guests_if_they_have_such_a_name() {
        let guests = [serde_json::json!({ "name": "vm1" })];
        let args = read::<RuleArgs>("--priority 1 --from vm1 --to 10.1.1.0/24 --action drop");
        assert!(may_name_guests(&args));
        let made = rule("blue".into(), args, &guests).unwrap().remove(0);
        let Object::Rule(rule) = made else { panic!("{made:?}") };
        let (from, to) = (rule.from.unwrap(), rule.to.unwrap());
        assert_eq!((from.guest(), to.cidr(), &*rule.network), ("vm1", "10.1.1.0/24", "blue"));
        assert!(!may_name_guests(&read("--priority 1 --from any --to 10.1.1.0/24 --action drop")));
    }
}

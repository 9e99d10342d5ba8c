//! Floating addresses that nothing guards: who reaches them reaches all of their guests' ports.

use crate::{DefaultAction, Guest, Nat, Object, Rule, RuleAction};
use std::collections::HashMap;
use std::net::IpAddr;

/// Most addresses that a warning names.
const NAMED: usize = 3;

/// Returns the networks with floating addresses of which no rule refuses anything that comes to them, each with a
/// warning.
#[must_use]
pub fn unguarded<'a>(objects: impl Iterator<Item = &'a Object> + Clone) -> Vec<(String, String)> {
    let rules = Rules::of(objects.clone());
    let mut open: HashMap<&str, Vec<IpAddr>> = HashMap::new();
    for object in objects {
        if let Object::Nat(nat) = object
            && !rules.guard(nat)
        {
            open.entry(&nat.network).or_default().push(nat.outside);
        }
    }
    let mut all: Vec<_> =
        open.into_iter().map(|(network, addresses)| (network.to_owned(), message(addresses))).collect();
    all.sort();
    all
}

fn message(mut addresses: Vec<IpAddr>) -> String {
    addresses.sort_unstable();
    let more = addresses.len().saturating_sub(NAMED);
    let mut names: Vec<_> = addresses.iter().take(NAMED).map(ToString::to_string).collect();
    names.extend((more > 0).then(|| format!("{more} more")));
    format!(
        "no rule refuses anything that comes to its floating addresses ({}): whoever reaches them reaches all ports of their \
         guests; if that is not meant, set default = \"deny-in\" and allow what is",
        names.join(", ")
    )
}

/// The parts of the objects that can refuse packets.
struct Rules<'a> {
    /// The networks whose default refuses something.
    closed: Vec<&'a str>,
    /// By network.
    refusing: HashMap<&'a str, Vec<&'a Rule>>,
    guests: HashMap<(&'a str, IpAddr), &'a Guest>,
}

impl<'a> Rules<'a> {
    fn of(objects: impl Iterator<Item = &'a Object>) -> Self {
        let (mut closed, mut guests) = (Vec::new(), HashMap::new());
        let mut refusing: HashMap<&str, Vec<&Rule>> = HashMap::new();
        let refuses = |action: DefaultAction| action != DefaultAction::Allow;
        for object in objects {
            match object {
                Object::Default(default) if refuses(default.action) => closed.push(&*default.network),
                Object::Network(network) if network.default.is_some_and(refuses) => {
                    closed.push(&*network.name)
                }
                Object::Rule(rule) if matches!(rule.action, RuleAction::End(action) if refuses(action)) => {
                    refusing.entry(&rule.network).or_default().push(rule);
                }
                Object::Guest(guest) => {
                    guests.extend(guest.addresses.iter().map(|addr| ((&*guest.network, *addr), &**guest)));
                }
                _ => {}
            }
        }
        Self { closed, refusing, guests }
    }

    /// Returns whether something that comes to a floating address may be refused. Rules of both networks apply, and
    /// see the inside address.
    fn guard(&self, nat: &Nat) -> bool {
        let guest = self.guests.get(&(&*nat.network, nat.inside));
        let is_to = |rule: &&'a Rule| match (&rule.to.guest, rule.to.cidr) {
            (Some(name), _) => guest.is_some_and(|guest| guest.name == *name),
            (None, cidr) => cidr.is_none_or(|cidr| cidr.contains(&nat.inside)),
        };
        let guards = |network: &str| {
            self.closed.contains(&network)
                || self.refusing.get(network).is_some_and(|rules| rules.iter().any(is_to))
        };
        (guards(&nat.network) || guards(&nat.outside_network)) && guest.is_none_or(|guest| guest.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = r#"
[[network]]
name = "blue"
vrf = 1
gateways = ["10.1.1.254/24"]
[[network]]
name = "public"
vrf = 2
gateways = ["203.0.113.254/24"]
[[guest]]
name = "vm1"
network = "blue"
kind = "vhost"
mac = "02:00:00:00:00:01"
addresses = ["10.1.1.1"]
[[nat]]
network = "blue"
inside = "10.1.1.1"
outside = "203.0.113.7"
outside_network = "public"
"#;

    fn warned(more: &str) -> Vec<(String, String)> {
        let items = crate::parse_objects(&[BASE, more].concat()).unwrap_or_else(|e| panic!("{e}"));
        unguarded(items.iter())
    }

    #[test]
    fn a_floating_address_is_named_until_something_refuses_what_comes_to_it() {
        let [(network, message)] = &warned("")[..] else { panic!("one network") };
        assert!(network == "blue" && message.contains("(203.0.113.7)"), "{message}");
        let allows = "[[rule]]\nnetwork = \"blue\"\npriority = 1\naction = \"allow\"\n";
        assert_eq!(warned(allows).len(), 1);
        let elsewhere = "[[rule]]\nnetwork = \"blue\"\npriority = 1\nto = { cidr = \"10.1.1.2/32\" }\naction = \"drop\"\n";
        assert_eq!(warned(elsewhere).len(), 1);
        for guard in [
            "[[default]]\nnetwork = \"blue\"\naction = \"deny-in\"\n",
            "[[default]]\nnetwork = \"public\"\naction = \"drop\"\n",
            "[[rule]]\nnetwork = \"blue\"\npriority = 1\naction = \"drop\"\n",
            "[[rule]]\nnetwork = \"public\"\npriority = 1\nto = { cidr = \"10.1.0.0/16\" }\naction = \"reject\"\n",
            "[[rule]]\nnetwork = \"blue\"\npriority = 1\nto = { guest = \"vm1\" }\nports = \"25\"\nprotocol = \"tcp\"\naction = \"drop\"\n",
        ] {
            assert_eq!(warned(guard), [], "{guard}");
        }
    }

    #[test]
    fn many_addresses_are_not_all_named() {
        let nat = |n| {
            format!(
                "[[nat]]\nnetwork = \"blue\"\ninside = \"10.1.1.{n}\"\noutside = \"203.0.113.{n}\"\noutside_network = \"public\"\n"
            )
        };
        let many: String = (10..20).map(nat).collect();
        let [(_, message)] = &warned(&many)[..] else { panic!("one warning a network") };
        assert!(message.contains("(203.0.113.7, 203.0.113.10, 203.0.113.11, 8 more)"), "{message}");
    }
}

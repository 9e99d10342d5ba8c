//! Rules, and meters.

use super::ids::User;
use super::{Compiler, action, tunnel_name, vif_id};
use config::{Rate, RuleAction};
use imbl::OrdMap;
use ipnet::IpNet;
use model::{MeterConfig, MeterId, Modifier, PortRange, Rule, RuleId, Vif, VifId, VifKind};
use std::collections::BTreeSet;

pub(crate) fn policer(rate: Rate) -> MeterConfig {
    let bits_per_second = u64::from(rate.mbps) * 1_000_000;
    // Half a second, because a TCP stream that lost the end of a window waits for 200 ms or more before it sends again,
    // and what the bucket does not hold of this time is lost to it. Always room for the largest send in the smallest
    // segments, or for two of the largest in segments of the usual MTU.
    let default = (bits_per_second / 8 / 2).max(192 * 1024);
    let burst_bytes = rate.burst_kb.map_or(default, |kb| u64::from(kb) * 1024);
    MeterConfig { bits_per_second, burst_bytes }
}

impl Compiler<'_> {
    /// Keeps all rules, with what they refer to, and meters, but for those of these guests.
    pub(super) fn keep_rules(
        &mut self,
        rules: OrdMap<RuleId, Rule>,
        meters: OrdMap<MeterId, MeterConfig>,
        vifs: &OrdMap<VifId, Vif>,
        guests: &[&str],
    ) {
        (self.out.rules, self.out.meters) = (rules, meters);
        for guest in guests {
            if let Some(id) = self.ids.meters.abandon(&("guest", (*guest).to_owned())) {
                self.out.meters.remove(&MeterId(id));
            }
        }
        let mirrors: BTreeSet<_> = self.out.rules.values().filter_map(mirror_of).collect();
        let mirrors = mirrors.iter().filter_map(|id| vifs.get(id));
        for vif in mirrors.filter(|vif| matches!(vif.kind, VifKind::Mirror(_))) {
            let id = self.vif_id(&vif.name);
            self.out.vifs.insert(id, vif.clone());
        }
    }

    pub(super) fn rule(&mut self, rule: &config::Rule) {
        let key = (rule.network.clone(), rule.to_string());
        let action = match &rule.action {
            RuleAction::End(end) => model::RuleAction::End(action(*end)),
            RuleAction::Mirror(name) => model::RuleAction::Modify(Modifier::Mirror(self.mirror(name))),
            RuleAction::Police(rate) => {
                let meter = self.meter("rule", meter_of(&key), *rate);
                model::RuleAction::Modify(Modifier::Police(meter))
            }
        };
        let id = RuleId(self.ids.rules.take(key, User::Other));
        let compiled = Rule {
            id,
            vrf: self.vrf(&rule.network),
            priority: rule.priority,
            from: self.prefixes(&rule.from),
            to: self.prefixes(&rule.to),
            protocol: rule.protocol.map(|protocol| protocol.0),
            ports: rule.ports.map(|ports| PortRange { first: ports.first, last: ports.last }),
            action,
        };
        self.out.rules.insert(id, compiled);
    }

    pub(super) fn remove_rule(&mut self, rule: &config::Rule) {
        let key = (rule.network.clone(), rule.to_string());
        let meter = ("rule", meter_of(&key));
        if let Some(id) = self.ids.rules.abandon(&key) {
            self.out.rules.remove(&RuleId(id));
        }
        if let RuleAction::Mirror(name) = &rule.action {
            self.remove_mirror(name);
        }
        if let Some(id) = self.ids.meters.abandon(&meter) {
            self.out.meters.remove(&MeterId(id));
        }
    }

    /// Removes the tunnel of a mirror on another host, if nothing else mirrors to it.
    fn remove_mirror(&mut self, name: &str) {
        let Some(Ok(tunnel)) = config::Tunnel::of_mirror(name) else { return };
        let name = tunnel_name(&tunnel);
        let Some(id) = self.ids.vifs.get(&name) else { return };
        let mirrors_there = |vif: Option<VifId>| vif == Some(vif_id(id));
        let is_used = self.out.rules.values().any(|rule| mirrors_there(mirror_of(rule)))
            || self.out.vifs.values().any(|vif| mirrors_there(vif.mirror));
        if !is_used {
            self.ids.vifs.abandon(&name);
            self.out.vifs.remove(&vif_id(id));
        }
    }

    fn prefixes(&self, endpoint: &config::Endpoint) -> Vec<IpNet> {
        let guest = endpoint.guest.as_deref().and_then(|name| self.index.guests().get(name));
        let addresses = guest.iter().flat_map(|guest| guest.all_addresses()).map(IpNet::from);
        endpoint.cidr.into_iter().chain(addresses).collect()
    }

    pub(super) fn meter(&mut self, of: &'static str, name: String, rate: Rate) -> MeterId {
        let id = MeterId(self.ids.meters.take((of, name), User::Other));
        self.out.meters.insert(id, policer(rate));
        id
    }
}

/// Returns the interface to which a rule mirrors.
const fn mirror_of(rule: &Rule) -> Option<VifId> {
    match rule.action {
        model::RuleAction::Modify(Modifier::Mirror(vif)) => Some(vif),
        _ => None,
    }
}

/// Returns the name of a rule's meter.
fn meter_of((network, rule): &(String, String)) -> String {
    format!("{network} {rule}")
}

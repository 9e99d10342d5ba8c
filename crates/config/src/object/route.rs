//! `[[route]]` and `[[nexthop]]`.

use super::target::{MAX_PLACES, Places, weighted};
use super::{Kind, Place, Target, read_name, read_network};
use crate::reader::Reader;
use crate::value::Prefix;
use ipnet::IpNet;
use serde::Serialize;

/// A remote or special prefix of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Route {
    /// The network.
    pub network: String,
    /// The prefix.
    pub prefix: IpNet,
    /// The targets of the route's packets, each as often as its weight. Each flow goes to one of them.
    #[serde(serialize_with = "weighted")]
    pub to: Vec<Target>,
}

impl Route {
    /// Returns what the text of [`super::Object::to_concise_toml`] has before and behind the prefix.
    #[must_use]
    pub fn around_prefix(&self) -> [String; 2] {
        let body = toml::Table::try_from(self).unwrap_or_default();
        let text = |key| body.get(key).map(ToString::to_string).unwrap_or_default();
        let before = format!("[[{}]]\nnetwork = {}\nprefix = \"", Kind::Route, text("network"));
        [before, format!("\"\nto = {}\n", text("to"))]
    }

    pub(super) fn key(&self) -> (Option<String>, String) {
        (Some(self.network.clone()), self.prefix.to_string())
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let prefix = r.require::<Prefix>("prefix").map(|p| p.0);
        let network = read_network(&mut r, Kind::Route, prefix.as_ref().map(|p| p as _));
        let to = read_targets(&mut r);
        let read = || Some(Self { network: network?, prefix: prefix?, to });
        (read(), r.finish())
    }
}

/// Targets with a name, shared by routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nexthop {
    /// The name.
    pub name: String,
    /// Tunnels, guests or routers, each as often as its weight. Each flow goes to one of them.
    #[serde(serialize_with = "weighted")]
    pub to: Vec<Target>,
}

impl Nexthop {
    pub(super) fn key(&self) -> (Option<String>, String) {
        (None, self.name.clone())
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let name = read_name(&mut r, Kind::Nexthop);
        let to = read_targets(&mut r);
        if to.iter().any(|to| matches!(to, Target::Nexthop(_))) {
            r.problem(Some("to"), "a nexthop can't refer to another; list its targets here");
        }
        let read = || Some(Self { name: name?, to });
        (read(), r.finish())
    }
}

fn read_targets(r: &mut Reader<'_>) -> Vec<Target> {
    let before = r.problems();
    let read: Vec<Places> = r.one_or_many("to");
    if read.is_empty() && r.problems() == before {
        r.problem(None, "`to` is missing: where the packets go");
    }
    let places: usize = read.iter().map(|Places(_, weight)| weight).sum();
    if places > MAX_PLACES {
        let several = if places > read.len() { "weights of" } else { "targets:" };
        r.problem(
            Some("to"),
            format!("{several} {places} in all; flows are shared among {MAX_PLACES} at most"),
        );
        // More of them are not looked at: an API client may send as many as it likes.
        return Vec::new();
    }
    let targets = || read.iter().map(|Places(target, _)| target);
    let alone = |to: &&Target| matches!(to, Target::Drop | Target::Network(_) | Target::Nexthop(_));
    if places > 1
        && let Some(target) = targets().find(alone)
    {
        let name = match target {
            Target::Drop => "\"drop\"",
            Target::Network(_) => "{ network = ... }",
            _ => "{ nexthop = ... }",
        };
        r.problem(
            Some("to"),
            format!("{name} stands alone, without `weight`; only tunnels, guests and routers share flows"),
        );
    }
    if targets().enumerate().any(|(i, target)| targets().take(i).any(|before| before == target)) {
        r.problem(Some("to"), "the same target is listed twice; give it a `weight`");
    }
    let mut to: Vec<Target> =
        read.into_iter().flat_map(|Places(target, weight)| vec![target; weight]).collect();
    to.shrink_to_fit();
    to
}

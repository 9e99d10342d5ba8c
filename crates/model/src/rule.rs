//! Security rules and policers.

use crate::{MeterId, RuleId, RuleQuery, VifId, Vrf};
use ipnet::IpNet;

/// The result of the rules for a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Action {
    /// The packet passes, and so do the replies of its flow.
    #[default]
    Allow,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped and its sender informed: TCP RST, or ICMP administratively prohibited.
    Reject,
}

/// The effect of a rule on a packet that then goes on to the next rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Modifier {
    /// Copies the packet to this guest.
    Mirror(VifId),
    /// Drops the packet if it is over this rate.
    Police(MeterId),
}

/// Inclusive range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// First.
    pub first: u16,
    /// Last, at least `first`.
    pub last: u16,
}

impl PortRange {
    /// Every port.
    pub const ANY: Self = Self { first: 0, last: u16::MAX };

    /// Returns whether `port` is in the range.
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

/// A prioritised wildcard match. It matches if every given field does. Addresses are inside ones (before
/// source NAT, after destination NAT).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The rule's key.
    pub id: RuleId,
    /// Network whose traffic the rule applies to.
    pub vrf: Vrf,
    /// Priority: lower ones come first. Rules of equal priority go in the order of their ids.
    pub priority: u32,
    /// Source prefixes; empty: any. A rule for a guest lists that guest's addresses.
    pub from: Vec<IpNet>,
    /// Destination prefixes; empty: any.
    pub to: Vec<IpNet>,
    /// IP protocol number; `None`: any.
    pub protocol: Option<u8>,
    /// Destination ports. A rule with ports matches no packet without them (other protocols, unknown fragments).
    pub ports: Option<PortRange>,
    /// The effect on a packet that matches.
    pub action: RuleAction,
}

impl Rule {
    /// Returns whether the rule matches.
    #[must_use]
    pub fn matches(&self, query: &RuleQuery) -> bool {
        let any_or =
            |prefixes: &[IpNet], addr| prefixes.is_empty() || prefixes.iter().any(|p| p.contains(addr));
        any_or(&self.from, &query.src)
            && any_or(&self.to, &query.dst)
            && self.protocol.is_none_or(|protocol| protocol == query.protocol)
            && self.ports.is_none_or(|ports| query.dst_port.is_some_and(|port| ports.contains(port)))
    }
}

/// The effect of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleAction {
    /// Ends the walk through the rules.
    End(Action),
    /// Goes on to the next rule.
    Modify(Modifier),
}

/// A token bucket's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterConfig {
    /// Rate, bits per second, of frames as they leave, from the Ethernet header on ([`crate::rewrite::metered_len`]).
    pub bits_per_second: u64,
    /// Depth, bytes.
    pub burst_bytes: u64,
}

/// A token bucket: a function only of ticks and lengths (RFC 2697's committed bucket).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    config: MeterConfig,
    /// Tokens in the bucket, in bits times nanoseconds per second.
    tokens: u128,
    last_ns: u64,
}

const NS: u128 = 1_000_000_000;

impl Meter {
    /// Returns a full bucket.
    #[must_use]
    pub const fn new(config: MeterConfig) -> Self {
        Self { config, tokens: config.burst_bytes as u128 * 8 * NS, last_ns: 0 }
    }

    /// Returns whether a frame of `len` bytes at `now_ns` conforms. If it does, takes its tokens. Time that
    /// runs backwards adds no tokens.
    pub fn conforms(&mut self, now_ns: u64, len: usize) -> bool {
        let full = u128::from(self.config.burst_bytes) * 8 * NS;
        let elapsed = u128::from(now_ns.saturating_sub(self.last_ns));
        self.last_ns = self.last_ns.max(now_ns);
        self.tokens = (self.tokens + elapsed * u128::from(self.config.bits_per_second)).min(full);
        let cost = len as u128 * 8 * NS;
        let conforms = cost <= self.tokens;
        if conforms {
            self.tokens -= cost;
        }
        conforms
    }
}

//! Arguments of keys that are no text, number or flag on the command line: types that the protocol file names by
//! `@code`. `message` makes the value of the key.

use crate::client::Failure;
use crate::{complete, input, target};
use api::v1;
use clap::Args;
use clap_complete::ArgValueCandidates;
use std::path::PathBuf;

/// The forms of a target.
pub const TO: &str = "drop, guest:NAME, network:NAME, nexthop:NAME, via:ADDRESS, mpls-over-udp:REMOTE:LABEL, \
    mpls-over-gre:REMOTE:LABEL or vxlan:REMOTE:VNI[@MAC]; if it is repeated, flows are spread: \
    TARGET,weight=N takes N times as many";

pub fn target(text: &str) -> Result<v1::Target, Failure> {
    target::parse(text).map_err(Failure::Usage)
}

pub fn targets(texts: &[String]) -> Result<Vec<v1::Target>, Failure> {
    texts.iter().map(|text| target(text)).collect()
}

#[derive(Args)]
pub struct Rate {
    /// Rate limit of its sent packets, Mbit/s
    #[arg(long, value_name = "MBPS")]
    rate: Option<u32>,
    /// Burst of the rate limit, kilobytes
    #[arg(long, value_name = "KB", requires = "rate")]
    burst: Option<u32>,
}

impl Rate {
    pub fn message(self) -> Result<Option<v1::Rate>, Failure> {
        Ok(self.rate.map(|mbps| v1::Rate { mbps, burst_kb: self.burst }))
    }
}

#[derive(Args)]
pub struct Shape {
    /// Rate over which packets towards it wait, Mbit/s
    #[arg(long, value_name = "MBPS")]
    shape_in: Option<u32>,
    /// Rate over which its sent packets wait, Mbit/s
    #[arg(long, value_name = "MBPS")]
    shape_out: Option<u32>,
}

impl Shape {
    pub fn message(self) -> Result<Option<v1::Shape>, Failure> {
        let rate = |mbps: Option<u32>| mbps.map(|mbps| v1::ShapeRate { mbps });
        let shape = v1::Shape { r#in: rate(self.shape_in), out: rate(self.shape_out) };
        Ok(Some(shape).filter(|shape| *shape != v1::Shape::default()))
    }
}

#[derive(Args)]
pub struct UserData {
    /// File with the guest's user data, for programs as cloud-init
    #[arg(long, value_name = "FILE")]
    user_data: Option<PathBuf>,
}

impl UserData {
    pub fn message(self) -> Result<Option<String>, Failure> {
        self.user_data.as_deref().map(input::whole).transpose()
    }
}

#[derive(Args)]
pub struct TcpMidstream {
    /// Which TCP connections to accept whose SYN was not seen [default: true, those that the rules allow in the
    /// direction seen first]
    #[arg(long, value_name = "WHICH")]
    tcp_midstream: Option<Midstream>,
    /// Don't accept TCP connections whose SYN was not seen: --tcp-midstream false
    #[arg(long, conflicts_with = "tcp_midstream")]
    no_tcp_midstream: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Midstream {
    /// None
    False,
    /// Those that the rules allow in the direction seen first
    True,
    /// Also those that the rules allow in the opposite direction only
    Reverse,
}

impl TcpMidstream {
    pub fn message(self) -> Result<Option<i32>, Failure> {
        let which = self.no_tcp_midstream.then_some(Midstream::False).or(self.tcp_midstream);
        let which = which.map(|which| match which {
            Midstream::False => v1::TcpMidstream::False,
            Midstream::True => v1::TcpMidstream::True,
            Midstream::Reverse => v1::TcpMidstream::Reverse,
        });
        Ok(which.map(Into::into))
    }
}

#[derive(Args)]
pub struct RuleFrom {
    /// Source: a prefix or a guest [default: any]
    #[arg(long, add = ArgValueCandidates::new(complete::guests))]
    pub from: Option<String>,
}

impl RuleFrom {
    pub fn message(self) -> Result<Option<v1::Endpoint>, Failure> {
        Ok(end(self.from))
    }
}

#[derive(Args)]
pub struct RuleTo {
    /// Destination: a prefix or a guest [default: any]
    #[arg(long, add = ArgValueCandidates::new(complete::guests))]
    pub to: Option<String>,
}

impl RuleTo {
    pub fn message(self) -> Result<Option<v1::Endpoint>, Failure> {
        Ok(end(self.to))
    }
}

/// Returns an end of a rule, whose text is a prefix for now: `add` knows the names of guests.
fn end(text: Option<String>) -> Option<v1::Endpoint> {
    let text = text.filter(|text| text != "any")?;
    Some(v1::Endpoint { cidr: Some(text), guest: None })
}

/// The network of an object that has no other name.
#[derive(Args)]
pub struct OfNetwork {
    #[arg(id = "of", value_name = "NETWORK", required_unless_present = "network")]
    #[arg(add = ArgValueCandidates::new(complete::networks))]
    of: Option<String>,
    /// The same as NETWORK
    #[arg(long, value_name = "NETWORK", conflicts_with = "of", add = ArgValueCandidates::new(complete::networks))]
    network: Option<String>,
}

impl OfNetwork {
    pub fn message(self) -> Result<String, Failure> {
        Ok(self.of.or(self.network).unwrap_or_default())
    }
}

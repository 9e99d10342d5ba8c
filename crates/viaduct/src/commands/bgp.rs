//! bgp: peers, and the routes that they sent.

use super::{Context, value};
use crate::args::{BgpAction, BgpArgs};
use crate::client::Failure;
use crate::output::{Column, print_json, print_rows};
use api::v1;
use serde_json::Value;

const PEERS: &[Column] = &[
    ("PEER", "address"),
    ("RANGE", "range"),
    ("AS", "as"),
    ("STATE", "state"),
    ("SINCE", "since"),
    ("ROUTES", "routes"),
    ("STALE", "stale"),
    ("PENDING", "pending"),
    ("BFD", "bfd"),
    ("REASON", "reason"),
];

const ROUTES: &[Column] = &[
    ("NETWORK", "network"),
    ("PREFIX", "prefix"),
    ("USED", "used"),
    ("REMOTE", "remote"),
    ("ENCAPSULATION", "encapsulation"),
    ("LABEL", "label"),
    ("PEER", "peer"),
    ("FAMILY", "family"),
    ("RD", "rd"),
    ("STALE", "stale"),
];

const PATHS: &[Column] = &[
    ("NETWORK", "network"),
    ("PREFIX", "prefix"),
    ("PEER", "peer"),
    ("FAMILY", "family"),
    ("RD", "rd"),
    ("REMOTE", "remote"),
    ("ENCAPSULATION", "encapsulation"),
    ("LABEL", "label"),
    ("STALE", "stale"),
    ("BANDWIDTH", "bandwidth"),
    ("WEIGHT", "weight"),
    ("USED", "used"),
    ("WHY", "why"),
];

const EVPN: &[Column] = &[
    ("NETWORK", "network"),
    ("MAC", "mac"),
    ("ADDRESSES", "addresses"),
    ("REMOTE", "remote"),
    ("LABEL", "label"),
    ("MOVES", "sequence"),
    ("DUPLICATE", "duplicate"),
    ("HELD BACK", "held_back"),
];

const ANNOUNCED: &[Column] = &[
    ("NETWORK", "network"),
    ("FAMILY", "family"),
    ("ROUTE", "route"),
    ("RD", "rd"),
    ("NEXT HOP", "next_hop"),
    ("LABEL", "label"),
    ("L3VNI", "l3vni"),
    ("TARGETS", "targets"),
    ("NOT ANNOUNCED", "missing"),
];

const RANGES: &[Column] =
    &[("RANGE", "prefix"), ("PEERS", "peers"), ("MOST", "max_peers"), ("REFUSED", "refused")];

pub async fn bgp(on: &mut Context, BgpArgs { action }: BgpArgs) -> Result<(), Failure> {
    match action.unwrap_or(BgpAction::Peers) {
        BgpAction::Peers => peers(on).await,
        BgpAction::Routes { network } => routes(on, network, None, ROUTES).await,
        BgpAction::Explain { network, prefix } => routes(on, network, Some(prefix), PATHS).await,
        BgpAction::Evpn { network } => evpn(on, network).await,
        BgpAction::Announced { network } => announced(on, network).await,
        BgpAction::Drain { undo } => {
            on.client.bgp_drain(v1::BgpDrainRequest { undo }).await?;
            Ok(())
        }
    }
}

async fn peers(on: &mut Context) -> Result<(), Failure> {
    let reply = on.client.bgp(v1::BgpRequest {}).await?.into_inner();
    if on.json {
        return print_json(&value(&reply));
    }
    if reply.r#as == 0 {
        return Err(Failure::Refused("the host speaks no BGP: its file has no [bgp]".to_owned()));
    }
    if reply.drained {
        println!("Peers are asked to avoid this host (viaduct bgp drain --undo ends that).");
    }
    let row = |peer: &v1::BgpPeer| {
        let mut row = value(peer);
        row["bfd"] = peer.bfd.as_ref().map(words).into();
        row
    };
    print_rows(reply.peers.iter().map(row).collect(), PEERS, false)?;
    if !reply.ranges.is_empty() {
        println!();
        print_rows(reply.ranges.iter().map(value).collect(), RANGES, false)?;
    }
    Ok(())
}

/// Returns a session in words: "Up, 300/900 ms" are the times between two packets, and without one.
pub(super) fn words(bfd: &v1::BgpBfd) -> String {
    let ms = |time: Option<u64>| time.map_or("-".to_owned(), |time| (time / 1000).to_string());
    match (bfd.state.as_str(), bfd.diagnostic.as_str()) {
        ("Up", _) => format!("Up, {}/{} ms", ms(bfd.interval_us), ms(bfd.detection_us)),
        (state, "none") => state.to_owned(),
        (state, why) => format!("{state}, {why}"),
    }
}

async fn evpn(on: &mut Context, network: Option<String>) -> Result<(), Failure> {
    let mut parts = on.client.bgp_evpn(v1::BgpEvpnRequest { network }).await?.into_inner();
    let mut rows: Vec<Value> = Vec::new();
    while let Some(part) = parts.message().await? {
        rows.extend(part.entries.iter().map(value));
    }
    print_rows(rows, EVPN, on.json)
}

async fn announced(on: &mut Context, network: Option<String>) -> Result<(), Failure> {
    let request = v1::BgpAnnouncementsRequest { network };
    let mut parts = on.client.bgp_announcements(request).await?.into_inner();
    let mut rows: Vec<Value> = Vec::new();
    while let Some(part) = parts.message().await? {
        rows.extend(part.announcements.iter().map(value));
    }
    print_rows(rows, ANNOUNCED, on.json)
}

async fn routes(
    on: &mut Context,
    network: Option<String>,
    prefix: Option<String>,
    columns: &[Column],
) -> Result<(), Failure> {
    let mut parts = on.client.bgp_routes(v1::BgpRoutesRequest { network, prefix }).await?.into_inner();
    let mut rows: Vec<Value> = Vec::new();
    while let Some(part) = parts.message().await? {
        rows.extend(part.paths.iter().map(value));
    }
    print_rows(rows, columns, on.json)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn every_column_is_a_field() {
        let has = |row: Value, columns: &[Column]| {
            for (_, key) in columns {
                assert!(row.get(key).is_some(), "{key} is no field of {row}");
            }
        };
        has(value(&v1::BgpPeer::default()), PEERS);
        has(value(&v1::BgpPath::default()), ROUTES);
        has(value(&v1::BgpPath::default()), PATHS);
        has(value(&v1::BgpEvpnEntry::default()), EVPN);
        has(value(&v1::BgpAnnouncement::default()), ANNOUNCED);
        has(value(&v1::BgpRange::default()), RANGES);
    }
}

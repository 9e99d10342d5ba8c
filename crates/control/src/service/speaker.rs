//! Requests about routes that BGP peers sent.

use super::lists::{PART, Send, in_parts};
use crate::core::View;
use crate::ports::Ports;
use api::v1;
use config::Kind;
use ipnet::IpNet;
use tonic::Status;

/// Prefixes that are taken from the speaker at once: it does nothing else meanwhile.
const PAGE: usize = 1000;

/// The networks of a request, and its only prefix.
pub(super) struct Wanted {
    networks: Vec<(String, u16)>,
    prefix: Option<IpNet>,
}

/// Returns all networks with their numbers, or only one.
pub(super) fn networks(view: &View, only: Option<&String>) -> Result<Vec<(String, u16)>, Status> {
    let networks = view.tables.networks.values().map(|network| (network.name.to_string(), network.vrf.0));
    let networks: Vec<_> = networks.filter(|(name, _)| only.is_none_or(|only| only == name)).collect();
    if let Some(name) = only.filter(|_| networks.is_empty()) {
        let names = view.objects.of_kind(Kind::Network).map(|owned| owned.object.key().name);
        let names: Vec<_> = names.collect();
        let hint = config::did_you_mean(name, names.iter().map(String::as_str));
        return Err(super::missing(format!("there is no network \"{name}\"{hint}")));
    }
    Ok(networks)
}

pub(super) fn wanted(view: &View, request: &v1::BgpRoutesRequest) -> Result<Wanted, Status> {
    let networks = networks(view, request.network.as_ref())?;
    let prefix = request.prefix.as_ref().map(|text| {
        let address = || text.parse().map(|address: std::net::IpAddr| IpNet::from(address));
        text.parse()
            .or_else(|_| address())
            .map_err(|_| Status::invalid_argument(format!("\"{text}\" is not a prefix, as in 10.1.1.0/24")))
    });
    Ok(Wanted { networks, prefix: prefix.transpose()?.map(|prefix: IpNet| prefix.trunc()) })
}

pub(super) fn routes(
    ports: &dyn Ports,
    wanted: &Wanted,
    send: &mut Send<'_, v1::BgpRoutesReply>,
) -> Result<(), Status> {
    let mut send = |paths| in_parts(paths, PART, |paths| send(v1::BgpRoutesReply { paths }));
    for (name, vrf) in &wanted.networks {
        let named = |paths: Vec<v1::BgpPath>| {
            paths.into_iter().map(|path| v1::BgpPath { network: name.clone(), ..path }).collect::<Vec<_>>()
        };
        if let Some(prefix) = wanted.prefix {
            send(named(ports.bgp_paths(*vrf, prefix)))?;
            continue;
        }
        let mut after = None;
        loop {
            let page = ports.bgp_prefixes(*vrf, after, PAGE);
            let paths = page.iter().flat_map(|prefix| ports.bgp_paths(*vrf, *prefix)).collect();
            send(named(paths))?;
            after = page.last().copied();
            if page.len() < PAGE {
                break;
            }
        }
    }
    Ok(())
}

pub(super) fn evpn(
    ports: &dyn Ports,
    networks: &[(String, u16)],
    send: &mut Send<'_, v1::BgpEvpnReply>,
) -> Result<(), Status> {
    for (name, vrf) in networks {
        let mut send = |entries: Vec<v1::BgpEvpnEntry>| {
            let named = entries.into_iter().map(|entry| v1::BgpEvpnEntry { network: name.clone(), ..entry });
            in_parts(named, PART, |entries| send(v1::BgpEvpnReply { entries }))
        };
        let mut after = None;
        loop {
            let page = ports.bgp_macs(*vrf, after, PAGE);
            after = page.last().and_then(|entry| entry.mac.parse().ok());
            send(page)?;
            if after.is_none() {
                break;
            }
        }
        send(ports.bgp_floods(*vrf))?;
    }
    Ok(())
}

//! The speaker's state, in messages of the API.

use super::{Bgp, moves, said};
use api::v1;
use bfd::Status;
use bgp::{
    Announcement, Bandwidth, Candidate, Counts, Family, KnownMac, Label, MacPath, Nlri, Path, PeerStatus,
    RangeStatus, Rd, Speaker, State, Tunnel, Verdict, VrfId,
};
use ipnet::IpNet;
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Bgp {
    /// Returns the state of the speaker, if there is one.
    pub fn status(&self) -> Option<v1::BgpReply> {
        self.with(|speaker, now| {
            let config = speaker.config();
            v1::BgpReply {
                r#as: config.asn,
                router_id: config.router_id.to_string(),
                peers: speaker.peers().iter().map(|status| self.peer(status, now)).collect(),
                drained: self.shared.drains.load(Ordering::Relaxed),
                ranges: ranges(speaker),
            }
        })
    }

    fn peer(&self, status: &PeerStatus, now: Duration) -> v1::BgpPeer {
        let refused = self.shared.refused().get(&status.address).cloned();
        let peer = peer(status, self.bfd.get().and_then(|bfd| bfd.status(status.address)), now);
        // It may call itself.
        let refused = refused.filter(|_| status.state != State::Established);
        v1::BgpPeer { reason: refused.or(peer.reason), ..peer }
    }

    /// Returns prefixes that were learned for a network: at most so many, behind one of them.
    pub fn prefixes(&self, vrf: u16, after: Option<IpNet>, most: usize) -> Vec<IpNet> {
        let page = |speaker: &Speaker, _| speaker.routes(vrf.into(), after, most);
        self.with(page).unwrap_or_default().into_iter().map(|(prefix, _)| prefix).collect()
    }

    /// Returns the paths to a prefix that were learned for a network.
    pub fn paths(&self, vrf: u16, prefix: IpNet) -> Vec<v1::BgpPath> {
        let paths = self.with(|speaker, _| speaker.explain(vrf.into(), prefix)).unwrap_or_default();
        paths.iter().map(|candidate| path(prefix, candidate)).collect()
    }
}

impl Bgp {
    /// Returns MAC addresses of a bridged network, behind one of them: those of peers, at most so many, and the host's own
    /// as far as these go.
    pub fn macs(&self, vrf: u16, after: Option<Mac>, most: usize) -> Vec<v1::BgpEvpnEntry> {
        let speech = self.shared.speech().clone();
        let bridged = speech.iter().flat_map(|speech| speech.networks.get(&vrf)).find(|network| network.evpn);
        let rd = bridged.and_then(|network| said::distinguisher(&network.rd));
        let held = self.shared.held_back().clone();
        let list = |speaker: &Speaker, _| {
            let learned = speaker.macs(vrf.into(), after, most);
            let last = learned.last().filter(|_| learned.len() == most).map(|known| known.mac);
            let own = own_macs(speaker, rd?);
            let is_here = |mac: &Mac| own.contains_key(mac) || held.contains(&(VrfId::from(vrf), *mac));
            let theirs = learned.iter().map(|known| (known.mac, theirs(known, is_here(&known.mac))));
            let is_next =
                |mac: &Mac| after.is_none_or(|after| *mac > after) && last.is_none_or(|last| *mac <= last);
            let ours = own.iter().filter(|(mac, _)| is_next(mac)).map(|(mac, (addresses, announcement))| {
                let is_duplicate = speaker.mac(vrf.into(), *mac).is_some();
                (*mac, ours(*mac, addresses, announcement, is_duplicate))
            });
            let held: Vec<_> =
                held.iter().filter(|(its, mac)| *its == VrfId::from(vrf) && is_next(mac)).collect();
            let held_back = held.iter().map(|(_, mac)| (*mac, held_back(*mac)));
            let mut all: Vec<_> = theirs.chain(ours).chain(held_back).collect();
            all.sort_by_key(|(mac, _)| *mac);
            Some(all.into_iter().map(|(_, entry)| entry).collect())
        };
        self.with(list).flatten().unwrap_or_default()
    }

    /// Returns what is wrong, as pairs of an object and a text.
    pub fn problems(&self) -> Vec<(String, String)> {
        let Some(speech) = self.shared.speech().clone() else { return Vec::new() };
        let name =
            |vrf: &u16| speech.networks.get(vrf).map(|network| network.name.as_str()).unwrap_or_default();
        let held = self.shared.held_back();
        let moved = held.iter().filter_map(|(vrf, mac)| {
            let network = name(&u16::try_from(*vrf).ok()?);
            Some((format!("mac {mac} of network \"{network}\""), moves::text()))
        });
        let spoken = spoken(&speech.bgp);
        let unannounced = speech.outside.iter().filter(|(address, _)| spoken.contains(&plain(**address)));
        let unannounced = unannounced.filter_map(|(address, outside)| {
            let why = outside.via.err()?;
            let object = format!("address {address} of network \"{}\"", name(&outside.vrf));
            Some((object, format!("BGP does not announce it: {why}")))
        });
        let has_plain =
            [Family::Ipv4Unicast, Family::Ipv6Unicast].iter().any(|family| spoken.contains(family));
        let imports = speech.networks.values().filter(|network| network.unicast.is_some() && !has_plain);
        let silent = imports.map(|network| {
            let message =
                "`import_unicast`: no peer has \"ipv4-unicast\" or \"ipv6-unicast\" in its `families`";
            (format!("network \"{}\"", network.name), message.to_owned())
        });
        moved.chain(unannounced).chain(silent).collect()
    }

    /// Returns what the host announces of a network, or of all, and what it can't.
    pub fn announcements(&self, of: Option<u16>) -> Vec<v1::BgpAnnouncement> {
        let Some(speech) = self.shared.speech().clone() else { return Vec::new() };
        let (distinguishers, spoken) = (said::distinguishers(&speech), spoken(&speech.bgp));
        let vrf = |nlri: &Nlri| match (nlri, nlri.rd()) {
            (_, Some(rd)) => distinguishers.get(&rd).copied(),
            (Nlri::Unicast { prefix }, None) => speech.outside.get(&prefix.addr()).map(|outside| outside.vrf),
            _ => None,
        };
        let said = |speaker: &Speaker, _| {
            let row = |(nlri, its): (&Nlri, &Announcement)| {
                let unheard = || format!("no peer has \"{}\" in its `families`", nlri.family().name());
                let missing = (!spoken.contains(&nlri.family())).then(unheard);
                Some((vrf(nlri)?, v1::BgpAnnouncement { missing, ..announcement(nlri, its) }))
            };
            speaker.announced().filter_map(row).collect::<Vec<_>>()
        };
        let missing = speech.outside.iter().filter_map(|(address, outside)| {
            let (why, prefix) = (outside.via.err()?, IpNet::from(*address));
            let row = unannounced(plain(*address), prefix.to_string(), why.to_string());
            Some((outside.vrf, row))
        });
        let held = self.shared.held_back().clone().into_iter().filter_map(|(vrf, mac)| {
            Some((u16::try_from(vrf).ok()?, unannounced(Family::Evpn, mac.to_string(), moves::text())))
        });
        let said = self.with(said).unwrap_or_default().into_iter();
        let mut all: Vec<_> = said.chain(missing).chain(held).collect();
        all.retain(|(vrf, _)| of.is_none_or(|of| of == *vrf));
        all.sort_by_key(|(vrf, _)| *vrf);
        let named = |(vrf, entry): (u16, v1::BgpAnnouncement)| {
            let network = speech.networks.get(&vrf).map(|network| network.name.clone()).unwrap_or_default();
            v1::BgpAnnouncement { network, ..entry }
        };
        all.into_iter().map(named).collect()
    }

    /// Returns the hosts to which floods of a network go.
    pub fn floods(&self, vrf: u16) -> Vec<v1::BgpEvpnEntry> {
        let floods = self.with(|speaker, _| speaker.floods(vrf.into())).unwrap_or_default();
        let entry = |tunnel: &Tunnel| v1::BgpEvpnEntry {
            remote: tunnel.remote.to_string(),
            label: tunnel.label,
            ..v1::BgpEvpnEntry::default()
        };
        floods.iter().map(entry).collect()
    }
}

/// Returns the family of the plain route to an address.
const fn plain(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::Ipv4Unicast } else { Family::Ipv6Unicast }
}

/// Returns the families that some peer, or those of a range, may speak.
fn spoken(bgp: &config::Bgp) -> BTreeSet<Family> {
    let peers = said::peers(bgp).into_iter().chain(said::ranges(bgp).into_iter().map(|range| range.peer));
    peers.flat_map(|peer| peer.families).collect()
}

fn unannounced(family: Family, route: String, why: String) -> v1::BgpAnnouncement {
    let family = family.name().to_owned();
    v1::BgpAnnouncement { family, route, missing: Some(why), ..v1::BgpAnnouncement::default() }
}

fn ranges(speaker: &Speaker) -> Vec<v1::BgpRange> {
    let peers = speaker.peers();
    let range = |status: &RangeStatus| v1::BgpRange {
        prefix: status.range.to_string(),
        peers: peers.iter().filter(|peer| peer.range == Some(status.range)).count() as u32,
        max_peers: status.max_peers as u32,
        refused: status.refused,
    };
    speaker.ranges().iter().map(range).collect()
}

fn announcement(nlri: &Nlri, its: &Announcement) -> v1::BgpAnnouncement {
    let route = match nlri {
        Nlri::Vpn { prefix, .. } | Nlri::Prefix { prefix, .. } | Nlri::Unicast { prefix } => {
            prefix.to_string()
        }
        Nlri::Mac { mac, address: Some(address), .. } => format!("{mac} {address}"),
        Nlri::Mac { mac, address: None, .. } => mac.to_string(),
        Nlri::Flood { .. } => "flood".to_owned(),
    };
    v1::BgpAnnouncement {
        // The caller knows it.
        network: String::new(),
        family: nlri.family().name().to_owned(),
        route,
        rd: nlri.rd().map(|rd| rd.to_string()),
        next_hop: its.next_hop.to_string(),
        label: match its.label {
            Label::Mpls(label) | Label::Vni(label) => Some(label),
            Label::None => None,
        },
        l3vni: its.routed,
        targets: its.targets.iter().map(ToString::to_string).collect(),
        preference: its.preference,
        missing: None,
    }
}

/// Returns the host's own MAC addresses under a distinguisher, with their IP addresses.
fn own_macs(speaker: &Speaker, of: Rd) -> BTreeMap<Mac, (Vec<String>, &Announcement)> {
    let mut all: BTreeMap<Mac, (Vec<String>, &Announcement)> = BTreeMap::new();
    for (nlri, announcement) in speaker.announced() {
        if let Nlri::Mac { rd, mac, address } = nlri
            && *rd == of
        {
            let its = all.entry(*mac).or_insert((Vec::new(), announcement));
            its.0.extend(address.map(|address| address.to_string()));
        }
    }
    all
}

fn theirs(known: &KnownMac, duplicate: bool) -> v1::BgpEvpnEntry {
    let MacPath { tunnel, mobility } = known.path;
    v1::BgpEvpnEntry {
        // The control plane knows it.
        network: String::new(),
        mac: known.mac.to_string(),
        addresses: known.addresses.iter().map(ToString::to_string).collect(),
        remote: tunnel.remote.to_string(),
        label: tunnel.label,
        sequence: mobility.sequence,
        sticky: mobility.sticky,
        duplicate,
        held_back: false,
    }
}

/// Returns the entry of a guest's address that is not announced, because it moves too often.
fn held_back(mac: Mac) -> v1::BgpEvpnEntry {
    v1::BgpEvpnEntry { mac: mac.to_string(), duplicate: true, held_back: true, ..v1::BgpEvpnEntry::default() }
}

fn ours(mac: Mac, addresses: &[String], its: &Announcement, duplicate: bool) -> v1::BgpEvpnEntry {
    let label = match its.label {
        Label::Mpls(label) | Label::Vni(label) => label,
        Label::None => 0,
    };
    let mobility = its.mobility.unwrap_or_default();
    v1::BgpEvpnEntry {
        network: String::new(),
        mac: mac.to_string(),
        addresses: addresses.to_vec(),
        remote: String::new(),
        label,
        sequence: mobility.sequence,
        sticky: mobility.sticky,
        duplicate,
        held_back: false,
    }
}

fn peer(status: &PeerStatus, bfd: Option<Status>, now: Duration) -> v1::BgpPeer {
    let stale = status.stale_until.map(|until| until.saturating_sub(now).as_secs());
    v1::BgpPeer {
        address: status.address.to_string(),
        r#as: status.asn,
        state: status.state.name().to_owned(),
        since: now.saturating_sub(status.since).as_secs(),
        families: status.families.iter().map(|family| family.name().to_owned()).collect(),
        routes: status.routes as u64,
        stale,
        pending: status.pending as u64,
        reason: status.last.as_ref().map(ToString::to_string),
        counts: counts(&status.counts)
            .map(|(name, count)| v1::BgpCount { name: name.to_owned(), count })
            .into(),
        bfd: bfd.map(|status| session(&status)),
        range: status.range.map(|range| range.to_string()),
    }
}

pub fn session(status: &Status) -> v1::BgpBfd {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    v1::BgpBfd {
        state: status.state.name().to_owned(),
        diagnostic: status.diagnostic.name().to_owned(),
        remote_state: status.remote_state.name().to_owned(),
        remote_diagnostic: status.remote_diagnostic.name().to_owned(),
        interval_us: status.interval.map(micros),
        detection_us: status.detection.map(micros),
        received: status.counts.received,
        sent: status.counts.sent,
        foreign: status.counts.foreign,
        ups: status.counts.ups,
    }
}

const fn counts(counts: &Counts) -> [(&'static str, u64); 15] {
    [
        ("received", counts.received),
        ("sent", counts.sent),
        ("updates_received", counts.updates_received),
        ("updates_sent", counts.updates_sent),
        ("sessions", counts.sessions),
        ("malformed", counts.malformed),
        ("unknown", counts.unknown),
        ("foreign", counts.foreign),
        ("own", counts.own),
        ("looped", counts.looped),
        ("unwanted", counts.unwanted),
        ("unused", counts.unused),
        ("encapsulation", counts.encapsulation),
        ("crowded", counts.crowded),
        ("unusable", counts.unusable),
    ]
}

fn path(prefix: IpNet, candidate: &Candidate) -> v1::BgpPath {
    let (remote, encapsulation, label) = match candidate.path {
        Path::Tunnel { tunnel, .. } => (tunnel.remote, tunnel.encapsulation.name(), tunnel.label),
        Path::Via(router) => (router, "", 0),
    };
    let is_plain = matches!(candidate.path, Path::Via(_));
    v1::BgpPath {
        // The control plane knows it.
        network: String::new(),
        prefix: prefix.to_string(),
        peer: candidate.peer.to_string(),
        rd: if is_plain { String::new() } else { candidate.rd.to_string() },
        remote: remote.to_string(),
        encapsulation: encapsulation.to_owned(),
        label,
        used: candidate.verdict == Verdict::Used,
        why: match candidate.verdict {
            Verdict::Used if candidate.down => {
                "one of the best; its remote is out of reach, so flows take others if there are some"
                    .to_owned()
            }
            Verdict::Used => "one of the best".to_owned(),
            Verdict::Worse(why) => why.to_owned(),
        },
        stale: candidate.stale,
        family: candidate.family.name().to_owned(),
        targets: candidate.targets.iter().map(ToString::to_string).collect(),
        bandwidth: candidate.bandwidth.map(Bandwidth::bytes_per_second),
        weight: candidate.weight as u32,
    }
}

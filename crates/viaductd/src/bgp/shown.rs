//! The speaker's state, in messages of the API.

use super::Bgp;
use api::v1;
use bgp::{Candidate, Counts, PeerStatus, Speaker, Verdict};
use ipnet::IpNet;
use std::time::Duration;

impl Bgp {
    /// Returns the state of the speaker, if there is one.
    pub fn status(&self) -> Option<v1::BgpReply> {
        self.with(|speaker, now| {
            let config = speaker.config();
            v1::BgpReply {
                r#as: config.asn,
                router_id: config.router_id.to_string(),
                peers: speaker.peers().iter().map(|status| peer(status, now)).collect(),
            }
        })
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

fn peer(status: &PeerStatus, now: Duration) -> v1::BgpPeer {
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
    }
}

const fn counts(counts: &Counts) -> [(&'static str, u64); 14] {
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
        ("encapsulation", counts.encapsulation),
        ("crowded", counts.crowded),
        ("unusable", counts.unusable),
    ]
}

fn path(prefix: IpNet, candidate: &Candidate) -> v1::BgpPath {
    let tunnel = candidate.path.tunnel;
    v1::BgpPath {
        // The control plane knows it.
        network: String::new(),
        prefix: prefix.to_string(),
        peer: candidate.peer.to_string(),
        rd: candidate.rd.to_string(),
        remote: tunnel.remote.to_string(),
        encapsulation: tunnel.encapsulation.name().to_owned(),
        label: tunnel.label,
        used: candidate.verdict == Verdict::Used,
        why: match candidate.verdict {
            Verdict::Used => "one of the best".to_owned(),
            Verdict::Worse(why) => why.to_owned(),
        },
        stale: candidate.stale,
        family: candidate.family.name().to_owned(),
        targets: candidate.targets.iter().map(ToString::to_string).collect(),
    }
}

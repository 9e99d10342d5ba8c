//! Changes of `[host]` while the daemon runs.

use super::Error;
use config::{Bfd, Bgp, Host};
use std::collections::BTreeSet;

/// Checks that a new `[host]` changes only keys that may change while the daemon runs: those of tunnels and BGP, and
/// `owners`.
pub(super) fn check_host(running: &Host, wanted: &Host) -> Result<(), Error> {
    if running.name != wanted.name {
        return Err(Error::Conflict(format!(
            "the file is of host \"{}\", this is \"{}\"; if that is its name, start or replace the daemon \
             with the file",
            wanted.name, running.name
        )));
    }
    let fixed = [
        ("workers", running.workers != wanted.workers),
        ("executor", running.executor != wanted.executor),
        ("metrics", running.metrics != wanted.metrics),
        ("readers", running.readers != wanted.readers),
        ("socket_dirs", running.socket_dirs != wanted.socket_dirs),
        ("guest_memory_mb", running.guest_memory_mb != wanted.guest_memory_mb),
        ("guests_memory_mb", running.guests_memory_mb != wanted.guests_memory_mb),
    ];
    let host: Vec<_> =
        fixed.iter().filter(|(_, changed)| *changed).map(|(key, _)| (*key).to_owned()).collect();
    let tables = [("[host]", host), ("[bgp]", fixed_of_bgp(running, wanted))];
    let changed: Vec<_> = tables
        .iter()
        .filter(|(_, keys)| !keys.is_empty())
        .map(|(table, keys)| format!("{table} {}", keys.join(", ")))
        .collect();
    match &changed[..] {
        [] => Ok(()),
        keys => Err(Error::Conflict(format!(
            "{} can't change while the daemon runs: put that in the file it is started with, and {}",
            keys.join("; "),
            begin_anew(running, wanted)
        ))),
    }
}

/// Returns what changes in `[bgp]` that needs sockets which only a daemon that starts can open.
fn fixed_of_bgp(running: &Host, wanted: &Host) -> Vec<String> {
    let (running, wanted) = match (&running.bgp, &wanted.bgp) {
        (Some(running), Some(wanted)) => (running, wanted),
        (None, None) => return Vec::new(),
        (None, Some(_)) | (Some(_), None) => return vec!["as a whole".to_owned()],
    };
    let watched = |bgp: &Bgp| -> BTreeSet<_> {
        let watched = bgp.peers.iter().filter(|peer| peer.bfd != Bfd::Off);
        watched.map(|peer| (peer.address, peer.bfd == Bfd::Multihop)).collect()
    };
    let listen = (running.listen != wanted.listen).then(|| "listen".to_owned());
    let (before, after) = (watched(running), watched(wanted));
    let peers: BTreeSet<_> = before.symmetric_difference(&after).map(|(address, _)| *address).collect();
    let peers = peers.into_iter().map(|address| format!("peer {address} with `bfd`"));
    listen.into_iter().chain(peers).collect()
}

/// Tells people what to do so that all of a new `[host]` takes effect.
pub(super) fn begin_anew(running: &Host, wanted: &Host) -> &'static str {
    if running.executor == wanted.executor {
        "replace the daemon (`viaductd --replace`) or restart it"
    } else {
        // A card can't be handed over to a new daemon.
        "restart the daemon"
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn host(bgp: &str) -> Host {
        config::parse(&format!("[host]\nname = \"a\"\n{bgp}")).unwrap().host
    }

    #[test]
    fn bgp_changes_but_for_its_sockets() {
        let with = |keys: &str, peer: &str| {
            let bgp = format!("[bgp]\nas = 64512\nrouter_id = \"192.0.2.1\"\n{keys}\n");
            host(&format!("{bgp}[[bgp.peer]]\naddress = \"192.0.2.9\"\n{peer}\n"))
        };
        let running = with("", "");
        for wanted in [with("labels = \"16-9999\"", ""), with("", "port = 1790\npassword = \"x\"")] {
            assert!(running != wanted && check_host(&running, &wanted).is_ok());
        }
        for (wanted, key) in [
            (with("listen = [\"192.0.2.1\"]", ""), "[bgp] listen"),
            (with("", "bfd = true"), "[bgp] peer 192.0.2.9 with `bfd`"),
            (host(""), "[bgp] as a whole"),
        ] {
            for (before, after) in [(&running, &wanted), (&wanted, &running)] {
                let refused = check_host(before, after).unwrap_err().to_string();
                assert!(refused.starts_with(&format!("{key} can't change")), "{refused}");
            }
        }
    }
}

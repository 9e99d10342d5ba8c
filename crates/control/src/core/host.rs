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
    let host = fixed.iter().filter(|(_, changed)| *changed).map(|(key, _)| format!("[host] {key}"));
    let changed: Vec<_> =
        host.chain(fixed_of_bgp(running, wanted).map(|key| format!("[bgp] {key}"))).collect();
    match &changed[..] {
        [] => Ok(()),
        keys => Err(Error::Conflict(format!(
            "{} can't change while the daemon runs: put that in the file it is started with, and {}",
            keys.join(", "),
            begin_anew(running, wanted)
        ))),
    }
}

/// Returns what changes in `[bgp]` that needs sockets which only a daemon that starts can open.
fn fixed_of_bgp(running: &Host, wanted: &Host) -> Option<&'static str> {
    let watched = |bgp: &Bgp| -> BTreeSet<_> {
        let watched = bgp.peers.iter().filter(|peer| peer.bfd != Bfd::Off);
        watched.map(|peer| (peer.address, peer.bfd == Bfd::Multihop)).collect()
    };
    match (&running.bgp, &wanted.bgp) {
        (Some(running), Some(wanted)) if running.listen != wanted.listen => Some("listen"),
        (Some(running), Some(wanted)) if watched(running) != watched(wanted) => Some("bfd of peers"),
        (None, Some(_)) | (Some(_), None) => Some("as a whole"),
        _ => None,
    }
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
            (with("", "bfd = true"), "[bgp] bfd of peers"),
            (host(""), "[bgp] as a whole"),
        ] {
            for (before, after) in [(&running, &wanted), (&wanted, &running)] {
                let refused = check_host(before, after).unwrap_err().to_string();
                assert!(refused.starts_with(&format!("{key} can't change")), "{refused}");
            }
        }
    }
}

//! Changes of `[host]` while the daemon runs.

use super::Error;
use config::Host;

/// Checks that a new `[host]` changes only keys that may change while the daemon runs: those of tunnels, and `owners`.
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
    let mut changed: Vec<_> = fixed.iter().filter(|(_, changed)| *changed).map(|(key, _)| *key).collect();
    let of = if changed.is_empty() && running.bgp != wanted.bgp { "[bgp]" } else { "[host]" };
    changed.extend((of == "[bgp]").then_some("as a whole"));
    match &changed[..] {
        [] => Ok(()),
        keys => Err(Error::Conflict(format!(
            "{of} {} can't change while the daemon runs: put that in the file it is started with, and {}",
            keys.join(", "),
            begin_anew(running, wanted)
        ))),
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

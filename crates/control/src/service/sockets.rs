//! Requests about connections that programs have moved to memory in common.

use crate::core::Core;
use api::v1;
use matchmaker::{End, PairStatus};
use tonic::Status;

/// Stands for the socket of a virtual machine.
const AGENT: &str = "agent in the machine";

pub(super) fn reply(core: &Core, request: &v1::SocketsRequest) -> Result<v1::SocketsReply, Status> {
    let (specs, status) = (core.sockets(), core.ports().sockets());
    let is_of = |guest: &str| request.guest.as_ref().is_none_or(|only| only == guest);
    if let Some(guest) = request.guest.as_ref().filter(|only| !specs.iter().any(|spec| spec.guest == **only))
    {
        return Err(super::missing(format!("there is no guest \"{guest}\" with sockets = true")));
    }
    let guest = |spec: &crate::SocketsSpec| v1::SocketsGuest {
        name: spec.guest.clone(),
        socket: spec.socket.as_ref().map_or_else(|| AGENT.to_owned(), |path| path.display().to_string()),
        programs: status.guests.iter().find(|(name, _)| *name == spec.guest).map_or(0, |(_, n)| *n as u32),
        problem: core
            .ports()
            .sockets_problems()
            .into_iter()
            .find(|(name, _)| *name == spec.guest)
            .map(|(_, why)| why),
    };
    let counters = &status.counters;
    Ok(v1::SocketsReply {
        guests: specs.iter().filter(|spec| is_of(&spec.guest)).map(guest).collect(),
        pairs: status
            .pairs
            .iter()
            .filter(|pair| pair.guests.iter().any(|name| is_of(name)))
            .map(pair)
            .collect(),
        waiting: status.offers as u64,
        offered: counters.offered,
        matched: counters.matched,
        refused: counters.refused.values().sum(),
    })
}

fn pair(of: &PairStatus) -> v1::SocketsPair {
    let end = |end: &End| std::net::SocketAddr::new(end.addr, end.port).to_string();
    let [sends, receives] = of.rings.map(|ring| if ring { "ring" } else { "tcp" }.to_owned());
    let [pid, peer_pid] = of.pids.map(i32::unsigned_abs);
    let [guest, peer_guest] = of.guests.clone();
    v1::SocketsPair {
        guest,
        local: end(&of.key.own),
        pid,
        peer_guest,
        remote: end(&of.key.peer),
        peer_pid,
        sends,
        receives,
        sent: of.bytes[0],
        received: of.bytes[1],
        returned: of.returned.map(str::to_owned),
    }
}

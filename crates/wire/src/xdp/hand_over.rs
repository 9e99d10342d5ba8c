//! Handing an AF_XDP port over to another process. Sockets, frames, rings and the attached program stay as they are;
//! the other process maps the rings and goes on where this one stopped.

use super::attachment::Attachment;
use super::bpf::Mode;
use super::socket::{self, RxRings, TxRings, XdpSocket};
use super::{Bound, Queue};
use mem::Frozen;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;

#[cfg(test)]
mod tests;

/// State that the other process needs besides the descriptors.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    index: i32,
    /// Whether the program runs in the driver or after it.
    mode: Mode,
    /// Whether packets may take several frames.
    several: bool,
    /// For each queue, the numbers of the frames for sending that are not in flight.
    free: Vec<Vec<u32>>,
}

/// Copies all descriptors: each queue's socket and frames, the program's map and link, and the socket that makes the
/// device promiscuous, if there is one.
pub(super) fn descriptors(queues: &[Queue], attachment: &Attachment) -> io::Result<Vec<OwnedFd>> {
    let mut all = Vec::new();
    for queue in queues {
        let xsk = queue.xsk();
        all.extend([xsk.socket.try_clone()?, xsk.file.try_clone()?]);
    }
    all.extend([attachment.map.try_clone()?, attachment.link.try_clone()?]);
    all.extend(attachment.promiscuous.as_ref().map(OwnedFd::try_clone).transpose()?);
    Ok(all)
}

/// Returns the state of a port that has stopped; `None` while its device is gone. `free` is as in [`State`].
pub(super) fn freeze(queues: &[Queue], bound: &Bound, free: Vec<Vec<u32>>) -> io::Result<Option<Frozen>> {
    let Some(attachment) = &bound.attachment else { return Ok(None) };
    let state = State { index: bound.index, mode: attachment.mode, several: bound.several, free };
    let descriptors = descriptors(queues, attachment)?;
    Ok(Some(Frozen { state: serde_json::to_string(&state)?, descriptors }))
}

/// Opens a port on the interface `index` that the other process still uses. Nothing may be sent or received before
/// [`adopt`] has said where that process stopped.
pub(super) fn open(
    descriptors: Vec<OwnedFd>,
    index: i32,
    several: bool,
) -> io::Result<(Bound, Vec<(RxRings, TxRings)>)> {
    let free = vec![Vec::new(); descriptors.len().saturating_sub(2) / 2];
    resume(State { index, mode: Mode::Generic, several, free }, descriptors, &[])
}

/// Takes over the port from the other process, which has stopped; `queues` were opened for it. Frames stay mapped:
/// mapping them would take a millisecond per queue, and packets wait meanwhile.
pub(super) fn adopt(frozen: Frozen, queues: &[Queue]) -> io::Result<(Bound, Vec<(RxRings, TxRings)>)> {
    resume(serde_json::from_str(&frozen.state)?, frozen.descriptors, queues)
}

fn resume(
    state: State,
    descriptors: Vec<OwnedFd>,
    queues: &[Queue],
) -> io::Result<(Bound, Vec<(RxRings, TxRings)>)> {
    let State { index, mode, several, free } = state;
    if !matches!(descriptors.len().checked_sub(2 * free.len()), Some(2 | 3)) {
        return Err(io::Error::other("it has other descriptors than its queues need"));
    }
    let mut descriptors = descriptors.into_iter();
    let mut rings = Vec::new();
    for (number, free) in free.iter().enumerate() {
        let (Some(socket), Some(frames)) = (descriptors.next(), descriptors.next()) else { break };
        let known = queues.get(number).map(|queue| queue.xsk().clone());
        rings.push(socket::resume(XdpSocket { socket, frames }, several, free, known)?);
    }
    let (Some(map), Some(link)) = (descriptors.next(), descriptors.next()) else {
        return Err(io::Error::other("it has no program"));
    };
    let attachment = Some(Attachment { map, link, mode, promiscuous: descriptors.next() });
    Ok((Bound { attachment, index, mac: None, several }, rings))
}

//! Receiving: all descriptors that come with a message are the caller's, also if the message is wrong. The kernel would
//! close those for which there is no room here and now, which may take long.

use rustix::io::IoSliceMut;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use sockring::{MESSAGE_LEN, Message};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of control data for as many descriptors as a message can have (`SCM_MAX_FD`).
const ANY_FILES: usize = rustix::cmsg_space!(ScmRights(253));

/// Takes the next packet without waiting, with its descriptors. The message is `None` if it is none; an empty packet
/// looks like the end.
///
/// # Errors
/// The kernel's: `EAGAIN` if there is none.
pub fn receive(socket: impl AsFd) -> rustix::io::Result<(Option<Message>, Vec<OwnedFd>)> {
    let mut bytes = [0; MESSAGE_LEN];
    let mut space = [MaybeUninit::uninit(); ANY_FILES];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let is_whole = !got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok((is_whole.then(|| Message::read(&bytes[..got.bytes])).flatten(), descriptors))
}

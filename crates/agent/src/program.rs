//! A program: what it says goes to the daemon by a stream of its own, and the daemon's answers to it.

use crate::rights::User;
use matchmaker::{Frame, Offered, receive};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sockring::{BYTES, Message};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use uverbs::{AgentWindow, Caller, Endpoint, JoinError, SocketError, Stream};

/// Seconds until the daemon must have taken the news of the end: what carries streams may lose what is on the way when
/// one is closed.
const PATIENCE: i64 = 10;

/// Why a program is served no more.
#[derive(Debug, thiserror::Error)]
pub enum Over {
    #[error("{0}")]
    Join(#[from] JoinError),
    #[error("{0}")]
    Daemon(#[from] SocketError),
    #[error("{0}")]
    Kernel(#[from] Errno),
    #[error("the kernel does not tell who the program is")]
    NoUser,
    #[error("the daemon's message is none")]
    Malformed,
}

/// Serves a program until it ends, or the daemon does.
pub fn serve(program: &OwnedFd, caller: Caller, endpoint: &Endpoint, namespace: u64) -> Result<(), Over> {
    let user = User::of(program).ok_or(Over::NoUser)?;
    let (mut stream, window) = endpoint.connect_sockets(caller)?;
    if user.may_open(&rustix::fs::fstat(&window.file)?) {
        exchange(program, &mut stream, &window, namespace)?;
    }
    // The program has no memory any more.
    stream.send(&Frame::End.bytes())?;
    let limit = Timespec { tv_sec: PATIENCE, tv_nsec: 0 };
    while retry_on_intr(|| poll(&mut [PollFd::new(&stream, PollFlags::IN)], Some(&limit)))? > 0 {
        stream.receive_now()?;
    }
    Ok(())
}

/// Passes messages on, until the program has ended. An error is the daemon's end.
fn exchange(
    program: &OwnedFd,
    stream: &mut Stream,
    window: &AgentWindow,
    namespace: u64,
) -> Result<(), Over> {
    loop {
        let ready = {
            let mut wanted = [
                PollFd::new(program, PollFlags::IN),
                PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN),
            ];
            retry_on_intr(|| poll(&mut wanted, None))?;
            wanted.map(|one| !one.revents().is_empty())
        };
        if ready[0] && !hear(program, stream, namespace)? {
            return Ok(());
        }
        while ready[1]
            && let Some(bytes) = stream.receive_now()?
        {
            tell(program, &bytes, window)?;
        }
    }
}

/// Passes on what the program says next. Returns false if it says nothing any more.
fn hear(program: &OwnedFd, stream: &mut Stream, namespace: u64) -> Result<bool, Over> {
    let (message, descriptors) = match receive(program) {
        Ok((Some(message), descriptors)) => (message, descriptors),
        Err(Errno::AGAIN | Errno::INTR) => return Ok(true),
        _ => return Ok(false),
    };
    let offered = descriptors.first().and_then(Offered::read);
    // Others have addresses that others chose. Connections within the machine never come to the daemon.
    let offered = offered.filter(|offered| offered.namespace == namespace && !offered.is_within());
    // A copy here would hold the end of the stream back.
    drop(descriptors);
    stream.send(&Frame::Said(message, offered).bytes())?;
    Ok(true)
}

/// Passes on what the daemon says, with the window if there is memory in it.
fn tell(program: &OwnedFd, bytes: &[u8], window: &AgentWindow) -> Result<(), Over> {
    let message = Message::read(bytes).ok_or(Over::Malformed)?;
    let (message, file) = match message {
        Message::Matched { token, pair, second, offset, slot: 0 } => {
            let end = offset.checked_add(BYTES as u64).ok_or(Over::Malformed)?;
            if end > window.len {
                return Err(Over::Malformed);
            }
            let offset = window.base + offset;
            (Message::Matched { token, pair, second, offset, slot: 0 }, Some(window.file.as_fd()))
        }
        message => (message, None),
    };
    let bytes = message.bytes();
    let files: &[BorrowedFd<'_>] = file.as_slice();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    match retry_on_intr(|| sendmsg(program, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)) {
        // `hear` finds that it has ended.
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

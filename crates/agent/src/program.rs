//! A program: what it says goes to the daemon by a stream of its own, and the daemon's answers to it.

use crate::carried::Carried;
use crate::rights::User;
use matchmaker::{Frame, Offered, receive};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sockring::Message;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use uverbs::{Caller, Endpoint, JoinError, SocketError, Stream};

/// Seconds until the daemon must have taken the news of the end: what carries streams may lose what is on the way when
/// one is closed.
const PATIENCE: i64 = 10;

/// The pause before the daemon is told of bells.
const PAUSE: Duration = Duration::from_micros(100);

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
        exchange(program, &mut stream, &mut Carried::new(window)?, namespace)?;
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
    carried: &mut Carried,
    namespace: u64,
) -> Result<(), Over> {
    loop {
        let ready = {
            let mut wanted = [program.as_fd(), stream.as_fd(), carried.heard()]
                .map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN));
            retry_on_intr(|| poll(&mut wanted, None))?;
            wanted.map(|one| !one.revents().is_empty())
        };
        if ready[0] && !hear(program, stream, carried, namespace)? {
            return Ok(());
        }
        while ready[1]
            && let Some(bytes) = stream.receive_now()?
        {
            tell(program, &bytes, carried)?;
        }
        if ready[2] {
            // The daemon hears a program so often. More bells meanwhile count as one.
            std::thread::sleep(PAUSE);
            carried.hear();
            let message = Message::Wake { token: 0, room: false };
            stream.send(&Frame::Said(message, None).bytes())?;
        }
    }
}

/// Passes on what the program says next. Returns false if it says nothing any more.
fn hear(program: &OwnedFd, stream: &mut Stream, carried: &mut Carried, namespace: u64) -> Result<bool, Over> {
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
    let message = match message {
        Message::Offer { token, doors, carries, .. } => {
            Message::Offer { token, doors, carries, relays: true }
        }
        Message::Gone { token, .. } => {
            carried.forget(token);
            message
        }
        // Wakes are the agent's own.
        Message::Wake { .. } => return Ok(true),
        message => message,
    };
    stream.send(&Frame::Said(message, offered).bytes())?;
    Ok(true)
}

/// Passes on what the daemon says, with the window if there is memory in it.
fn tell(program: &OwnedFd, bytes: &[u8], carried: &mut Carried) -> Result<(), Over> {
    match Message::read(bytes).ok_or(Over::Malformed)? {
        Message::Matched { token, pair, second, offset, slot: 0 } => {
            let offset = carried.place(offset)?;
            let message = Message::Matched { token, pair, second, offset, slot: 0 };
            send(program, message, &[carried.window.file.as_fd()])
        }
        Message::Carried { token, pair, second, offset } => {
            let message = Message::Carried { token, pair, second, offset: carried.place(offset)? };
            // Without descriptors the program stays with TCP.
            let files = carried.add(token).unwrap_or_default();
            send(program, message, &files)
        }
        Message::Wake { token, room } => {
            carried.ring(token, room);
            Ok(())
        }
        message => send(program, message, &[]),
    }
}

fn send(program: &OwnedFd, message: Message, files: &[BorrowedFd<'_>]) -> Result<(), Over> {
    let bytes = message.bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
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

//! The daemon that is replaced.

use super::message::{Conversation, Message};
use super::now_ns;
use crate::bgp::Bgp;
use crate::forwarder::Forwarder;
use crate::machines::{self, Machines};
use crate::matchmaking::Matchmaker;
use crate::notify::Notifier;
use crate::privileges::Privileges;
use crate::remotes::Remotes;
use anyhow::{Context, bail};
use control::Core;
use mem::Frozen;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use seqpacket::MOST_DESCRIPTORS;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// How long a new daemon may take to prepare: a million routes take long. Changes are refused meanwhile.
const PREPARES: Duration = Duration::from_secs(120);
/// How long packets wait for the new daemon at most, before this one goes on.
const COMMITS: Duration = Duration::from_secs(3);

/// Most bytes of a port's state, and most descriptors, in a message.
const PART: usize = 16 << 10;
const DESCRIPTORS: usize = 200;
/// Most routes in a message: each has 64 tunnels at most.
const ROUTES: usize = 8;
/// Most remotes of tunnels in a message.
const REMOTES: usize = 64;
/// Most learned neighbours in a message.
const LEARNED: usize = 256;

/// A daemon from which a new one can take over.
pub struct Old {
    pub core: Arc<Core>,
    pub forwarder: Forwarder,
    pub privileges: Privileges,
    pub notifier: Arc<Notifier>,
    pub locks: (OwnedFd, Option<OwnedFd>),
    /// The sockets of clients, by name.
    pub listeners: Vec<(&'static str, OwnedFd)>,
    pub machines: Arc<Machines>,
    pub bgp: Arc<Bgp>,
    pub remotes: Arc<Remotes>,
    pub matchmaker: Arc<Matchmaker>,
    /// The user who started this daemon. Only this user and root may take over.
    pub user: u32,
}

impl Old {
    /// Waits for daemons that want to take over, on a separate thread, until this is dropped.
    ///
    /// # Errors
    /// There are no more threads.
    pub fn serve(self: &Arc<Self>, socket: OwnedFd) -> std::io::Result<()> {
        let old = Arc::downgrade(self);
        let serve = move || {
            loop {
                let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], None);
                let peer = accept_with(&socket, SocketFlags::CLOEXEC);
                let Some(old) = old.upgrade() else { return };
                if let Err(e) = peer.context("its connection").and_then(|peer| old.meet(peer)) {
                    tracing::warn!("another daemon does not take over: {e:#}");
                    // The process may be out of descriptors.
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        };
        std::thread::Builder::new().name("replace".into()).spawn(serve).map(drop)
    }

    /// Hands over to this peer, and ends the process. On failure it goes on as before.
    fn meet(&self, peer: OwnedFd) -> anyhow::Result<()> {
        let who = socket_peercred(&peer).context("its user")?;
        if !who.uid.is_root() && who.uid.as_raw() != self.user {
            bail!(
                "it is of user {}; only root and user {} may replace this daemon",
                who.uid.as_raw(),
                self.user
            );
        }
        let mut talk = Conversation::over(peer)?;
        let greeting = talk.greeted()?;
        talk.greet()?;
        greeting.agree()?;
        let pid = who.pid.as_raw_nonzero().get();
        tracing::info!(pid, version = greeting.build, "another daemon prepares to take over");
        let shared = self.forwarder.is_movable().and_then(|()| self.share(&mut talk)).and_then(|()| {
            talk.be_patient(PREPARES)?;
            expect(&mut talk, &Message::Freeze)?;
            self.matchmaker.part();
            talk.be_patient(COMMITS)?;
            self.freeze(&mut talk)
        });
        if let Err(e) = shared {
            self.core.stay();
            self.matchmaker.stay();
            self.remotes.stay();
            // The new daemon may be gone.
            let _ = talk.say(&Message::Refused { reason: format!("{e:#}") }, &[]);
            return Err(e);
        }
        // From here on touch nothing: no port may say goodbye, and no file may be removed.
        self.notifier.main_pid(pid);
        tracing::info!(pid, "stopped: the other daemon has taken over");
        std::process::exit(0)
    }

    /// Sends what the new daemon needs to prepare.
    fn share(&self, talk: &mut Conversation) -> anyhow::Result<()> {
        let ports = self.core.hand_over()?;
        talk.say(&Message::RunDir, &[self.locks.0.as_fd()])?;
        if let Some(lock) = &self.locks.1 {
            talk.say(&Message::Store, &[lock.as_fd()])?;
        }
        for (name, socket) in &self.listeners {
            talk.say(&Message::Listener { name: (*name).to_owned() }, &[socket.as_fd()])?;
        }
        if let Some(socket) = self.machines.share() {
            talk.say(&Message::Listener { name: machines::NAME.to_owned() }, &[socket.as_fd()])?;
        }
        for port in ports {
            let descriptors: Vec<_> = port.descriptors.iter().map(AsFd::as_fd).collect();
            let message = Message::Port { name: port.name, device: port.device };
            // Sent also for a port without descriptors.
            talk.say(&message, descriptors.get(..MOST_DESCRIPTORS).unwrap_or(&descriptors))?;
            for more in descriptors.chunks(MOST_DESCRIPTORS).skip(1) {
                talk.say(&message, more)?;
            }
        }
        for part in self.bgp.held(&self.core).chunks(ROUTES) {
            talk.say(&Message::Routes { routes: part.to_vec() }, &[])?;
        }
        talk.say(&Message::Watched { sessions: self.bgp.held_sessions() }, &[])?;
        self.remotes.leave();
        for (device, programs) in self.core.verbs_in_use() {
            let text =
                format!("programs that use verbs device \"{device}\" ({programs}) have to open it again");
            talk.say(&Message::Notice { text }, &[])?;
        }
        talk.say(&Message::Shared, &[])
    }

    /// Stops, and sends the state. Goes on if the new daemon does not take over.
    fn freeze(&self, talk: &mut Conversation) -> anyhow::Result<()> {
        self.core.rest();
        // Counts from here until the pause are lost.
        self.core.leave();
        let since_ns = now_ns();
        self.forwarder.pause().inspect_err(|_| self.core.thaw())?;
        let handed_over = self.core.freeze().map_err(Into::into).and_then(|sessions| {
            let sent = sessions.iter().try_for_each(|(port, frozen)| send(talk, port, frozen));
            sent.and_then(|()| self.tell_learned(talk))
                .and_then(|()| self.tell_remotes(talk))
                .and_then(|()| talk.say(&Message::Frozen { since_ns }, &[]))
                .and_then(|()| expect(talk, &Message::Commit))
                .and_then(|()| {
                    self.privileges.retire(true);
                    talk.say(&Message::Go, &[])
                })
        });
        if let Err(e) = &handed_over {
            // Comes first, so that the new daemon does not take over while this one goes on.
            let _ = talk.say(&Message::Refused { reason: format!("{e:#}") }, &[]);
            self.privileges.retire(false);
            self.core.thaw();
            self.forwarder.resume();
        }
        handed_over
    }

    fn tell_learned(&self, talk: &mut Conversation) -> anyhow::Result<()> {
        let learned = self.core.learned();
        learned
            .chunks(LEARNED)
            .try_for_each(|part| talk.say(&Message::Learned { learned: part.to_vec() }, &[]))
    }

    /// Sends which remotes of tunnels are there, as it is now that no more packets come.
    fn tell_remotes(&self, talk: &mut Conversation) -> anyhow::Result<()> {
        let held = self.remotes.rest();
        held.parts(REMOTES).try_for_each(|remotes| talk.say(&Message::Remotes { remotes }, &[]))
    }
}

/// Sends the state of a port, in parts.
fn send(talk: &mut Conversation, port: &str, frozen: &Frozen) -> anyhow::Result<()> {
    // Port states are JSON of ASCII characters, so they can be cut anywhere.
    let mut state = frozen.state.as_bytes().chunks(PART);
    let mut descriptors = frozen.descriptors.chunks(DESCRIPTORS);
    let (mut text, mut open) = (state.next(), descriptors.next());
    while text.is_some() || open.is_some() {
        let part = String::from_utf8(text.unwrap_or_default().to_vec()).context("state of a port")?;
        let with: Vec<_> = open.unwrap_or_default().iter().map(AsFd::as_fd).collect();
        (text, open) = (state.next(), descriptors.next());
        let more = text.is_some() || open.is_some();
        talk.say(&Message::Session { port: port.to_owned(), state: part, more }, &with)?;
    }
    Ok(())
}

fn expect(talk: &mut Conversation, wanted: &Message) -> anyhow::Result<()> {
    match talk.hear()? {
        (message, _) if message == *wanted => Ok(()),
        (other, _) => bail!("it says {other:?} in place of {wanted:?}"),
    }
}

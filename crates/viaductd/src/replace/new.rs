//! The daemon that takes over.

use super::message::{Conversation, Greeting, Message, Refusal, socket};
use super::now_ns;
use crate::bgp::{Held, HeldSession};
use crate::forwarder::Forwarder;
use crate::inherit::Succession;
use crate::privileges::Privileges;
use crate::remotes::{HeldRemotes, Remotes};
use anyhow::{Context, bail};
use carryover::Opened;
use control::{Core, Learned};
use mem::Frozen;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, PidfdFlags, getuid, pidfd_open};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Most ports and parts of states that a daemon hands over.
const MOST: usize = 1 << 20;

/// The descriptors that the old daemon shares before it stops.
#[derive(Debug, Default)]
pub struct Shared {
    /// Locks of run-dir and store.
    pub run_dir: Option<OwnedFd>,
    pub store: Option<OwnedFd>,
    /// Sockets of clients, by name.
    pub listeners: BTreeMap<String, OwnedFd>,
    /// Ports by the names of their interfaces: the device, and the descriptors from which to open it.
    pub ports: BTreeMap<String, (String, Vec<OwnedFd>)>,
    /// Routes that BGP peers sent.
    pub routes: Vec<Held>,
    /// BFD sessions with BGP peers.
    pub sessions: Vec<HeldSession>,
}

pub struct New {
    talk: Conversation,
    pidfd: OwnedFd,
    pub succession: Arc<Succession>,
}

impl New {
    /// Asks the daemon of a run-dir to hand over, while this process may still connect. From here on that
    /// daemon accepts no changes.
    ///
    /// # Errors
    /// There is no daemon, or it refuses.
    pub fn ask(run_dir: &Path) -> anyhow::Result<(Self, Shared)> {
        let path = socket(run_dir);
        let peer = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&peer, &SocketAddrUnix::new(&path)?).map_err(|e| {
            let what = match e {
                Errno::ACCESS | Errno::PERM => "only root and the user who started the daemon may replace it",
                _ => "no daemon runs there that can be replaced; start without --replace",
            };
            anyhow::Error::new(e).context(format!("{}: {what}", path.display()))
        })?;
        // The helper made the socket, and runs as its own user.
        let by = socket_peercred(&peer)?.uid;
        if !by.is_root() && by != getuid() && by.as_raw() != sandbox::account().uid {
            bail!("{}: user {} listens there, who does not start daemons", path.display(), by.as_raw());
        }
        let mut talk = Conversation::over(peer)?;
        talk.greet()?;
        let greeting = talk.greeted()?;
        greeting.agree()?;
        let pidfd = running(&greeting)?;
        tracing::info!(pid = greeting.pid, version = greeting.build, "takes over from a daemon");
        let shared = shared(&mut talk)?;
        Ok((Self { talk, pidfd, succession: Arc::default() }, shared))
    }

    /// Takes over once everything is prepared. From here on packets wait. Does not wait for the old daemon's
    /// end.
    ///
    /// On failure the process ends at once, and the old daemon goes on. Everything open belongs to that
    /// daemon, so nothing may be closed in an orderly way.
    pub fn take_over(
        mut self,
        (core, left): (&Arc<Core>, Option<Opened>),
        (forwarder, remotes): (&Forwarder, &Remotes),
        privileges: &Privileges,
    ) {
        let since_ns = self.switch((core, remotes), left, privileges).unwrap_or_else(|e| {
            // If the old daemon died, this one's helper must keep the taps: the old helper keeps them too, or
            // gave them to this helper when it started.
            if e.is::<Refusal>() || !self.has_ended(1) {
                privileges.retire(true);
            }
            eprintln!("viaductd: the running daemon goes on: {e:#}");
            std::process::exit(1)
        });
        forwarder.resume();
        // Before anybody is served.
        self.succession.succeed(&*privileges.sockets);
        core.thaw();
        let waited_us = now_ns().saturating_sub(since_ns) / 1000;
        tracing::info!(waited_us, "has taken over");
        privileges.succeed();
        core.succeed();
        self.settle(core.clone());
    }

    /// Runs the exchange until the old daemon has gone. Returns the time since which packets wait.
    fn switch(
        &mut self,
        (core, remotes): (&Core, &Remotes),
        left: Option<Opened>,
        privileges: &Privileges,
    ) -> anyhow::Result<u64> {
        let since_ns = self.follow(core, remotes, left).inspect_err(|e| {
            // The old daemon goes on at once, and its log says why.
            let _ = self.talk.say(&Message::Refused { reason: format!("{e:#}") }, &[]);
        })?;
        // Both helpers keep the taps for a moment, because either daemon may die.
        privileges.retire(false);
        self.talk.say(&Message::Commit, &[])?;
        match self.talk.hear() {
            Ok((Message::Go, _)) => Ok(since_ns),
            Ok((other, _)) => bail!("it says {other:?} in place of its end"),
            Err(e) if e.is::<Refusal>() => Err(e),
            // The old daemon died, so nobody else has the host and nothing moved, unless it refused before.
            Err(_) if self.has_ended(1) => match self.talk.hear() {
                Err(e) if e.is::<Refusal>() => Err(e),
                _ => Ok(since_ns),
            },
            Err(e) => Err(e),
        }
    }

    /// Takes the state at which the old daemon stops. Returns the time since which packets wait.
    fn follow(&mut self, core: &Core, remotes: &Remotes, left: Option<Opened>) -> anyhow::Result<u64> {
        let left = left.map(|left| core.foresee(left));
        self.talk.say(&Message::Freeze, &[])?;
        let Stopped { sessions, learned, remotes: held, since_ns } = stopped(&mut self.talk)?;
        remotes.adopt(held);
        core.adopt(sessions)?;
        core.learn(&learned);
        left.into_iter().for_each(|left| core.take_over(left));
        core.refresh()?;
        Ok(since_ns)
    }

    fn has_ended(&self, seconds: i64) -> bool {
        let most = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&most)).is_ok_and(|ready| ready > 0)
    }

    /// Takes the rest once the old daemon is gone.
    fn settle(self, core: Arc<Core>) {
        let settle = move || {
            while !self.has_ended(60) {
                tracing::warn!("the replaced daemon does not end");
            }
            if let Err(e) = core.settle() {
                tracing::warn!("a port that the replaced daemon had can't be opened: {e}");
            }
        };
        if let Err(e) = std::thread::Builder::new().name("replace".into()).spawn(settle) {
            tracing::error!("can't start a thread: {e}");
        }
    }
}

/// Returns a descriptor that polls readable when the greeting daemon has ended.
fn running(greeting: &Greeting) -> anyhow::Result<OwnedFd> {
    let pid = Pid::from_raw(greeting.pid).context("a greeting without a process")?;
    pidfd_open(pid, PidfdFlags::empty()).context("the daemon that greets does not run")
}

/// Receives the descriptors that the old daemon shares.
pub(super) fn shared(talk: &mut Conversation) -> anyhow::Result<Shared> {
    let mut shared = Shared::default();
    for _ in 0..MOST {
        let (message, descriptors) = talk.hear()?;
        let mut one = descriptors.into_iter();
        match message {
            Message::RunDir => shared.run_dir = one.next(),
            Message::Store => shared.store = one.next(),
            Message::Listener { name } => shared.listeners.extend(one.next().map(|socket| (name, socket))),
            Message::Port { name, device } => {
                shared.ports.entry(name).or_insert_with(|| (device, Vec::new())).1.extend(one);
            }
            Message::Routes { routes } => shared.routes.extend(routes),
            Message::Watched { sessions } => shared.sessions.extend(sessions),
            Message::Shared => return Ok(shared),
            other => bail!("it says {other:?} while it shares"),
        }
    }
    bail!("it shares more than a daemon has")
}

/// The state at which the old daemon stopped.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    pub sessions: BTreeMap<String, Frozen>,
    pub learned: Vec<Learned>,
    /// BFD with remotes of tunnels.
    pub remotes: HeldRemotes,
    /// The time since which packets wait.
    pub since_ns: u64,
}

/// Receives the state at which the old daemon stops.
pub(super) fn stopped(talk: &mut Conversation) -> anyhow::Result<Stopped> {
    let mut stopped = Stopped::default();
    for _ in 0..MOST {
        let (message, descriptors) = talk.hear()?;
        match message {
            Message::Session { port, state, .. } => {
                let session = stopped.sessions.entry(port).or_default();
                session.state.push_str(&state);
                session.descriptors.extend(descriptors);
            }
            Message::Learned { learned } => stopped.learned.extend(learned),
            Message::Remotes { remotes } => stopped.remotes.extend(remotes),
            Message::Frozen { since_ns } => return Ok(Stopped { since_ns, ..stopped }),
            other => bail!("it says {other:?} while it stops"),
        }
    }
    bail!("it has more than a daemon has")
}

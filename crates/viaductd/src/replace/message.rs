//! The messages that two daemons exchange while one takes over from the other.
//!
//! Each begins with its [`Greeting`], whose form never changes. A daemon ignores fields and messages that it
//! does not know. A change that it must know to go on comes with a new version.

use crate::bgp::{Held, HeldSession};
use crate::remotes::HeldRemotes;
use anyhow::{Context, bail};
use control::Learned;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use seqpacket::{Connection, MOST_DESCRIPTORS};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The versions of the conversation that this daemon speaks.
const OLDEST: u32 = 1;
const NEWEST: u32 = 1;

/// How long a daemon waits for the other one by default.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the socket on which the daemon of a run-dir waits for a new one.
pub fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("replace.sock")
}

/// The first message of both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// The versions of the conversation that the sender speaks.
    pub oldest: u32,
    pub newest: u32,
    /// The daemon's version, for people.
    #[serde(default)]
    pub build: String,
    #[serde(default)]
    pub pid: i32,
}

impl Greeting {
    pub fn ours() -> Self {
        let pid = std::process::id().try_into().unwrap_or_default();
        Self { oldest: OLDEST, newest: NEWEST, build: env!("CARGO_PKG_VERSION").to_owned(), pid }
    }

    /// Returns the newest version that both speak.
    ///
    /// # Errors
    /// There is none.
    pub fn agree(&self) -> anyhow::Result<u32> {
        let version = self.newest.min(NEWEST);
        if version < self.oldest.max(OLDEST) {
            bail!(
                "the other daemon (version {}) hands over by versions {} to {} of the conversation, this one ({}) by \
                 {OLDEST} to {NEWEST}: restart the daemon instead",
                self.build,
                self.oldest,
                self.newest,
                env!("CARGO_PKG_VERSION")
            );
        }
        Ok(version)
    }
}

/// The messages after the greeting, in this order. The old daemon sends all but [`Message::Freeze`] and
/// [`Message::Commit`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Message {
    /// At any time: the sender does not go on, and why.
    Refused { reason: String },
    /// At any time, for people: something that will stop.
    Notice { text: String },
    /// Carries the lock of the run-dir.
    RunDir,
    /// Carries the lock of the store.
    Store,
    /// Carries a listening socket of clients.
    Listener { name: String },
    /// Carries the descriptors from which to open a port. Comes several times for a port with more than fit
    /// into a message.
    Port { name: String, device: String },
    /// Routes that BGP peers sent.
    Routes { routes: Vec<Held> },
    /// BFD sessions with BGP peers.
    Watched { sessions: Vec<HeldSession> },
    /// The new daemon has everything to prepare.
    Shared,
    /// The new daemon is prepared.
    Freeze,
    /// A part of a port's state, and of its descriptors.
    Session {
        port: String,
        state: String,
        /// Whether the next message has more of it.
        more: bool,
    },
    /// Neighbours learned from packets.
    Learned { learned: Vec<Learned> },
    /// BFD with remotes of tunnels.
    Remotes { remotes: HeldRemotes },
    /// The old daemon has sent everything. Since this time no packet is forwarded, in nanoseconds of the
    /// monotonic clock.
    Frozen { since_ns: u64 },
    /// The new daemon has all it needs, and has touched nothing of it yet.
    Commit,
    /// Everything belongs to the new daemon. The old one ends.
    Go,
    /// A message that this version does not know.
    #[serde(other)]
    Unknown,
}

#[derive(Debug, thiserror::Error)]
#[error("the other daemon refuses: {0}")]
pub struct Refusal(String);

pub struct Conversation(Connection);

impl Conversation {
    pub fn over(socket: OwnedFd) -> anyhow::Result<Self> {
        let conversation = Self(Connection::carrying(socket, MOST_DESCRIPTORS));
        conversation.be_patient(PATIENCE)?;
        Ok(conversation)
    }

    /// Sets how long to wait for the other side from now on.
    pub fn be_patient(&self, patience: Duration) -> anyhow::Result<()> {
        for way in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(self.0.as_fd(), way, Some(patience)).context("patience")?;
        }
        Ok(())
    }

    pub fn greet(&mut self) -> anyhow::Result<()> {
        self.0.send(&Greeting::ours(), &[]).context("the other daemon can't be greeted")
    }

    pub fn greeted(&mut self) -> anyhow::Result<Greeting> {
        Ok(self.0.receive().context("the other daemon does not greet")?.0)
    }

    pub fn say(&mut self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        self.0.send(message, descriptors).context("the other daemon does not listen")
    }

    /// Returns the next message that this version knows, and logs notices.
    ///
    /// # Errors
    /// The other side sends nothing, or does not go on.
    pub fn hear(&mut self) -> anyhow::Result<(Message, Vec<OwnedFd>)> {
        loop {
            match self.0.receive().context("the other daemon says nothing")? {
                (Message::Unknown, _) => {}
                (Message::Notice { text }, _) => tracing::warn!("the other daemon says: {text}"),
                (Message::Refused { reason }, _) => return Err(Refusal(reason).into()),
                other => return Ok(other),
            }
        }
    }
}

//! What two daemons say to each other while one takes over from the other.
//!
//! Each begins with its [`Greeting`], whose form never changes. Fields and messages that a daemon does not know are
//! left out; what it must know to go on comes with another version.

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

/// How long a daemon waits for the other one, unless said otherwise.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Where the daemon of a run-dir listens for one that takes over.
pub fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("replace.sock")
}

/// What both say first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// The versions of the conversation that it speaks.
    pub oldest: u32,
    pub newest: u32,
    /// The daemon's version, for people.
    #[serde(default)]
    pub build: String,
    /// Its process id.
    #[serde(default)]
    pub pid: i32,
}

impl Greeting {
    /// This daemon's.
    pub fn ours() -> Self {
        let pid = std::process::id().try_into().unwrap_or_default();
        Self { oldest: OLDEST, newest: NEWEST, build: env!("CARGO_PKG_VERSION").to_owned(), pid }
    }

    /// The version that both speak.
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

/// What follows, in this order. The old daemon says all but [`Message::Freeze`] and [`Message::Commit`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Message {
    /// At any time: it does not go on, and why.
    Refused { reason: String },
    /// At any time, for people: what does not go on.
    Notice { text: String },
    /// With the lock of the run-dir.
    RunDir,
    /// With the lock of the store.
    Store,
    /// With a listening socket of clients.
    Listener { name: String },
    /// With what a port is opened with; several times for one that has more than fits a message.
    Port { name: String, device: String },
    /// That was all that is needed to prepare.
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
    /// What was learned from packets.
    Learned { learned: Vec<Learned> },
    /// That was all; since when no packet is forwarded, in nanoseconds of the monotonic clock.
    Frozen { since_ns: u64 },
    /// The new daemon has all it needs, and touches nothing of it yet.
    Commit,
    /// All is the new daemon's. The old one ends.
    Go,
    /// What this version does not know.
    #[serde(other)]
    Unknown,
}

/// The other daemon does not go on.
#[derive(Debug, thiserror::Error)]
#[error("the other daemon refuses: {0}")]
pub struct Refusal(String);

/// One end of the conversation.
pub struct Conversation(Connection);

impl Conversation {
    /// Over this socket.
    pub fn over(socket: OwnedFd) -> anyhow::Result<Self> {
        let conversation = Self(Connection::carrying(socket, MOST_DESCRIPTORS));
        conversation.be_patient(PATIENCE)?;
        Ok(conversation)
    }

    /// How long it waits for the other side from now on.
    pub fn be_patient(&self, patience: Duration) -> anyhow::Result<()> {
        for way in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(self.0.as_fd(), way, Some(patience)).context("patience")?;
        }
        Ok(())
    }

    /// Greets the other side.
    pub fn greet(&mut self) -> anyhow::Result<()> {
        self.0.send(&Greeting::ours(), &[]).context("the other daemon can't be greeted")
    }

    /// Takes its greeting.
    pub fn greeted(&mut self) -> anyhow::Result<Greeting> {
        Ok(self.0.receive().context("the other daemon does not greet")?.0)
    }

    /// Says something.
    pub fn say(&mut self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
        self.0.send(message, descriptors).context("the other daemon does not listen")
    }

    /// What it says next, of what this version knows.
    ///
    /// # Errors
    /// Nothing, or that it does not go on.
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

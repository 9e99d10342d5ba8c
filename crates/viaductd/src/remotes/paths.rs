//! Watches the paths to a remote that has several, by seamless BFD (RFC 7880). A path without answers is down only if
//! another path gets some: otherwise the remote may not speak seamless BFD, or may be down itself, as its session says.

use bfd::{Config, Initiator, LEN, Packet};
use model::{Change, VifId};
use std::net::IpAddr;
use std::time::Duration;

/// Most paths to a remote that are watched.
pub(super) const MOST: usize = 8;

/// A path's wire and next hop.
pub(super) type Way = (VifId, IpAddr);

struct Path {
    way: Way,
    initiator: Initiator,
    is_down: bool,
}

/// The paths to a remote that are watched: none, or several.
#[derive(Default)]
pub(super) struct Paths {
    paths: Vec<Path>,
    /// The number of the remote's session, which questions must name. It outlives this host's session: that may fall
    /// because of a broken path.
    reflector: u32,
}

impl Paths {
    /// Returns whether these are watched.
    pub fn are(&self, ways: &[Way]) -> bool {
        self.paths.iter().map(|path| &path.way).eq(ways)
    }

    /// Watches these from now on. Returns the others that were watched.
    pub fn follow(&mut self, ways: &[Way], config: Config, seed: impl Fn(Way) -> u64, now: Duration) -> Self {
        let mut before = std::mem::take(&mut self.paths);
        let path = |way: &Way| match before.iter().position(|path| path.way == *way) {
            Some(known) => before.swap_remove(known),
            None => Path { way: *way, initiator: Initiator::new(config, seed(*way), now), is_down: false },
        };
        self.paths = ways.iter().map(path).collect();
        Self { paths: before, reflector: self.reflector }
    }

    pub fn count(&self) -> usize {
        self.paths.len()
    }

    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.paths.iter().map(|path| path.initiator.number())
    }

    /// Takes an answer of the remote.
    pub fn received(&mut self, packet: &Packet, now: Duration) {
        self.paths.iter_mut().for_each(|path| path.initiator.received(packet, now));
    }

    pub fn tick(&mut self, now: Duration) {
        self.paths.iter_mut().for_each(|path| path.initiator.tick(now));
    }

    /// Waits for answers anew, because none could arrive for a while.
    pub fn wait_anew(&mut self, now: Duration) {
        self.paths.iter_mut().for_each(|path| path.initiator.wait_anew(now));
    }

    pub fn deadline(&self) -> Option<Duration> {
        self.paths.iter().map(|path| path.initiator.deadline()).min()
    }

    /// Returns the questions that are due to the remote, whose session has this number, if it is known.
    pub fn output(&mut self, session: u32, now: Duration) -> impl Iterator<Item = (Way, [u8; LEN])> {
        if session != 0 {
            self.reflector = session;
        }
        let reflector = self.reflector;
        self.paths.iter_mut().filter_map(move |Path { way, initiator, .. }| {
            initiator.output(reflector, now).map(|question| (*way, question))
        })
    }

    /// Returns the paths for a packet of the session: all that may work, so that one that breaks does not end it.
    pub fn usable(&self) -> impl Iterator<Item = Way> {
        self.paths.iter().filter(|path| !path.is_down).map(|path| path.way)
    }

    /// Returns which paths are down, or not any more, since the last call.
    pub fn settle(&mut self, remote: IpAddr) -> impl Iterator<Item = Change> {
        let is_down = |path: &Path| self.paths.iter().any(|other| other.initiator.outlives(&path.initiator));
        let down: Vec<bool> = self.paths.iter().map(is_down).collect();
        self.paths.iter_mut().zip(down).filter_map(move |(path, is_down)| {
            let (wire, hop) = path.way;
            let is_new = std::mem::replace(&mut path.is_down, is_down) != is_down;
            is_new.then_some(Change::SetPathDown { remote, wire, hop, is_down })
        })
    }

    /// Forgets these paths. Returns the changes that undo what [`Self::settle`] said of them.
    pub fn forgotten(self, remote: IpAddr) -> impl Iterator<Item = Change> {
        let down = self.paths.into_iter().filter(|path| path.is_down);
        down.map(move |Path { way: (wire, hop), .. }| Change::SetPathDown {
            remote,
            wire,
            hop,
            is_down: false,
        })
    }

    /// Returns whether the remote answers no questions: then nothing is known of its paths.
    pub fn is_silent(&self) -> bool {
        !self.paths.is_empty() && self.paths.iter().all(|path| path.initiator.works() == Some(false))
    }

    /// Returns the paths that are down.
    pub fn down(&self) -> impl Iterator<Item = Way> {
        self.paths.iter().filter(|path| path.is_down).map(|path| path.way)
    }
}

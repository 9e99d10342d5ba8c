use super::super::socket::{CHUNK, RX_FRAMES, TX_FRAMES, size_rings};
use super::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use std::cell::RefCell;
use std::panic::AssertUnwindSafe;

/// A port that one process hands to the next: the queues, and substitutes for the descriptors of a program.
struct Port {
    queues: Vec<XdpSocket>,
    others: [OwnedFd; 4],
    /// For each queue, the frames that are not in flight, as the last process left them.
    free: Vec<Vec<u32>>,
}

impl Port {
    /// Makes a port with two queues, or with none if the process may not make AF_XDP sockets: then only descriptions
    /// are tested.
    fn new() -> Self {
        let queue = |_| {
            let xdp = XdpSocket::new().inspect_err(|e| eprintln!("no AF_XDP socket: {e}")).ok()?;
            size_rings(&xdp.socket).unwrap();
            Some(xdp)
        };
        let queues: Vec<_> = (0..2).filter_map(queue).collect();
        let short = || memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap().into();
        let others = [short(), null, eventfd(0, EventfdFlags::NONBLOCK).unwrap(), short()];
        let free = vec![(RX_FRAMES..RX_FRAMES + TX_FRAMES).collect(); queues.len()];
        Self { queues, others, free }
    }

    /// Copies the descriptors that the next process needs.
    fn descriptors(&self) -> Vec<OwnedFd> {
        let queues = self.queues.iter().flat_map(|queue| [&queue.socket, &queue.frames]);
        queues.chain(&self.others[..2]).map(|open| open.try_clone().unwrap()).collect()
    }

    /// Returns a copy of an arbitrary descriptor.
    fn any(&self, choice: u8) -> OwnedFd {
        let queues = self.queues.iter().flat_map(|queue| [&queue.socket, &queue.frames]);
        let all: Vec<_> = queues.chain(&self.others).collect();
        all[usize::from(choice) % all.len()].try_clone().unwrap()
    }
}

/// A process hands the port over to the next one.
#[derive(Debug, bolero::TypeGenerator)]
struct Round {
    in_flight: u16,
    several: bool,
    /// Further contents of the hand-over: arbitrary text in place of the state, or the numbers of frames.
    text: Option<Vec<u8>>,
    free: Vec<Vec<u16>>,
    near: bool,
    descriptors: Vec<u8>,
}

/// Checks that senders have only frames for sending, each once; returns their numbers.
fn frames(rings: &[(RxRings, TxRings)]) -> Vec<Vec<u32>> {
    let of = |(_, tx): &(RxRings, TxRings)| {
        assert!(tx.free.iter().all(|at| at % CHUNK as u64 == 0) && tx.free.capacity() >= TX_FRAMES as usize);
        let numbers: Vec<_> = tx.free.iter().map(|at| (at / CHUNK as u64) as u32).collect();
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), numbers.len(), "free twice");
        assert!(sorted.iter().all(|frame| (RX_FRAMES..RX_FRAMES + TX_FRAMES).contains(frame)));
        numbers
    };
    rings.iter().map(of).collect()
}

/// `cargo bolero test -p wire xdp::hand_over::tests::any_state_is_survived`: a state that a process hands over is
/// either refused or leaves the frames in order; and the next process can take over from one that accepted a state.
#[test]
fn any_state_is_survived() {
    let port = AssertUnwindSafe(RefCell::new(Port::new()));
    bolero::check!().with_type::<Vec<Round>>().for_each(|rounds| {
        let port = &mut *port.borrow_mut();
        for round in rounds.iter().take(4) {
            let number = |frame: &u16| match round.near {
                true => RX_FRAMES + u32::from(*frame) % TX_FRAMES,
                false => u32::from(*frame),
            };
            let free = round.free.iter().take(4).map(|free| free.iter().map(number).collect()).collect();
            let said = State { index: 1, mode: Mode::Native, several: round.several, free };
            let said = match &round.text {
                Some(text) => String::from_utf8_lossy(text).into_owned(),
                None => serde_json::to_string(&said).unwrap(),
            };
            let descriptors = match round.descriptors.as_slice() {
                [] => port.descriptors(),
                chosen => chosen.iter().take(8).map(|choice| port.any(*choice)).collect(),
            };
            if let Ok((_, rings)) = adopt(Frozen { state: said, descriptors }, &[]) {
                frames(&rings);
            }
            // A process that hands over the port's true state.
            let state =
                State { index: 1, mode: Mode::Generic, several: round.several, free: port.free.clone() };
            let state = serde_json::to_string(&state).unwrap();
            let (bound, rings) = adopt(Frozen { state, descriptors: port.descriptors() }, &[]).unwrap();
            assert_eq!((bound.index, bound.several, frames(&rings)), (1, round.several, port.free.clone()));
            // The process sends, and then hands over: different frames are in flight, and frames came back in a
            // different order.
            for free in &mut port.free {
                let mut all: Vec<_> = (RX_FRAMES..RX_FRAMES + TX_FRAMES).collect();
                let in_flight = usize::from(round.in_flight) % all.len();
                all.rotate_left(in_flight);
                all.truncate(TX_FRAMES as usize - in_flight);
                *free = all;
            }
        }
    });
}

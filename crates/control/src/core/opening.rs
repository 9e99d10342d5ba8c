//! Opens ports on a separate thread. A port that hangs, because a file system or a user database does not
//! answer, delays the others only briefly. It has a fault until it opens after all.

use super::open_ports::chain;
use crate::ports::{PortError, PortSpec, Ports};
use mem::Opened;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// How long others wait for one port, for all that hang together, and for each further one beyond that.
const PATIENCE: [Duration; 3] = [Duration::from_secs(3), Duration::from_secs(6), Duration::from_millis(200)];

type Answer = Result<Opened, Unopened>;

pub(super) struct Late(Receiver<Answer>);

impl Late {
    /// Returns the result; the error holds `self` while the port is still being opened.
    pub(super) fn get(self) -> Result<Opened, Unopened> {
        match self.0.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) => Err(Unopened::late(self)),
            Err(TryRecvError::Disconnected) => Err(Unopened::from(PANICKED.to_owned())),
        }
    }
}

/// The reason when the thread has ended without an answer: nothing else ends it.
const PANICKED: &str = "what opened it has panicked";

pub(super) struct Unopened {
    pub(super) reason: String,
    /// Whether the reason is in the contents of a directory, which somebody else controls
    /// ([`Ports::is_of_place`]).
    pub(super) is_of_place: bool,
    /// The attempt, while it may still succeed.
    pub(super) late: Option<Late>,
}

impl From<String> for Unopened {
    fn from(reason: String) -> Self {
        Self { reason, is_of_place: false, late: None }
    }
}

impl Unopened {
    /// Describes why `ports` could not open a port.
    fn new(ports: &dyn Ports, why: &PortError) -> Self {
        Self { reason: chain(&**why), is_of_place: ports.is_of_place(why), late: None }
    }

    fn late(late: Late) -> Self {
        let reason = "it is being opened, and something does not answer".to_owned();
        Self { late: Some(late), ..Self::from(reason) }
    }
}

pub(super) struct Opening {
    ports: Arc<dyn Ports>,
    /// The thread that opens them, unless it hangs.
    thread: Option<(Sender<PortSpec>, Receiver<Answer>)>,
    /// Rest of the patience for all ports that hang.
    left: Duration,
}

impl Opening {
    pub(super) const fn new(ports: Arc<dyn Ports>) -> Self {
        Self { ports, thread: None, left: PATIENCE[1] }
    }

    /// Opens a port.
    ///
    /// # Errors
    /// The reason why it can't be opened, or is late.
    pub(super) fn open(&mut self, spec: &PortSpec) -> Result<Opened, Unopened> {
        let (ask, answers) = match self.thread.take() {
            Some(thread) => thread,
            None => {
                start(self.ports.clone()).map_err(|e| Unopened::from(format!("no thread opens it: {e}")))?
            }
        };
        // A thread that has panicked does not answer.
        let _ = ask.send(spec.clone());
        let began = Instant::now();
        let answer = answers.recv_timeout(PATIENCE[0].min(self.left).max(PATIENCE[2]));
        match answer {
            Ok(answer) => {
                self.thread = Some((ask, answers));
                answer
            }
            Err(RecvTimeoutError::Timeout) => {
                self.left = self.left.saturating_sub(began.elapsed());
                Err(Unopened::late(Late(answers)))
            }
            Err(RecvTimeoutError::Disconnected) => Err(Unopened::from(PANICKED.to_owned())),
        }
    }
}

/// Starts a thread that opens ports until nobody asks any more.
fn start(ports: Arc<dyn Ports>) -> std::io::Result<(Sender<PortSpec>, Receiver<Answer>)> {
    let (ask, asked) = channel::<PortSpec>();
    let (answer, answers) = channel();
    let open = move || {
        for spec in asked {
            // If the change was undone meanwhile, the port closes with the answer.
            let _ = answer.send(ports.open(&spec).map_err(|e| Unopened::new(&*ports, &e)));
        }
    };
    std::thread::Builder::new().name("opens-ports".into()).spawn(open)?;
    Ok((ask, answers))
}

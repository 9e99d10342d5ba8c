//! The services of networks: a thread that answers what workers pass on.

use crate::forwarder::Forwarder;
use crate::privileges::Privileges;
use crate::{proxying, relaying, resolving};
use engine::{Asked, Engine, Place};
use model::VifId;
use services::{Answer, Inquiry, Proxied, Relayed, Services};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// How often the thread looks whether advertisements are due, and connections of guests have something to do.
const SECOND: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(50);

/// The means by which threads get answers of servers outside, and pass them on.
#[derive(Clone)]
pub struct Means {
    pub services: Arc<Services>,
    pub engine: Weak<Engine>,
    pub privileges: Privileges,
    /// When time begins.
    pub began: Instant,
}

/// The ways to servers outside.
struct Outside {
    resolvers: UnboundedSender<Box<Inquiry>>,
    dhcp: UnboundedSender<Box<Relayed>>,
    metadata: UnboundedSender<Box<Proxied>>,
}

/// Starts the threads that answer guests, and returns what they answer by.
pub fn start(forwarder: &Forwarder, privileges: &Privileges) -> Arc<Services> {
    let services = Arc::new(Services::default());
    if let Some(questions) = forwarder.engine().questions() {
        let (services, engine) = (services.clone(), Arc::downgrade(forwarder.engine()));
        let (began, privileges) = (Instant::now(), privileges.clone());
        let means = Means { services: services.clone(), engine: engine.clone(), privileges, began };
        let outside = Outside {
            resolvers: resolving::start(means.clone()),
            dhcp: relaying::start(means.clone()),
            metadata: proxying::start(means),
        };
        let thread = std::thread::Builder::new().name("services".into());
        if let Err(error) = thread.spawn(move || serve(&services, &questions, &engine, &outside, began)) {
            tracing::error!("networks answer no DHCP, no DNS and no metadata: {error}");
        }
    }
    services
}

/// Answers until the engine is gone.
fn serve(
    services: &Services,
    questions: &Receiver<Asked>,
    engine: &Weak<Engine>,
    outside: &Outside,
    began: Instant,
) {
    let (mut told, mut ticked) = (0, Duration::ZERO);
    loop {
        let asked = match questions.recv_timeout(if services.waits() { TICK } else { SECOND }) {
            Ok(asked) => Some(asked),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Some(engine) = engine.upgrade() else { return };
        let now = began.elapsed();
        let send = |guest: u16, answer, place: Option<Place>| match answer {
            Answer::Frame(frame) => {
                if !engine.answer(VifId(guest), frame, place) {
                    services.lost(guest);
                }
            }
            Answer::Inquiry(inquiry) => {
                if let Err(error) = outside.resolvers.send(inquiry) {
                    services.resolved(&error.0, None, now);
                }
            }
            Answer::Proxied(asked) => {
                if let Err(error) = outside.metadata.send(asked) {
                    services.proxied(&error.0, None, now);
                }
            }
            Answer::Relayed(relayed) => {
                if let Err(error) = outside.dhcp.send(relayed) {
                    services.unreached(&error.0);
                }
            }
        };
        if let Some(asked) = asked {
            // The question has its place until the first frame of its answer is sent.
            let mut place = Some(asked.place);
            for answer in services.answer(asked.guest.0, &asked.frame, now) {
                let place = if matches!(answer, Answer::Frame(_)) { place.take() } else { None };
                send(asked.guest.0, answer, place);
            }
        }
        if now.saturating_sub(ticked) >= TICK {
            ticked = now;
            services.tick(now).into_iter().for_each(|(guest, answer)| send(guest, answer, None));
        }
        let unasked = services.due((std::mem::replace(&mut told, now.as_secs()), now.as_secs()));
        unasked.into_iter().for_each(|(guest, frame)| send(guest, Answer::Frame(frame), None));
    }
}

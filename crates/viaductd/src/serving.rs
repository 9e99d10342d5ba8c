//! The services of networks: a thread that answers what workers pass on.

use crate::forwarder::Forwarder;
use crate::privileges::Privileges;
use crate::resolving::Resolving;
use engine::{Asked, Engine};
use model::VifId;
use services::{Answer, Inquiry, Services};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// How often the thread looks whether advertisements are due.
const SECOND: Duration = Duration::from_secs(1);

/// Starts the threads that answer guests, and returns what they answer by.
pub fn start(forwarder: &Forwarder, privileges: &Privileges) -> Arc<Services> {
    let services = Arc::new(Services::default());
    if let Some(questions) = forwarder.engine().questions() {
        let (services, engine) = (services.clone(), Arc::downgrade(forwarder.engine()));
        let (began, privileges) = (Instant::now(), privileges.clone());
        let resolving = Resolving { services: services.clone(), engine: engine.clone(), privileges, began };
        let outside = resolving.start();
        let thread = std::thread::Builder::new().name("services".into());
        if let Err(error) = thread.spawn(move || serve(&services, &questions, &engine, &outside, began)) {
            tracing::error!("networks answer no DHCP and no DNS: {error}");
        }
    }
    services
}

/// Answers until the engine is gone.
fn serve(
    services: &Services,
    questions: &Receiver<Asked>,
    engine: &Weak<Engine>,
    outside: &UnboundedSender<Box<Inquiry>>,
    began: Instant,
) {
    let mut told = 0;
    loop {
        let asked = match questions.recv_timeout(SECOND) {
            Ok(asked) => Some(asked),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let now = began.elapsed().as_secs();
        let answer = asked.and_then(|Asked { guest, frame, place, .. }| {
            match services.answer(guest.0, &frame, now)? {
                Answer::Frame(frame) => Some((guest.0, frame, Some(place))),
                Answer::Inquiry(inquiry) => {
                    if let Err(error) = outside.send(inquiry) {
                        services.resolved(&error.0, None, now);
                    }
                    None
                }
            }
        });
        let unasked = services.due((std::mem::replace(&mut told, now), now));
        let unasked = unasked.into_iter().map(|(guest, frame)| (guest, frame, None));
        let Some(engine) = engine.upgrade() else { return };
        for (guest, frame, place) in answer.into_iter().chain(unasked) {
            if !engine.answer(VifId(guest), frame, place) {
                services.lost(guest);
            }
        }
    }
}

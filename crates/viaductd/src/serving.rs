//! The services of networks: a thread that answers what workers pass on.

use crate::forwarder::Forwarder;
use engine::{Asked, Engine};
use model::VifId;
use services::Services;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often the thread looks whether advertisements are due.
const SECOND: Duration = Duration::from_secs(1);

/// Starts the thread that answers guests, and returns what it answers by.
pub fn start(forwarder: &Forwarder) -> Arc<Services> {
    let services = Arc::new(Services::default());
    if let Some(questions) = forwarder.engine().questions() {
        let (services, engine) = (services.clone(), Arc::downgrade(forwarder.engine()));
        let thread = std::thread::Builder::new().name("services".into());
        if let Err(error) = thread.spawn(move || serve(&services, &questions, &engine)) {
            tracing::error!("networks answer no DHCP: {error}");
        }
    }
    services
}

/// Answers until the engine is gone.
fn serve(services: &Services, questions: &Receiver<Asked>, engine: &Weak<Engine>) {
    let (began, mut told) = (Instant::now(), 0);
    loop {
        let answers = match questions.recv_timeout(SECOND) {
            Ok(asked) => {
                let answer = services.answer(asked.guest.0, &asked.frame);
                answer.map(|answer| (asked.guest.0, answer, Some(asked.place))).into_iter().collect()
            }
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let now = began.elapsed().as_secs();
        let unasked = services.due((std::mem::replace(&mut told, now), now));
        let Some(engine) = engine.upgrade() else { return };
        let unasked = unasked.into_iter().map(|(guest, frame)| (guest, frame, None));
        for (guest, frame, place) in answers.into_iter().chain(unasked) {
            if !engine.answer(VifId(guest), frame, place) {
                services.lost(guest);
            }
        }
    }
}

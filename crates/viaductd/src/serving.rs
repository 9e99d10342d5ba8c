//! The services of networks: a thread that answers what workers pass on.

use crate::forwarder::Forwarder;
use engine::{Asked, Engine};
use services::Services;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};

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
    for asked in questions {
        let Some(answer) = services.answer(asked.guest.0, &asked.frame) else { continue };
        let Some(engine) = engine.upgrade() else { return };
        if !engine.answer(asked.guest, answer) {
            services.lost(asked.guest.0);
        }
    }
}

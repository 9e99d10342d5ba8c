//! A worker that does not return: nobody who sends it a message hangs, and the status names the worker.

use super::world::{rule, tables};
use crate::asked::Questions;
use crate::bfd::Bfd;
use crate::capture::DropLog;
use crate::clock::Clock;
use crate::core::Limits;
use crate::counters::WorkerCells;
use crate::mailbox::Mailbox;
use crate::message::Message;
use crate::storms::Storms;
use crate::testing::TestPort;
use crate::worker::{Parts, Worker};
use crate::{Engine, EngineConfig};
use executor::{CaptureFilter, Executor};
use mem::{Accepts, Burst, Opened, RxQueue};
use model::{Action, RuleAction, VifId};
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tables::{FlowLimits, Shared};

/// Far longer than all limits together.
const PATIENCE: Duration = Duration::from_secs(60);

const PACKET: &str = "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.1.1.1 > 10.1.1.2 / udp 7 > 53 nosum";

/// A queue whose poll reports its begin, and ends when it is released.
struct Sleeper {
    queue: crate::testing::TestRx,
    began: Sender<()>,
    let_go: Mutex<Receiver<()>>,
}

impl RxQueue for Sleeper {
    fn poll(&mut self, burst: &mut Burst, budget: usize) -> usize {
        let taken = self.queue.poll(burst, budget);
        if taken > 0 {
            let _ = self.began.send(());
            let _ = self.let_go.lock().unwrap().recv();
        }
        taken
    }

    fn release(&mut self, burst: &mut Burst) {
        self.queue.release(burst);
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.queue.event_fd()
    }

    fn arm(&mut self) -> bool {
        self.queue.arm()
    }

    fn disarm(&mut self) {
        self.queue.disarm();
    }
}

#[test]
fn a_worker_that_hangs_hangs_nobody_who_tells_it_something() {
    let config = EngineConfig { workers: vec![None; 2], cache_entries: 1 << 12, ..EngineConfig::default() };
    let engine = Engine::new(&config).unwrap();
    engine.apply(&tables()).unwrap();
    assert!(engine.status_of_workers().is_empty());
    let ports: Vec<_> = (0..3).map(|_| TestPort::new(Accepts::default(), 100)).collect();
    let (began, begun) = channel();
    let (let_go, held) = channel();
    let sleeper = Sleeper { queue: ports[0].receiver(), began, let_go: Mutex::new(held) };
    let opened = Opened { rx: vec![Box::new(sleeper)], ..ports[0].open() };
    engine.attach(VifId(1), opened).unwrap();
    engine.attach(VifId(2), ports[1].open()).unwrap();
    ports[0].send([(model::text::parse(PACKET).unwrap(), mem::Offload::default())]);
    begun.recv_timeout(PATIENCE).unwrap();

    let (done, is_done) = channel();
    let teller = {
        let (engine, port) = (engine.clone(), ports[2].clone());
        std::thread::spawn(move || {
            engine.apply(&[rule(9, 1, 1, (53, 53), RuleAction::End(Action::Drop))]).unwrap();
            engine.attach(VifId(4), port.open()).unwrap();
            assert!(engine.detach(VifId(4)));
            engine.capture(CaptureFilter::default(), sync_channel(1).0);
            engine.flush_flows(&mut |_| true);
            // The first queue is the first worker's. The other one may have been late, where it had no CPU.
            while engine.status_of_workers() != [0] {
                std::thread::yield_now();
            }
            let _ = done.send(());
        })
    };
    is_done.recv_timeout(PATIENCE).expect("nothing hangs, and the first worker is known to");
    teller.join().unwrap();
    // The other worker continues.
    assert!(engine.status(VifId(2)).unwrap().up);

    drop(let_go);
    while !engine.status_of_workers().is_empty() {
        std::thread::yield_now();
    }
    let engine = Arc::into_inner(engine).expect("nobody else has it");
    drop(engine);
}

impl Engine {
    fn status_of_workers(&self) -> Vec<usize> {
        Executor::status(self).stalled
    }
}

/// Many messages to a worker hold up no packets: it works between messages.
#[test]
fn a_worker_works_between_messages() {
    let shared = Arc::new(Shared::new(FlowLimits::default()));
    shared.apply(&tables()).unwrap();
    let mailbox = Arc::new(Mailbox::new().unwrap());
    let worker = Worker::new(Parts {
        number: 0,
        cpu: None,
        shared,
        mailbox: mailbox.clone(),
        cells: Arc::new(WorkerCells::new()),
        log: Arc::new(DropLog::new()),
        clock: Clock::start(),
        limits: Limits {
            cache_entries: 1 << 12,
            errors_per_second: 1,
            storms: Arc::new(Storms::new(u32::MAX)),
            questions: Questions::new().0,
            bfd: Bfd::over(Questions::new().0),
        },
    });
    let (one, two) = (TestPort::new(Accepts::default(), 100), TestPort::new(Accepts::default(), 100));
    one.send([(model::text::parse(PACKET).unwrap(), mem::Offload::default())]);
    mailbox.post(Message::Send { vif: VifId(2), queues: [two.sender()].into() });
    mailbox.post(Message::Receive { vif: VifId(1), queue: Box::new(one.receiver()), shaper: None });
    mailbox.post(Message::Answer);
    mailbox.post(Message::Stop);
    worker.unwrap().run();
    assert_eq!(two.take().len(), 1);
}

#[test]
fn a_mailbox_that_nobody_looks_into_takes_no_favours() {
    let mailbox = Mailbox::new().unwrap();
    let asked = std::iter::repeat_with(|| mailbox.post(Message::Answer)).take_while(|()| !mailbox.is_full());
    assert!((1000..10_000).contains(&asked.count()));
    while mailbox.next().is_some() {}
    assert!(!mailbox.is_full());
}

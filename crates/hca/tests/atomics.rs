//! Atomic operations of several applications on the same memory. The device executes those of each application on a
//! separate thread.

use crate::common::{App, Cq, Host, Qp, SIGNALED, gid, next, segment};
use uverbs::qp::access;
use uverbs::{QpType, WorkRequest};

const ADD: u8 = 6;
const CONTEXTS: u8 = 2;
/// Additions of each application, and how many of them are in progress.
const TIMES: u64 = 20_000;
const AT_ONCE: u64 = 16;

/// A connection to the application that has the counter.
struct Adder {
    app: App,
    qp: Qp,
    cq: Cq,
    own: Box<[u8]>,
    key: u32,
    rkey: u32,
    /// Keeps the peer alive.
    _there: (App, Qp, Cq),
}

impl Adder {
    fn new(host: &Host, counter: &[u8]) -> Self {
        let (mut app, mut there) = (App::attach(&host.socket(1)), App::attach(&host.socket(2)));
        let (cq, their_cq) = (app.cq(128, None), there.cq(8, None));
        let (qp, their_qp) = (app.qp(QpType::Rc, &cq, None), there.qp(QpType::Rc, &their_cq, None));
        app.connect(&qp, QpType::Rc, gid(2), their_qp.qpn);
        there.connect(&their_qp, QpType::Rc, gid(1), qp.qpn);
        let own: Box<[u8]> = vec![0; 8].into();
        let (key, rkey) = (app.register(&own, access::ALL), there.register(counter, access::ALL));
        Self { app, qp, cq, own, key, rkey, _there: (there, their_qp, their_cq) }
    }

    fn add(mut self, address: u64) {
        let add = WorkRequest { opcode: ADD, compare_add: 1, rkey: self.rkey, ..WorkRequest::default() };
        for number in 0..TIMES + AT_ONCE {
            if number >= AT_ONCE {
                assert_eq!(next(&mut self.cq).status, 0);
            }
            if number < TIMES {
                let asked = WorkRequest { address, id: number, flags: SIGNALED, ..add };
                self.app.post_send(&mut self.qp, asked, &[segment(&self.own, self.key)]);
            }
        }
    }
}

#[test]
fn no_addition_of_two_contexts_is_lost() {
    let host = Host::new();
    let _devices = [host.device(1), host.device(2)];
    let counter: Box<[u64]> = vec![0; 2].into();
    // SAFETY: the bytes of the counter, which are only read as numbers.
    let bytes = unsafe { std::slice::from_raw_parts(counter.as_ptr().cast(), 16) };
    let adders: Vec<_> = (0..CONTEXTS).map(|_| Adder::new(&host, bytes)).collect();
    let address = counter.as_ptr() as u64;
    std::thread::scope(|scope| {
        for adder in adders {
            scope.spawn(move || adder.add(address));
        }
    });
    // SAFETY: it still exists, and nobody writes to it any more.
    assert_eq!(unsafe { counter.as_ptr().read_volatile() }, u64::from(CONTEXTS) * TIMES);
}

//! Two applications that communicate, each on its own device.

use super::*;
use verbs::channel;

/// An application with a queue pair, on a device.
pub struct End {
    pub index: usize,
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub channel: *mut ibv_comp_channel,
    /// The queues for sends and for receives; both use the channel.
    pub cqs: [*mut ibv_cq; 2],
    pub qp: *mut ibv_qp,
}

impl End {
    pub fn new(index: usize) -> Self {
        Self::deep(index, DEPTH)
    }

    /// Creates an end with room for this many requests of each kind.
    pub fn deep(index: usize, depth: u32) -> Self {
        let context = open(index);
        // SAFETY: the context was just opened, and so were the others where they are used.
        unsafe {
            let pd = memory::ibv_alloc_pd(context);
            let channel = channel::ibv_create_comp_channel(context);
            libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
            let cqs =
                [channel; 2].map(|channel| completion::ibv_create_cq(context, 8, null_mut(), channel, 0));
            let qp = create_of(depth, context, pd, cqs, null_mut(), IBV_QPT_RC);
            Self { index, context, pd, channel, cqs, qp }
        }
    }

    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is the test's, which did not destroy it.
        unsafe { (*self.qp).qp_num }
    }

    pub fn connect(&self, to: &Self) {
        connect(self.qp, to.index, to.number());
    }

    /// Waits for the next completion of a send.
    pub fn sent(&self) -> ibv_wc {
        take(self.cqs[0], 1)[0]
    }

    /// Waits for the next completion of a receive.
    pub fn received(&self) -> ibv_wc {
        take(self.cqs[1], 1)[0]
    }

    /// Waits for the next completion queue that the channel reports.
    pub fn told(&self) -> *mut ibv_cq {
        let (mut cq, mut tag) = (null_mut(), null_mut());
        // SAFETY: the channel is the test's, and there are places for the results.
        until(|| unsafe { channel::ibv_get_cq_event(self.channel, &mut cq, &mut tag) } == 0);
        // SAFETY: the event that was just got is of this queue.
        unsafe { channel::ibv_ack_cq_events(cq, 1) };
        cq
    }

    pub fn is_told(&self) -> bool {
        let (mut cq, mut tag) = (null_mut(), null_mut());
        // SAFETY: the channel is the test's, and there are places for the results.
        unsafe { channel::ibv_get_cq_event(self.channel, &mut cq, &mut tag) == 0 }
    }

    /// Counts the messages that reached the peer without the device.
    pub fn direct(&self) -> u64 {
        let mut found = None;
        // While the device's thread is busy, there is no description.
        until(|| {
            let clients = described(self.index);
            let mut qps = clients.iter().flat_map(|client| &client.qps);
            found = qps.find(|qp| qp.qpn == self.number()).map(|qp| qp.direct.0);
            found.is_some()
        });
        found.unwrap()
    }

    pub fn close(self) {
        // SAFETY: they are the test's, which uses them no more, and nothing is left that needs them.
        unsafe {
            assert_eq!(queue_pair::ibv_destroy_qp(self.qp), 0);
            assert_eq!(self.cqs.map(|cq| completion::ibv_destroy_cq(cq)), [0, 0]);
            assert_eq!(channel::ibv_destroy_comp_channel(self.channel), 0);
            assert_eq!((memory::ibv_dealloc_pd(self.pd), context::ibv_close_device(self.context)), (0, 0));
        }
    }
}

pub struct Two {
    pub a: End,
    pub b: End,
    pub shares: bool,
}

impl Two {
    pub fn of(shares: bool, first: usize) -> Self {
        Self::deep(shares, first, DEPTH)
    }

    /// Connects two ends with room for this many requests of each kind.
    fn deep(shares: bool, first: usize, depth: u32) -> Self {
        let (a, b) = (End::deep(first, depth), End::deep(first + 1, depth));
        b.connect(&a);
        a.connect(&b);
        Self { a, b, shares }
    }

    pub fn on(way: Way) -> Self {
        Self::of(way.shares(), way.first())
    }

    /// Connects two ends of this way, with room for this many requests of each kind.
    pub fn deep_on(way: Way, depth: u32) -> Self {
        Self::deep(way.shares(), way.first(), depth)
    }

    pub fn exchange(&self, message: &mut Buffer, room: &mut Buffer) {
        assert_eq!(post_receive(self.b.qp, &mut receive(70, &mut [room.sge()])).0, 0);
        assert_eq!(post_send(self.a.qp, &mut send(71, &mut [message.sge()])).0, 0);
        assert_eq!((self.a.sent().status, self.b.received().status), (0, 0));
    }

    /// Checks that this many messages bypassed the device, if memory is shared.
    pub fn was_direct(&self, messages: u64) {
        if self.a.index >= FROM_MACHINE {
            // The device does the work for memory that is in no window.
            return;
        }
        assert_eq!(self.a.direct(), if self.shares { messages } else { 0 });
    }

    pub fn close(self) {
        self.a.close();
        self.b.close();
    }
}

/// Returns a request that targets memory of the peer.
pub fn aimed(id: u64, opcode: u32, list: &mut [ibv_sge], at: &Buffer) -> ibv_send_wr {
    let mut wr = send(id, list);
    wr.opcode = opcode;
    // SAFETY: the region is registered.
    wr.wr.rdma = Rdma { remote_addr: at.bytes.as_ptr() as u64, rkey: unsafe { (*at.mr).rkey } };
    wr
}

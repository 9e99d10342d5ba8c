//! Messages from the control plane to a worker.

use crate::asked::Place;
use crate::capture::Tap;
use crate::meters::Meters;
use crate::shape::{Outlet, Shaper};
use mem::{RxQueue, TxQueue};
use model::{Question, Unasked, VifId};
use std::sync::Arc;

pub(crate) enum Message {
    /// Own this receiving queue of an interface, and take from it as the shaper allows.
    Receive { vif: VifId, queue: Box<dyn RxQueue>, shaper: Option<Arc<Shaper>> },
    /// Send to an interface through these queues, first through the one of the worker's number.
    Send { vif: VifId, queues: Arc<[Arc<dyn TxQueue>]> },
    /// Take what an interface sends as this shaper allows, or as it comes.
    Shape(VifId, Option<Arc<Shaper>>),
    /// Own the end of an interface's queue from which packets leave at its rate.
    Outlet(Box<Outlet>),
    /// Send what waits for an interface, and drop this end of its queue.
    EndOutlet(VifId),
    /// Send all that waits for interfaces, whatever their rates.
    Flush,
    /// Drop all queues of an interface.
    Detach(VifId),
    /// These interfaces are OVS sides of ports, or no longer.
    OvsSides(Arc<[(VifId, bool)]>),
    /// Police with these meters.
    Meters(Arc<Meters>),
    /// Show packets to these captures.
    Taps(Vec<Arc<Tap>>),
    /// Ask for a neighbour's MAC.
    Solicit(Question),
    /// Send a frame of this host's own. If it answers a guest, the guest's place is free afterwards.
    Tell(Unasked, Option<Place>),
    /// Bring the counters of connections, rules and nexthops up to date; the receipt is given back when that is done.
    Settle,
    /// Empty the flow cache.
    Forget,
    /// Leave all queues alone, until [`Message::Resume`]; meanwhile only messages are obeyed that do not send.
    Pause,
    /// Go on after a pause.
    Resume,
    /// Nothing: the receipt shows that the worker runs.
    Answer,
    /// End the thread.
    Stop,
}

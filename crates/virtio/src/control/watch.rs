//! Tells others of the doings of a port's VMM.

use std::sync::Arc;

/// An event at a port's VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmmEvent {
    /// The VMM connected: the process with this number did (0: nobody knows which). Its guest may run
    /// already.
    Came(i32),
    /// The VMM stopped all queues: its guest may begin anew.
    Stopped,
    /// The VMM disconnected, by itself: its guest has ended, as far as anybody knows.
    Left,
    /// A pair of queues runs, and nobody copies the guest's memory: from now on the device may write there.
    Runs,
    /// No pair of queues runs, or the VMM has its memory logged, to copy it: before the VMM learns that this is done,
    /// nobody writes there any more.
    Halts,
}

/// Is called on the port's own thread, which serves no VMM meanwhile.
pub type Watch = Arc<dyn Fn(VmmEvent) + Send + Sync>;

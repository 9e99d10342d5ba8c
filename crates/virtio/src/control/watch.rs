//! Telling others of a port's VMM.

/// What a VMM did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmmEvent {
    /// It connected. Its guest may run already.
    Came,
    /// It stopped all queues: its guest may begin anew.
    Stopped,
    /// It disconnected, by itself: its guest has ended, as far as anybody knows.
    Left,
}

/// Is told on the port's own thread, which serves no VMM meanwhile.
pub type Watch = Box<dyn Fn(VmmEvent) + Send + Sync>;

//! Signals that the daemon takes: SIGHUP to read its file again, SIGTERM and SIGINT to stop.

use control::Core;
use nix::sys::signal::{SigSet, Signal};
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

/// Blocks SIGHUP until the daemon can take it ([`take_reloads`]). The process must have a single thread.
pub fn hold_reloads() -> nix::Result<()> {
    SigSet::from(Signal::SIGHUP).thread_block()
}

/// Reads the configuration file again at each SIGHUP from now on.
///
/// # Errors
/// The runtime can't take signals.
pub fn take_reloads(core: Arc<Core>) -> anyhow::Result<()> {
    let mut reloads = signal(SignalKind::hangup())?;
    // One thread that does not block it is enough.
    SigSet::from(Signal::SIGHUP).thread_unblock()?;
    tokio::spawn(async move {
        while reloads.recv().await.is_some() {
            let core = core.clone();
            let _ = tokio::task::spawn_blocking(move || core.reload()).await;
        }
    });
    Ok(())
}

/// Takes SIGTERM and SIGINT from now on; the future ends with the first of them.
///
/// # Errors
/// The runtime can't take signals.
pub fn stop() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

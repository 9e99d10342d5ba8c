//! Whether a signal ends a call that waits.

/// Returns whether one of the handlers of this program lets calls end (it was set without `SA_RESTART`). Which handler
/// ran can't be told.
pub fn interrupts() -> bool {
    (1..=64).any(|signal| {
        // SAFETY: zeros are a valid action, which is then overwritten.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the action is there.
        let known = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } == 0;
        let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        known && handled && action.sa_flags & libc::SA_RESTART == 0
    })
}

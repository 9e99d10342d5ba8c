//! Listeners whose devices are gone: they listen again when the devices are back.

use crate::device::{self, Device, lock};
use crate::error::Errno;
use crate::id::Id;
use crate::resolving;
use libc::c_int;
use std::ptr;
use std::sync::Mutex;
use std::time::Duration;
use uverbs::cm::CmRequest;
use uverbs::start_thread;

/// Pauses between two attempts to reach the devices: the first, and the longest.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(500);

/// Listeners that wait, and whether a thread tries for them.
#[derive(Debug)]
struct Waiting {
    ids: Vec<usize>,
    is_tried: bool,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting { ids: Vec::new(), is_tried: false });
/// Held while a thread uses the identifiers that wait. None of them is destroyed meanwhile.
static TURN: Mutex<()> = Mutex::new(());

/// Adds a listener. It must be removed before it is destroyed.
pub fn add(id: &Id) {
    let (mut waiting, at) = (lock(&WAITING), ptr::from_ref(id) as usize);
    if !waiting.ids.contains(&at) {
        waiting.ids.push(at);
    }
    if !waiting.is_tried {
        waiting.is_tried = start().is_ok();
    }
}

/// Removes an identifier. Returns whether a thread may have used it until now.
pub fn remove(id: &Id) -> bool {
    let others = |waiting: &mut Waiting| waiting.ids.retain(|at| *at != ptr::from_ref(id) as usize);
    {
        let mut waiting = lock(&WAITING);
        if !waiting.is_tried {
            others(&mut waiting);
            return false;
        }
    }
    let _turn = lock(&TURN);
    others(&mut lock(&WAITING));
    true
}

/// Starts the thread.
fn start() -> Result<(), c_int> {
    let thread = start_thread(c"rdmacm-return", run)?;
    // SAFETY: nobody joins it.
    unsafe { libc::pthread_detach(thread) };
    Ok(())
}

fn run() {
    let mut pause = PAUSE;
    loop {
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST);
        let devices = device::all();
        let _turn = lock(&TURN);
        let ids = std::mem::take(&mut lock(&WAITING).ids);
        for at in ids.into_iter().map(|at| at as *const Id) {
            // SAFETY: identifiers that waited are not destroyed while this thread has its turn.
            let id = unsafe { &*at };
            if !listen(id, &devices) {
                add(id);
            }
        }
        let mut waiting = lock(&WAITING);
        if waiting.ids.is_empty() {
            waiting.is_tried = false;
            return;
        }
    }
}

/// Makes a listener listen at the devices where it ought to. Returns false if not all of them are there.
fn listen(id: &Id, devices: &[&'static Device]) -> bool {
    let (bindings, asked) = id.state(|state| (state.bindings.clone(), state.bound.zip(state.backlog)));
    let Some((bound, backlog)) = asked else { return true };
    let is_everywhere = device::is_loopback(bound.ip());
    for device in devices.iter().filter(|device| is_everywhere || device.has_address(bound.ip())) {
        if bindings.iter().any(|binding| binding.device.tag == device.tag) {
            continue;
        }
        let Ok(binding) = id.attach(device) else { continue };
        let listens = resolving::bind_at(binding, bound)
            .and_then(|_| device.order(CmRequest::Listen { id: binding.handle, backlog }));
        if let Err(Errno(_)) = listens {
            id.detach(|other| other.key() == binding.key());
        }
    }
    let is_there = id.state(|state| !state.bindings.is_empty());
    is_there && !(is_everywhere && device::any_is_lost())
}

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::window::tests::{remote, window};
use uverbs::WindowKind;

/// No device is there.
#[derive(Debug)]
struct Nobody;

impl Users for Nobody {
    fn note(&self, _: &Arc<Window>, _: &str, _: u32, _: i32) -> Option<ProgramNote> {
        None
    }
}

const BYTES: usize = 528_384;

fn program(window: &Arc<Window>, guest: &str, secret: u8) -> RingMemory {
    RingMemory::new(window.clone(), Weak::<Nobody>::new(), remote(guest, secret), Some("a.out".into()))
}

fn left(window: &Arc<Window>) -> (u64, u64) {
    let description = window.describe();
    (description.used, description.orphaned)
}

#[test]
fn pages_that_both_have_let_go_are_free_at_once() {
    let (window, _file) = window(WindowKind::Common);
    let (a, b) = (program(&window, "vm1", 1), program(&window, "vm2", 2));
    assert!(a.share() && b.share());
    let pages = a.take(BYTES).unwrap();
    assert_eq!(left(&window), (BYTES as u64, 0));
    pages.free();
    drop((pages, a, b));
    assert_eq!(left(&window), (0, 0));
}

#[test]
fn pages_of_a_lost_program_wait_for_its_end_and_its_peer() {
    let (window, _file) = window(WindowKind::Common);
    let (a, b) = (program(&window, "vm1", 1), program(&window, "vm2", 2));
    assert!(a.share() && b.share());
    let pages = a.take(BYTES).unwrap();
    a.lose();
    // The machine of the first has booted again, but the second program is still there.
    window.free_earlier_boots("vm1", Uuid([9; 16]));
    drop((pages, a));
    assert_eq!(left(&window), (0, BYTES as u64));
    window.end_boots("vm1", Uuid([9; 16]));
    window.sweep();
    assert_eq!(left(&window), (0, BYTES as u64));
    drop(b);
    window.sweep();
    assert_eq!(left(&window), (0, 0));
}

#[test]
fn pages_wait_for_a_peer_that_is_lost() {
    let (window, _file) = window(WindowKind::Common);
    let (a, b) = (program(&window, "vm1", 1), program(&window, "vm2", 2));
    assert!(a.share() && b.share());
    let pages = a.take(BYTES).unwrap();
    b.lose();
    drop((pages, a, b));
    window.free_earlier_boots("vm1", Uuid([9; 16]));
    assert_eq!(left(&window), (0, BYTES as u64));
    window.free_earlier_boots("vm2", Uuid([9; 16]));
    window.sweep();
    assert_eq!(left(&window), (0, 0));
}

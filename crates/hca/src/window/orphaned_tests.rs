//! A daemon ends, and the next one finds what programs have.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::window::notes::Notes;
use crate::window::{Account, Pages};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use uverbs::PAGE;
use uverbs::window::DATA;

const LEN: u64 = 4 << 20;
const UUID: Uuid = Uuid([9; 16]);
const BOOT: Uuid = Uuid([1; 16]);

/// A window's file, and the run-dir.
struct Host(std::fs::File, tempfile::TempDir, WindowKind);

impl Host {
    fn new(kind: WindowKind) -> Self {
        let file = memfd_create("window", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, DATA + LEN).unwrap();
        Self(file.into(), tempfile::tempdir().unwrap(), kind)
    }

    /// Opens the window as a new daemon does.
    fn daemon(&self) -> Arc<Window> {
        let notes = Arc::new(Notes::open(self.1.path()).unwrap()).of("w", UUID, LEN).unwrap();
        Window::open_noted(self.0.try_clone().unwrap().into(), self.2, UUID, "w", Some(notes)).unwrap()
    }

    fn is_zero(&self, part: Part) -> bool {
        let mut bytes = vec![1; part.len as usize];
        std::os::unix::fs::FileExt::read_exact_at(&self.0, &mut bytes, DATA + part.offset).unwrap();
        bytes.iter().all(|byte| *byte == 0)
    }
}

/// A process, a program or a VMM, which ends when this is dropped.
struct Process(Child);

impl Process {
    fn new() -> Self {
        Self(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn local(process: &Process, secret: u8) -> ProgramNote {
    let (process, secret) = (HostProcess::now(process.pid()), Uuid([secret; 16]));
    ProgramNote { guest: "c1".into(), process, secret, ..ProgramNote::default() }
}

fn remote(vmm: &Process, secret: u8, pid: i32) -> ProgramNote {
    let (started, pid_namespace) = (5, 6);
    ProgramNote {
        guest: "vm1".into(),
        is_remote: true,
        boot: BOOT,
        pid,
        started,
        pid_namespace,
        ..local(vmm, secret)
    }
}

/// Makes a program that has pages with something in them.
fn program(window: &Arc<Window>, note: ProgramNote, pages: u64) -> (Arc<Account>, Arc<Pages>) {
    let account = window.account(note, None).unwrap();
    let taken = window.take(pages * PAGE, false, &window.mapping().unwrap(), &account).unwrap();
    assert!(taken[0].first(8).unwrap().write(0, b"my heap!"));
    (account, taken[0].clone())
}

fn giver(guest: &str, secret: u8) -> Giver<'_> {
    Giver { guest, secret: Uuid([secret; 16]) }
}

fn left(window: &Window) -> u64 {
    window.sweep();
    window.describe().orphaned / PAGE
}

/// Kills the daemon: nothing of its end is noted.
fn kill<T>(what: T) {
    std::mem::forget(what);
}

#[test]
fn who_ended_without_a_daemon_leaves_nothing() {
    for kind in [WindowKind::Common, WindowKind::Own] {
        let (host, gone, stays, vmm) = (Host::new(kind), Process::new(), Process::new(), Process::new());
        let window = host.daemon();
        let all = [
            program(&window, local(&gone, 1), 1),
            program(&window, local(&stays, 2), 2),
            program(&window, remote(&vmm, 3, 30), 4),
        ];
        let parts = all.each_ref().map(|(_, pages)| pages.part());
        kill((all, window));
        drop(gone);
        let window = host.daemon();
        assert_eq!(left(&window), 6);
        assert!(host.is_zero(parts[0]) && !host.is_zero(parts[1]) && !host.is_zero(parts[2]));
        // Nobody else gets what is left, or gives it back: neither another program of the guest, nor one of another.
        for (guest, secret) in [("c1", 0), ("c1", 9), ("vm1", 3)] {
            assert!(!window.give_back_orphaned(giver(guest, secret), parts[1]));
        }
        let (_, rest) = program(&window, local(&stays, 4), 1);
        assert!(
            parts[1..].iter().all(|part| rest.part().offset + PAGE <= part.offset
                || part.offset + part.len <= rest.part().offset)
        );
        // By its secret a program is known, by whichever device it comes.
        assert!(window.give_back_orphaned(giver("c7", 2), Part { len: PAGE, ..parts[1] }));
        assert_eq!(left(&window), 5);
        drop(stays);
        assert_eq!(left(&window), 4);
        kill((rest, window));
        let window = host.daemon();
        drop(vmm);
        assert_eq!((left(&window), window.describe().used), (0, 0));
        let all = window.account(ProgramNote::default(), None).unwrap();
        let free = LEN - FIRST;
        let free = if kind == WindowKind::Own { free } else { free / 2 / PAGE * PAGE };
        assert!(window.take(free, false, &window.mapping().unwrap(), &all).is_ok());
    }
}

#[test]
fn programs_of_a_machine_that_was_started_anew_are_gone() {
    let (host, vmm) = (Host::new(WindowKind::Common), Process::new());
    let window = host.daemon();
    let (container, old) = (program(&window, local(&vmm, 1), 1), program(&window, remote(&vmm, 3, 30), 4));
    kill((container, old, window));
    let window = host.daemon();
    window.free_earlier_boots("vm1", BOOT);
    window.free_earlier_boots("vm2", Uuid([2; 16]));
    assert_eq!(left(&window), 5);
    window.free_earlier_boots("vm1", Uuid([2; 16]));
    assert_eq!(left(&window), 1);
}

#[test]
fn a_program_of_the_same_machine_tells_who_has_ended() {
    let (host, vmm) = (Host::new(WindowKind::Common), Process::new());
    let window = host.daemon();
    let programs = [30, 31].map(|pid| program(&window, remote(&vmm, pid as u8, pid), 2));
    let nameless = program(&window, ProgramNote { pid_namespace: 0, ..remote(&vmm, 5, 32) }, 1);
    kill((programs, nameless, window));
    let window = host.daemon();
    let witness = remote(&vmm, 4, 40);
    let suspects = window.suspects(&witness);
    assert_eq!(suspects.iter().map(|suspect| suspect.pid).collect::<Vec<_>>().len(), 2);
    let strangers = [
        ProgramNote { guest: "vm2".into(), ..witness.clone() },
        ProgramNote { boot: Uuid([2; 16]), ..witness.clone() },
        ProgramNote { pid_namespace: 7, ..witness.clone() },
        ProgramNote { pid_namespace: 0, ..witness.clone() },
        local(&vmm, 1),
    ];
    for stranger in &strangers {
        assert!(window.suspects(stranger).is_empty());
        window.end_suspects(stranger, &suspects);
    }
    window.end_suspects(&witness, &[Suspect { started: 1, ..suspects[0] }]);
    assert_eq!(left(&window), 5);
    let gone = suspects.iter().find(|suspect| suspect.pid == 31).unwrap();
    window.end_suspects(&witness, std::slice::from_ref(gone));
    assert_eq!((left(&window), window.suspects(&witness).len()), (3, 1));
}

/// Who was given access to pages of others may write there until it learns of the daemon's end.
#[test]
fn pages_wait_for_peers_that_know_nothing_yet() {
    for ends in [true, false] {
        let (host, gone, peer) = (Host::new(WindowKind::Common), Process::new(), Process::new());
        let window = host.daemon();
        let both = [program(&window, local(&gone, 1), 1), program(&window, local(&peer, 2), 2)];
        both[1].0.share();
        let (part, peers) = (both[0].1.part(), both[1].1.part());
        kill((both, window));
        drop(gone);
        let window = host.daemon();
        assert!(left(&window) == 3 && !host.is_zero(part));
        // Pages that are given back wait as well.
        assert!(
            window.give_back_orphaned(giver("c1", 1), part)
                && !window.give_back_orphaned(giver("c1", 1), part)
        );
        assert_eq!(left(&window), 3);
        if ends {
            drop(peer);
            assert_eq!(left(&window), 0);
        } else {
            // It opens the device again, but another context of it may be at work until it has given back all.
            let _back = window.account(local(&peer, 2), None).unwrap();
            assert_eq!(left(&window), 3);
            assert!(window.give_back_orphaned(giver("c1", 2), peers));
            assert_eq!(left(&window), 0);
        }
        assert!(host.is_zero(part));
    }
}

/// The peer's queues are elsewhere, because the window was full.
#[test]
fn peers_without_pages_of_the_window_are_awaited() {
    let (host, gone, peer) = (Host::new(WindowKind::Common), Process::new(), Process::new());
    let window = host.daemon();
    let left_one = program(&window, local(&gone, 1), 1);
    let bare = window.account(local(&peer, 2), None).unwrap();
    bare.share();
    kill((left_one, bare, window));
    drop(gone);
    kill(host.daemon());
    let window = host.daemon();
    assert_eq!(left(&window), 1);
    drop(peer);
    assert_eq!(left(&window), 0);
    assert!(lock(&window.state).owners.is_empty());
}

/// Both may write to the other's.
#[test]
fn peers_that_give_back_all_do_not_wait_for_each_other() {
    let (host, process) = (Host::new(WindowKind::Common), Process::new());
    let window = host.daemon();
    let both = [1, 2].map(|secret| program(&window, local(&process, secret), 1));
    both.iter().for_each(|(account, _)| account.share());
    let parts = both.each_ref().map(|(_, pages)| pages.part());
    kill((both, window));
    let window = host.daemon();
    assert!(window.give_back_orphaned(giver("c1", 1), parts[0]));
    assert_eq!(left(&window), 2);
    assert!(window.give_back_orphaned(giver("c1", 2), parts[1]));
    assert_eq!(left(&window), 0);
}

#[test]
fn no_guest_has_all_numbers() {
    let (host, process) = (Host::new(WindowKind::Common), Process::new());
    let window = host.daemon();
    let mut state = lock(&window.state);
    let mut enlist = |guest: &str| {
        let (guest, process) = (guest.into(), HostProcess::default());
        state.owners.enlist(ProgramNote { guest, process, ..ProgramNote::default() })
    };
    let count = (0..).take_while(|_| enlist("c1").is_some()).count();
    assert_eq!(count, usize::from(crate::window::notes::PROGRAMS) / 2);
    assert!(enlist("c2").is_some());
    drop((state, process));
}

#[test]
fn a_peer_that_is_still_at_work_keeps_pages_until_it_ends() {
    let (host, vmm) = (Host::new(WindowKind::Common), Process::new());
    let window = host.daemon();
    let (ends, peer) = (program(&window, remote(&vmm, 1, 30), 1), program(&window, remote(&vmm, 2, 31), 1));
    peer.0.share();
    ends.0.leave_to_peers();
    drop(ends);
    assert_eq!(left(&window), 1);
    drop(peer);
    assert_eq!(left(&window), 0);
}

/// A process that only connects a VMM may end before the VMM does.
#[test]
fn a_vmm_that_ended_before_its_programs_was_another_process() {
    let (host, other, vmm) = (Host::new(WindowKind::Common), Process::new(), Process::new());
    let window = host.daemon();
    let all = program(&window, ProgramNote { process: HostProcess::default(), ..remote(&vmm, 1, 30) }, 1);
    window.set_vmm("vm1", HostProcess::now(other.pid()));
    drop(other);
    window.sweep();
    kill((all, window));
    let window = host.daemon();
    assert_eq!(left(&window), 1);
    let back = program(&window, ProgramNote { process: HostProcess::default(), ..remote(&vmm, 2, 31) }, 2);
    window.set_vmm("vm1", HostProcess::now(vmm.pid()));
    kill((back, window));
    drop(vmm);
    assert_eq!(left(&host.daemon()), 1);
}

/// As of a daemon that noted nothing: any program gives back what nobody is known to have.
#[test]
fn pages_of_which_nothing_is_noted_are_nobodys() {
    let (host, process) = (Host::new(WindowKind::Common), Process::new());
    let window = host.daemon();
    let one = program(&window, local(&process, 1), 2);
    let part = one.1.part();
    kill((one, window));
    std::fs::remove_file(host.1.path().join("windows")).unwrap();
    drop(process);
    kill(host.daemon());
    let window = host.daemon();
    assert_eq!(left(&window), 2);
    assert!(window.give_back_orphaned(giver("vm1", 5), part));
    assert_eq!(left(&window), 0);
    kill(window);
    assert_eq!(left(&host.daemon()), 0);
}

/// While a daemon is replaced, both have the window. Neither gives out, or empties, what the other one gave.
#[test]
fn two_daemons_give_no_page_twice() {
    let (host, gone, stays) = (Host::new(WindowKind::Common), Process::new(), Process::new());
    let old = host.daemon();
    let (lasts, ends) = (program(&old, local(&stays, 1), 1), program(&old, local(&gone, 2), 4));
    let new = host.daemon();
    assert_eq!(left(&new), 5);
    drop((ends, gone));
    let again = program(&old, local(&stays, 3), 2);
    let of_new = program(&new, local(&stays, 4), 3);
    assert_eq!(left(&new), 3);
    let parts = [&lasts, &again, &of_new].map(|(_, pages)| pages.part());
    assert!(parts.iter().all(|part| !host.is_zero(*part)));
    let more = program(&old, local(&stays, 5), 8);
    let mut all = parts.to_vec();
    all.push(more.1.part());
    all.sort_by_key(|part| part.offset);
    assert!(all.is_sorted_by(|a, b| a.offset + a.len <= b.offset), "{all:?}");
    kill((lasts, again, more, old));
    // Nobody knows of the pages that the old daemon gave last.
    let next = host.daemon();
    assert!(
        next.give_back_orphaned(giver("c1", 3), parts[1])
            && next.give_back_orphaned(giver("c1", 1), parts[0])
    );
}

/// Programs come and go, and daemons are killed: no page is given to two, and none is lost once all have ended.
#[test]
fn whenever_daemons_are_killed_nobody_gets_pages_twice() {
    bolero::check!().with_type::<Vec<(u8, u8)>>().for_each(|steps| {
        let (host, process) = (Host::new(WindowKind::Common), Process::new());
        let mut window = host.daemon();
        let mut here = Vec::new();
        let mut lost: Vec<(u8, Part)> = Vec::new();
        for (step, which) in steps.iter().take(40) {
            match step % 4 {
                0 | 1 => {
                    let (account, pages) =
                        program(&window, local(&process, which | 1), u64::from(which % 16) + 1);
                    here.push((which | 1, account, pages));
                }
                2 if !here.is_empty() => drop(here.swap_remove(usize::from(*which) % here.len())),
                3 if which % 2 == 0 => {
                    for (secret, account, pages) in here.drain(..) {
                        lost.push((secret, pages.part()));
                        kill((account, pages));
                    }
                    kill(std::mem::replace(&mut window, host.daemon()));
                }
                _ if !lost.is_empty() => {
                    let (secret, part) = lost.swap_remove(usize::from(*which) % lost.len());
                    assert!(window.give_back_orphaned(giver("c1", secret), part));
                }
                _ => {}
            }
            let mut parts: Vec<_> = here.iter().map(|(.., pages)| pages.part()).collect();
            parts.extend(lost.iter().map(|(_, part)| *part));
            parts.sort_by_key(|part| part.offset);
            assert!(parts.is_sorted_by(|a, b| a.offset + a.len <= b.offset), "{parts:?}");
            assert_eq!(left(&window), lost.iter().map(|(_, part)| part.len / PAGE).sum::<u64>());
        }
        drop((here, process));
        assert_eq!((left(&window), window.describe().used), (0, 0));
    });
}

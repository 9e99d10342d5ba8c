#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};

const LEN: u64 = 64 * PAGE;
const UUID: Uuid = Uuid([7; 16]);

fn note(guest: &str) -> ProgramNote {
    ProgramNote {
        guest: guest.to_owned(),
        is_remote: true,
        shares: true,
        process: HostProcess { pid: 7, at: 1 << 60 },
        secret: Uuid([1; 16]),
        boot: Uuid([2; 16]),
        pid: 8,
        started: 1 << 40,
        pid_namespace: u64::MAX,
    }
}

fn open(dir: &tempfile::TempDir) -> Arc<Notes> {
    Arc::new(Notes::open(dir.path()).unwrap())
}

#[test]
fn the_next_daemon_reads_what_was_noted() {
    let dir = tempfile::tempdir().unwrap();
    let notes = open(&dir);
    let [one, other] = ["trust-a", "trust-b"].map(|name| notes.of(name, UUID, LEN).unwrap());
    assert!(one.is_new() && one.programs().unwrap().is_empty() && one.owners().unwrap().is_empty());
    let long = note(&"n".repeat(RECORD - GUEST));
    one.enlist(0, Some(&note("vm1"))).unwrap();
    one.enlist(PROGRAMS - 1, Some(&long)).unwrap();
    one.note(3 * PAGE, 2 * PAGE, Some(0)).unwrap();
    one.note(5 * PAGE, PAGE, Some(PROGRAMS - 1)).unwrap();
    one.note(LEN - PAGE, PAGE, Some(UNKNOWN)).unwrap();
    assert_eq!(one.note(LEN - PAGE, 2 * PAGE, Some(0)), Err(Errno::INVAL));
    other.enlist(0, Some(&note("vm2"))).unwrap();
    drop((one, other, notes));

    let notes = open(&dir);
    let one = notes.of("trust-a", UUID, LEN).unwrap();
    assert!(!one.is_new());
    assert_eq!(one.programs().unwrap(), BTreeMap::from([(0, note("vm1")), (PROGRAMS - 1, long)]));
    let all = [(3, 5, 0), (5, 6, PROGRAMS - 1), (63, 64, UNKNOWN)];
    let all = all.map(|(start, end, owner)| (start * PAGE, end * PAGE, owner));
    assert_eq!(one.owners().unwrap(), all);
    one.note(4 * PAGE, PAGE, None).unwrap();
    one.enlist(PROGRAMS - 1, None).unwrap();
    assert_eq!(one.owners().unwrap()[0], (3 * PAGE, 4 * PAGE, 0));
    one.note_all(&all[2..]).unwrap();
    assert_eq!((one.owners().unwrap(), one.programs().unwrap().len()), (all[2..].to_vec(), 1));
    assert_eq!(notes.of("trust-b", UUID, LEN).unwrap().programs().unwrap()[&0].guest, "vm2");
    // Nothing is known of a file with another name or size.
    assert!(notes.of("trust-b", Uuid([8; 16]), LEN).unwrap().programs().unwrap().is_empty());
    assert!(notes.of("trust-a", UUID, 2 * LEN).unwrap().owners().unwrap().is_empty());
    notes.forget("trust-a");
    assert!(open(&dir).of("trust-a", UUID, 2 * LEN).unwrap().is_new());
}

#[test]
fn areas_of_windows_that_went_are_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let notes = open(&dir);
    for round in 0..3 * WINDOWS {
        let [one, two] = [2 * round, 2 * round + 1].map(|at| notes.of(&format!("w{at}"), UUID, LEN).unwrap());
        one.enlist(0, Some(&note("vm1"))).unwrap();
        assert!(two.programs().unwrap().is_empty());
        notes.forget(&one.entry.name);
        notes.forget(&two.entry.name);
    }
    let size = fs::metadata(dir.path().join("windows")).unwrap().len();
    assert!(size < HEADER + 2 * area(LEN / PAGE), "{size}");
    let all: Vec<_> = (0..WINDOWS).map(|at| notes.of(&format!("w{at}"), UUID, LEN).unwrap().entry).collect();
    assert!(all.is_sorted_by(|a, b| a.end() <= b.start));
    assert_eq!(notes.of("one more", UUID, LEN).unwrap_err(), Errno::NOSPC);
    assert!(notes.of(&"n".repeat(ENTRY), UUID, LEN).is_err() && notes.of("w0", UUID, u64::MAX).is_err());
}

#[test]
fn processes_whose_numbers_are_others_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let pid = std::process::id().cast_signed();
    let [then, now] = [HostProcess { pid, at: 1 }, HostProcess::now(pid)];
    let window = open(&dir).of("w", UUID, LEN).unwrap();
    for (number, process) in [(0, then), (1, now)] {
        window.enlist(number, Some(&ProgramNote { process, ..note("vm1") })).unwrap();
    }
    let window = open(&dir).of("w", UUID, LEN).unwrap();
    assert!(window.end(then).is_over() && !window.end(now).is_over());
}

#[test]
fn a_file_of_somebody_else_or_another_version_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("windows");
    let window = open(&dir).of("w", UUID, LEN).unwrap();
    window.enlist(0, Some(&note("vm1"))).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
    assert!(matches!(Notes::open(dir.path()), Err(OwnFileError::Foreign(at)) if at == path));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, b"viaduct pages 99").unwrap();
    assert!(open(&dir).of("w", UUID, LEN).unwrap().is_new());
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    assert!(Notes::open(dir.path()).is_err());
}

/// Cut anywhere, and with anything in it: nothing is read that is not there, and the file can be used.
#[test]
fn a_broken_file_is_as_good_as_none() {
    bolero::check!().with_type::<(Vec<(u16, u8)>, u32)>().for_each(|(changes, len)| {
        let dir = tempfile::tempdir().unwrap();
        let window = open(&dir).of("w", UUID, LEN).unwrap();
        window.enlist(0, Some(&note("vm1"))).unwrap();
        window.note(0, PAGE, Some(0)).unwrap();
        let file = fs::OpenOptions::new().write(true).open(dir.path().join("windows")).unwrap();
        let places = [0, ENTRY as u64, HEADER, HEADER + BEFORE];
        for (at, byte) in changes {
            let at = places[usize::from(*at % 4)] + u64::from(at / 4) % 128;
            file.write_all_at(&[*byte], at).unwrap();
        }
        if len % 2 == 0 {
            file.set_len(u64::from(*len) % (2 * HEADER + BEFORE)).unwrap();
        }
        let notes = open(&dir);
        let window = notes.of("w", UUID, LEN).unwrap();
        for (start, end, _) in window.owners().unwrap() {
            assert!(start < end && end <= LEN);
        }
        assert!(window.programs().unwrap().keys().all(|number| *number < PROGRAMS));
        window.note(0, LEN, Some(1)).unwrap();
        assert_eq!(window.owners().unwrap(), [(0, LEN, 1)]);
        assert!(notes.of("another", UUID, LEN).unwrap().owners().unwrap().is_empty());
    });
}

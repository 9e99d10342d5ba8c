use super::*;
use proptest::prelude::*;
use std::sync::atomic::Ordering;

const HEADER: Header = Header { format: 7, boot: 5, table: 1 << 16 };

fn opened(dir: &Path) -> Opened {
    open_since(dir, HEADER).unwrap()
}

fn records(former: &Former) -> Vec<[u64; 4]> {
    let mut all = Vec::new();
    former.records(&mut |_, record: &[u64; 4]| all.push(*record)).unwrap();
    all
}

#[test]
fn records_have_their_numbers_whether_the_daemon_runs_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let own = opened(dir.path()).own;
    own.succeed().unwrap();
    let table = own.table().unwrap().unwrap();
    let former = opened(dir.path()).former.unwrap();
    let numbers = [0_usize, 3, 130, 2047];
    let found = || {
        let [mut all, mut so_far] = [Vec::new(), Vec::new()];
        former.records(&mut |number, record: &[u64; 4]| all.push((number, *record))).unwrap();
        former.records_so_far(&mut |number, record: &[u64; 4]| so_far.push((number, *record))).unwrap();
        assert_eq!(all, so_far);
        all
    };
    assert_eq!(found(), []);
    for number in numbers {
        table.words()[4 * number + 2].store(number as u64 + 1, Ordering::Relaxed);
    }
    assert_eq!(found(), numbers.map(|number| (number, [0, 0, number as u64 + 1, 0])));
}

/// Leaves a record and a snapshot, as a daemon does in its life.
fn leave(own: &Own, at: usize, word: u64) {
    own.table().unwrap().unwrap().words()[at].store(word, Ordering::Relaxed);
    own.write(&word.to_le_bytes()).unwrap();
}

#[test]
fn the_next_daemon_reads_what_was_put_in_force_last() {
    let dir = tempfile::tempdir().unwrap();
    let Opened { own, former, refused } = opened(dir.path());
    assert!(former.is_none() && refused.is_none());
    leave(&own, 4, 1);
    assert!(opened(dir.path()).former.is_none(), "it did not begin");
    let own = opened(dir.path()).own;
    leave(&own, 5, 2);
    own.succeed().unwrap();
    leave(&own, 6, 3);
    for _ in 0..3 {
        // Daemons that end before they have taken over.
        let Opened { own, former, .. } = opened(dir.path());
        let former = former.unwrap();
        assert_eq!(records(&former), [[0, 2, 3, 0]]);
        assert_eq!(former.snapshot().unwrap().unwrap(), 3_u64.to_le_bytes());
        leave(&own, 0, 9);
    }
    let Opened { own: next, former, .. } = opened(dir.path());
    leave(&next, 0, 10);
    next.succeed().unwrap();
    assert_eq!(records(&former.unwrap()), [[0_u64; 4]; 0], "its memory is free");
    assert_eq!(own.table().unwrap().unwrap().words()[6].load(Ordering::Relaxed), 0, "and can still be read");
    let former = opened(dir.path()).former.unwrap();
    assert_eq!(
        (records(&former), former.snapshot().unwrap().unwrap()),
        (vec![[10, 0, 0, 0]], vec![10, 0, 0, 0, 0, 0, 0, 0])
    );
}

#[test]
fn what_runs_keeps_its_memory_while_another_version_prepares() {
    let dir = tempfile::tempdir().unwrap();
    let own = opened(dir.path()).own;
    let table = own.table().unwrap().unwrap();
    own.succeed().unwrap();
    for format in [8, 9] {
        let later = open_since(dir.path(), Header { format, ..HEADER }).unwrap();
        assert!(later.former.is_none() && later.refused == Some(Refused::Version));
        later.own.table().unwrap().unwrap().words()[0].store(1, Ordering::Relaxed);
    }
    table.words()[0].store(7, Ordering::Relaxed);
    assert_eq!(records(&opened(dir.path()).former.unwrap()), [[7, 0, 0, 0]]);
}

#[test]
fn what_others_wrote_is_refused_and_said() {
    for (header, why) in
        [(Header { format: 8, ..HEADER }, Refused::Version), (Header { boot: 6, ..HEADER }, Refused::Boot)]
    {
        let dir = tempfile::tempdir().unwrap();
        opened(dir.path()).own.succeed().unwrap();
        let found = open_since(dir.path(), header).unwrap();
        assert!(found.former.is_none());
        assert_eq!(found.refused, Some(why));
    }
    let dir = tempfile::tempdir().unwrap();
    let own = opened(dir.path()).own;
    own.succeed().unwrap();
    own.file.write_all_at(&[1], 20).unwrap();
    assert_eq!(opened(dir.path()).refused, Some(Refused::Foreign));
    std::os::unix::fs::symlink("/dev/null", dir.path().join("elsewhere")).unwrap();
    std::fs::rename(dir.path().join("elsewhere"), dir.path().join(NAMES[0])).unwrap();
    assert!(open_since(dir.path(), HEADER).is_err(), "somebody else's file");
}

/// The daemon may be killed at each byte of a write.
#[test]
fn a_write_that_was_cut_leaves_what_was_before() {
    let dir = tempfile::tempdir().unwrap();
    let own = opened(dir.path()).own;
    own.write(b"first").unwrap();
    own.write(b"second").unwrap();
    own.succeed().unwrap();
    let before = |len| {
        let mut bytes = vec![0; len];
        own.file.read_exact_at(&mut bytes, header::LEN).unwrap();
        let mut other = vec![0; len];
        own.file.read_exact_at(&mut other, slots::END - (slots::END - header::LEN) / 2).unwrap();
        (bytes, other)
    };
    let (even, odd) = before(40);
    own.write(b"third!").unwrap();
    let (_, third) = before(40);
    let at = slots::END - (slots::END - header::LEN) / 2;
    // The order of the writes: content, then head.
    let order: Vec<usize> = (24..40).chain(0..24).collect();
    for cut in 0..=order.len() {
        let mut torn = odd.clone();
        order[..cut].iter().for_each(|i| torn[*i] = third[*i]);
        own.file.write_all_at(&torn, at).unwrap();
        let found = slots::read(&own.file).unwrap().unwrap();
        let whole = torn == third;
        assert_eq!(found, if whole { &b"third!"[..] } else { b"second" }, "cut at {cut}");
    }
    assert_eq!(even[24..30], *b"second");
}

/// The daemon may be killed at each byte of the writes that put its file in force and take the other one out
/// of it.
#[test]
fn a_succession_that_was_cut_leaves_one_or_the_other() {
    for cut in 0..=24 {
        let dir = tempfile::tempdir().unwrap();
        let before = opened(dir.path()).own;
        before.succeed().unwrap();
        leave(&before, 5, 1);
        let own = opened(dir.path()).own;
        leave(&own, 5, 2);
        let (generation, mut bytes) = (own.generation, Vec::new());
        bytes.extend(generation.to_le_bytes());
        bytes.extend((!generation).to_le_bytes());
        own.file.write_all_at(&bytes[..cut.min(16)], header::GENERATION).unwrap();
        own.other.write_all_at(&[0; 8][..cut.saturating_sub(16)], header::GENERATION).unwrap();
        let former = opened(dir.path()).former.unwrap();
        let word = if cut < 16 { 1 } else { 2 };
        assert_eq!(records(&former), [[0, word, 0, 0]], "cut at {cut}");
        assert_eq!(former.snapshot().unwrap().unwrap(), word.to_le_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Files with any content can be opened, and reading them ends.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0_u64..9000, cut: bool) {
        let dir = tempfile::tempdir().unwrap();
        let own = opened(dir.path()).own;
        leave(&own, 3, 1);
        own.succeed().unwrap();
        own.file.write_all_at(&bytes, at).unwrap();
        if cut {
            own.file.set_len(at).unwrap();
        }
        if let Some(former) = opened(dir.path()).former {
            let _ = former.snapshot().unwrap();
            let _ = records(&former);
        }
    }
}

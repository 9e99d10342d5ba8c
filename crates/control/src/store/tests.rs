//! Tests that stored objects come back. If the disk fails or the files are damaged, the store reports it and
//! loses nothing else.

mod forms;

use super::files::FILES;
use super::*;
use crate::history::Author;
use crate::owner::{Objects, Owner};
use std::io;
use std::sync::Arc;

fn objects(prefixes: &[&str]) -> Objects {
    let mut objects = Objects::default();
    for prefix in prefixes {
        let text = format!("[[route]]\nnetwork = \"blue\"\nprefix = \"{prefix}\"\nto = \"drop\"\n");
        let read = config::parse_objects(&text).unwrap();
        read.into_iter().for_each(|object| objects.put(Owner::Api, object));
    }
    objects
}

impl Store {
    fn try_save(&self, new: &Objects, durability: Durability) -> Result<(), StoreError> {
        self.update(new, None, durability)
    }

    fn update(&self, new: &Objects, taken: Option<&str>, durability: Durability) -> Result<(), StoreError> {
        let differences = self.lock().objects.differences_to(new);
        let revision = locked(&self.history).next(Author::daemon("test"), differences);
        let (revisions, number) = (revision.as_slice(), &|_: &Key| None);
        self.write(&Update { revisions, objects: new, taken, number, durability })
    }

    fn save(&self, new: &Objects, durability: Durability) {
        self.try_save(new, durability).unwrap();
    }

    fn stored(&self) -> Vec<String> {
        contents(&self.load().unwrap().objects)
    }
}

fn contents(objects: &Objects) -> Vec<String> {
    objects.listed().map(|of| format!("{} {} {:?}", of.key(), of.seq(), of.owner())).collect()
}

/// Opens the store again. The process that another test starts has all descriptors, and so the lock, until it
/// executes its program.
fn reopened(dir: &Path) -> Store {
    let start = std::time::Instant::now();
    loop {
        match Store::open(dir) {
            Err(StoreError::InUse(_)) if start.elapsed().as_secs() < 10 => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

#[test]
fn what_is_stored_comes_back_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (objects(&["10.1.0.0/16", "10.2.0.0/16"]), objects(&["10.2.0.0/16", "10.3.0.0/16"]));
    {
        let store = Store::open(dir.path()).unwrap();
        assert!(store.load().is_none(), "nothing was ever stored");
        store.save(&one, Durability::Disk);
        store.save(&two, Durability::Kernel);
    }
    let store = reopened(dir.path());
    assert_eq!((store.stored(), store.problems()), (contents(&two), Vec::new()));
    assert_eq!(store.load().unwrap().taken, None);
    store.update(&two, Some("digest"), Durability::Disk).unwrap();
    drop(store);
    assert_eq!(reopened(dir.path()).load().unwrap().taken.as_deref(), Some("digest"));
}

/// Describes the history: each state to which there is a way back.
fn states(store: &Store) -> Vec<(u64, Vec<String>)> {
    let (history, now) = (locked(&store.history), &store.lock().objects);
    let back = |number| (number, contents(&history.back(number, now).unwrap()));
    (history.first()..=history.number()).map(back).collect()
}

#[test]
fn the_last_changes_come_back() {
    let pool = ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"];
    bolero::check!().with_iterations(100).with_type::<Vec<(u8, bool, bool)>>().for_each(|steps| {
        let dir = tempfile::tempdir().unwrap();
        let mut store = reopened(dir.path());
        for (present, anew, again) in steps.iter().take(8) {
            let there: Vec<_> = pool.iter().zip(0..).filter(|(_, bit)| present >> bit & 1 == 1).collect();
            if *anew {
                store.lock().owe();
            }
            store.save(
                &objects(&there.iter().map(|(prefix, _)| **prefix).collect::<Vec<_>>()),
                Durability::Kernel,
            );
            if *again {
                let (before, author) = (states(&store), locked(&store.history).last().last().cloned());
                drop(store);
                store = reopened(dir.path());
                assert_eq!(states(&store), before);
                let last = locked(&store.history).last().last().cloned();
                let of =
                    |revision: Arc<Revision>| (revision.since_1970(), revision.uid, revision.request.clone());
                assert_eq!(last.map(of), author.map(of));
            }
        }
    });
}

#[test]
fn more_changes_than_are_remembered_leave_the_objects() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (objects(&["10.1.0.0/16"]), objects(&["10.1.0.0/16", "10.2.0.0/16"]));
    let store = reopened(dir.path());
    for _ in 0..60 {
        [&two, &one].iter().for_each(|objects| store.save(objects, Durability::Kernel));
    }
    drop(store);
    for _ in 0..2 {
        let store = reopened(dir.path());
        let numbers: Vec<_> = states(&store).into_iter().map(|(number, _)| number).collect();
        assert_eq!((numbers, store.stored()), ((20..=120).collect(), contents(&one)));
        store.lock().write_snapshot(None).unwrap();
    }
}

#[test]
fn an_empty_host_is_not_an_empty_store() {
    let dir = tempfile::tempdir().unwrap();
    reopened(dir.path()).save(&Objects::default(), Durability::Disk);
    assert!(reopened(dir.path()).load().is_some());
}

#[test]
fn two_daemons_cannot_share_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Store::open(dir.path()).unwrap();
    let said = Store::open(dir.path()).err().unwrap().to_string();
    assert!(said.contains("in use") && said.contains("--state-dir"), "{said}");
}

#[test]
fn a_directory_that_is_none_refuses_changes_and_nothing_else() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let store = reopened(&file.path().join("below"));
    assert!(store.load().is_none());
    let said = store.try_save(&objects(&["10.1.0.0/16"]), Durability::Kernel).unwrap_err().to_string();
    assert!(said.contains("can't be written: ") && said.contains("restart"), "{said}");
    store.heal();
    assert!(store.problems()[0].contains("changes are refused"));
}

#[test]
fn a_damaged_byte_anywhere_costs_one_change_and_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (objects(&["10.1.0.0/16"]), objects(&["10.1.0.0/16", "10.2.0.0/16"]));
    let three = objects(&["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"]);
    {
        let store = reopened(dir.path());
        store.save(&one, Durability::Disk);
        store.save(&two, Durability::Kernel);
        store.save(&three, Durability::Disk);
    }
    let (at, other) = FILES.map(|name| dir.path().join(name)).into_iter().fold(
        (PathBuf::new(), PathBuf::new()),
        |(at, other), name| {
            if name.metadata().unwrap().len() > 0 { (name, other) } else { (at, name) }
        },
    );
    let good = std::fs::read(&at).unwrap();
    let all = contents(&three);
    for place in 0..good.len() {
        for flip in [1, 0x80] {
            let mut bad = good.clone();
            bad[place] ^= flip;
            std::fs::write(&at, bad).unwrap();
            std::fs::write(&other, "").unwrap();
            let store = reopened(dir.path());
            let (found, problems) = (store.stored(), store.problems());
            assert!(found.iter().all(|object| all.contains(object)), "byte {place}: {found:?}");
            assert!(
                found.len() >= 2 && (found.len() == 3 || !problems.is_empty()),
                "byte {place}: {found:?}"
            );
            store.save(&three, Durability::Kernel);
            drop(store);
            let store = reopened(dir.path());
            assert_eq!((store.stored(), store.problems()), (all.clone(), Vec::new()));
        }
    }
    let copy = std::fs::read(beside(&at, "damaged")).unwrap();
    assert_eq!(copy.iter().zip(&good).filter(|(copied, good)| copied != good).count(), 1);
}

#[test]
fn damage_to_a_snapshot_brings_nothing_back() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (objects(&["10.1.0.0/16"]), objects(&["10.1.0.0/16", "10.2.0.0/16"]));
    {
        let store = reopened(dir.path());
        [&one, &two, &one].iter().for_each(|objects| store.save(objects, Durability::Kernel));
        store.lock().write_snapshot(None).unwrap();
        assert_eq!(states(&store).len(), 4);
    }
    let at = FILES.map(|name| dir.path().join(name)).into_iter().find(|at| at.metadata().unwrap().len() > 0);
    let at = at.unwrap();
    let good = std::fs::read(&at).unwrap();
    for place in 0..good.len() {
        let mut bad = good.clone();
        bad[place] ^= 1;
        std::fs::write(&at, bad).unwrap();
        let store = reopened(dir.path());
        let found = store.stored();
        assert!(found.iter().all(|object| contents(&one).contains(object)), "byte {place}: {found:?}");
        // The way back leads to states that were there.
        assert!(states(&store).iter().all(|(_, state)| state.len() <= 2), "byte {place}");
    }
}

/// Returns the path of a file whose name has this in addition.
fn beside(path: &Path, more: &str) -> PathBuf {
    PathBuf::from(format!("{}.{more}", path.display()))
}

#[test]
fn a_damaged_file_of_which_there_is_no_copy_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let one = objects(&["10.1.0.0/16"]);
    reopened(dir.path()).save(&one, Durability::Disk);
    let at = FILES.map(|name| dir.path().join(name)).into_iter().find(|at| at.metadata().unwrap().len() > 0);
    let at = at.unwrap();
    let mut bad = std::fs::read(&at).unwrap();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    std::fs::write(&at, &bad).unwrap();
    // As if the disk were full.
    std::fs::create_dir(beside(&at, "damaged.new")).unwrap();
    let store = reopened(dir.path());
    let said = store.try_save(&one, Durability::Disk).unwrap_err().to_string();
    assert!(said.contains("no copy can be made") && said.contains("restart"), "{said}");
    store.update(&one, Some("digest"), Durability::DiskOrLater).unwrap();
    store.heal();
    let problems = store.problems().join("\n");
    assert!(problems.contains("is lost") && !problems.contains("is beside it"), "{problems}");
    drop(store);
    assert_eq!(std::fs::read(&at).unwrap(), bad);
    std::fs::remove_dir(beside(&at, "damaged.new")).unwrap();
    let store = reopened(dir.path());
    store.save(&one, Durability::Disk);
    assert_eq!(std::fs::read(beside(&at, "damaged")).unwrap(), bad);
}

#[test]
fn what_is_no_store_at_all_is_told() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path()).unwrap();
    std::fs::write(dir.path().join(FILES[0]), vec![0xa5; 10_000]).unwrap();
    let store = reopened(dir.path());
    assert!(store.load().unwrap().is_damaged && store.stored().is_empty());
    assert!(store.problems()[0].contains("10000 bytes from 0 on of store.0"), "{:?}", store.problems());
    assert!(store.problems()[0].ends_with("a copy of the file is beside it (*.damaged)"));
}

#[test]
fn what_a_newer_version_wrote_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = Vec::new();
    let toml = "[[route]]\\nnetwork = \\\"blue\\\"\\nprefix = \\\"10.1.0.0/16\\\"\\nto = \\\"drop\\\"\\n";
    for record in [
        "{\"version\":9,\"generation\":\"0000000000000001\",\"more\":1}",
        "[\"of another form\"]",
        "{\"sung\":\"a song\"}",
        &format!(
            "{{\"changed\":[{{\"key\":\"a\",\"object\":{{\"seq\":0,\"owner\":\"api\",\"toml\":\"{toml}\"}}}}]}}"
        ),
        "{\"changed\":[{\"key\":\"b\",\"object\":{\"seq\":1,\"owner\":\"api\",\"toml\":\"[[teapot]]\\n\"}}]}",
        "{\"changed\":[{\"key\":\"c\",\"object\":{\"seq\":2,\"owner\":\"angel\",\"toml\":\"\"}}]}",
    ] {
        frame::put(&mut bytes, record);
    }
    std::fs::write(dir.path().join(FILES[0]), bytes).unwrap();
    for _ in 0..2 {
        let store = reopened(dir.path());
        assert_eq!(store.stored().len(), 1);
        let problems = store.problems().join("; ");
        assert!(problems.contains("b is kept") && problems.contains("c is kept"), "{problems}");
        assert!(problems.contains("2 records of a newer version"), "{problems}");
        assert!(!store.load().unwrap().is_damaged);
        store.lock().log.as_mut().unwrap().distrust();
        store.save(&objects(&["10.1.0.0/16"]), Durability::Disk);
    }
    let text: String = FILES.map(|name| std::fs::read_to_string(dir.path().join(name)).unwrap()).concat();
    assert!(text.contains("\"version\":9") && text.contains("a song") && text.contains("teapot"), "{text}");
}

/// Two files of which some operations fail, and which know what the disk has.
struct Disk {
    now: [Vec<u8>; 2],
    synced: [Vec<u8>; 2],
    operations: usize,
    failing: std::ops::Range<usize>,
    /// Space for each file, bytes.
    space: u64,
}

impl Default for Disk {
    fn default() -> Self {
        let (now, synced) = Default::default();
        Self { now, synced, operations: 0, failing: 0..0, space: u64::MAX }
    }
}

impl Disk {
    fn fails(&mut self) -> io::Result<()> {
        self.operations += 1;
        let fails = self.failing.contains(&(self.operations - 1));
        if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

struct Half(Arc<Mutex<Disk>>, usize);

impl Medium for Half {
    fn contents(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.0.lock().unwrap().now[self.1].clone())
    }

    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap();
        let (fails, at) = (disk.fails(), at as usize);
        let written = if fails.is_err() { &bytes[..bytes.len() / 2] } else { bytes };
        let file = &mut disk.now[self.1];
        file.resize(file.len().max(at + written.len()), 0);
        file[at..at + written.len()].copy_from_slice(written);
        fails
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap();
        disk.fails()?;
        disk.now[self.1].resize(len as usize, 0);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap();
        disk.fails()?;
        disk.synced[self.1] = disk.now[self.1].clone();
        Ok(())
    }

    fn reserve(&mut self, end: u64) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap();
        disk.fails()?;
        if end > disk.space { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

#[test]
fn a_full_disk_refuses_what_adds_and_takes_what_removes() {
    let disk = Arc::new(Mutex::new(Disk::default()));
    let (store, two) = (store_on(&disk), objects(&["10.1.0.0/16", "10.2.0.0/16"]));
    store.save(&two, Durability::Disk);
    let one = objects(&["10.1.0.0/16"]);
    disk.lock().unwrap().space = 0;
    let more = objects(&["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"]);
    // The space ahead is used up first.
    while store.try_save(&more, Durability::Disk).is_ok() {
        store.save(&two, Durability::Disk);
    }
    let told = store.problems();
    assert!(told[0].contains("changes are refused"), "{told:?}");
    for _ in 0..3 {
        store.heal();
        assert_eq!(store.problems(), told, "it stays full");
    }
    store.save(&one, Durability::Disk);
    assert_eq!((store.problems(), found_in(disk.lock().unwrap().now.clone())), (told, contents(&one)));
    disk.lock().unwrap().space = u64::MAX;
    store.heal();
    assert!(store.problems().is_empty());
    store.save(&two, Durability::Disk);
}

#[test]
fn problems_are_told_while_the_disk_is_slow() {
    let disk = Arc::new(Mutex::new(Disk::default()));
    let store = store_on(&disk);
    store.save(&objects(&["10.1.0.0/16"]), Durability::Disk);
    let busy = store.lock();
    assert_eq!(store.problems(), [""; 0]);
    drop(busy);
}

fn store_on(disk: &Arc<Mutex<Disk>>) -> Store {
    let files = [0, 1].map(|half| Box::new(Half(disk.clone(), half)) as Box<dyn Medium>);
    Store::over(Path::new("/nowhere"), Ok(files))
}

/// Returns what a daemon finds that starts with these files.
fn found_in(files: [Vec<u8>; 2]) -> Vec<String> {
    let store = store_on(&Arc::new(Mutex::new(Disk { now: files, ..Disk::default() })));
    store.load().map(|loaded| contents(&loaded.objects)).unwrap_or_default()
}

#[test]
fn a_disk_that_fails_anywhere_refuses_changes_until_it_works_again() {
    let prefixes = ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16", "10.4.0.0/16", "10.5.0.0/16"];
    let sets: Vec<Objects> = (1..=prefixes.len()).map(|n| objects(&prefixes[..n])).collect();
    for (first, many) in (0..24).flat_map(|first| [1, 2, 3, 9].map(|many| (first, many))) {
        let disk = Arc::new(Mutex::new(Disk { failing: first..first + many, ..Disk::default() }));
        let store = store_on(&disk);
        let (mut acknowledged, mut safe, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for (number, set) in sets.iter().enumerate() {
            let durability = if number % 2 == 0 { Durability::Disk } else { Durability::Kernel };
            let case = format!("operations {first}..{} fail, change {number}", first + many);
            if number == 3 {
                store.lock().log.as_mut().unwrap().distrust();
            }
            let wanted = contents(set);
            match store.try_save(set, durability) {
                Ok(()) => {
                    assert!(store.problems().is_empty(), "{case}");
                    refused.clear();
                    acknowledged.clone_from(&wanted);
                    if durability == Durability::Disk {
                        safe.clone_from(&wanted);
                    }
                }
                Err(_) => {
                    assert!(store.problems()[0].contains("changes are refused"), "{case}");
                    refused.push(wanted);
                }
            }
            let disk = disk.lock().unwrap();
            let found = found_in(disk.now.clone());
            // A refused change may be found only if it could not be cut off either.
            let is_left = many > 1 && refused.contains(&found);
            assert!(found == acknowledged || is_left, "{case}: {found:?}, not {acknowledged:?}");
            let found = found_in(disk.synced.clone());
            assert!(safe.iter().all(|object| found.contains(object)), "{case}: {found:?} after a power cut");
        }
        disk.lock().unwrap().failing = 0..0;
        store.heal();
        assert!(store.problems().is_empty());
        let last = objects(&["10.9.0.0/16"]);
        store.save(&last, Durability::Kernel);
        assert_eq!(found_in(disk.lock().unwrap().now.clone()), contents(&last), "without a restart");
    }
}

#[test]
fn what_is_in_force_though_not_stored_is_stored_when_the_disk_works() {
    let disk = Arc::new(Mutex::new(Disk { failing: 0..7, ..Disk::default() }));
    let (store, one) = (store_on(&disk), objects(&["10.1.0.0/16"]));
    store.update(&one, Some("digest"), Durability::DiskOrLater).unwrap();
    assert_eq!(found_in(disk.lock().unwrap().now.clone()), [""; 0]);
    while !store.problems().is_empty() {
        store.heal();
    }
    assert_eq!(found_in(disk.lock().unwrap().now.clone()), contents(&one));
    assert_eq!(store_on(&disk).load().unwrap().taken.as_deref(), Some("digest"));
}

/// Runs in a child that is killed: it stores one set after the other and reports each on standard error.
#[test]
fn writer_that_gets_killed() {
    let Some(dir) = std::env::var_os("VIADUCT_TEST_STORE") else { return };
    let store = Store::open(Path::new(&dir)).unwrap();
    for n in 0..=u8::MAX {
        let prefixes: Vec<String> = (0..=n).map(|n| format!("10.{n}.0.0/16")).collect();
        let new = objects(&prefixes.iter().map(String::as_str).collect::<Vec<_>>());
        if n % 16 == 0 {
            store.lock().log.as_mut().unwrap().distrust();
        }
        store.save(&new, Durability::Kernel);
        // Past the test harness, which keeps what is printed.
        std::io::Write::write_all(&mut std::io::stderr(), format!("stored {n}\n").as_bytes()).unwrap();
    }
}

#[test]
fn what_was_acknowledged_survives_kill() {
    use std::io::{BufRead, BufReader};
    let dir = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["store::tests::writer_that_gets_killed", "--exact", "--nocapture", "--test-threads=1"])
        .env("VIADUCT_TEST_STORE", dir.path())
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let acknowledged = lines.by_ref().map(Result::unwrap).find(|line| line == "stored 20");
    assert!(acknowledged.is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    let stored = reopened(dir.path()).load().unwrap().objects;
    let count = stored.len();
    assert!(count >= 21, "{count} of at least 21");
    let whole: Vec<String> = (0..count).map(|n| format!("10.{n}.0.0/16")).collect();
    for prefix in whole {
        assert!(stored.listed().any(|listed| listed.key().name == prefix), "{prefix} is missing");
    }
}

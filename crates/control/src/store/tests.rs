//! What is stored comes back; what isn't a store is said to be none.

use super::*;
use crate::owner::{Objects, Owner};

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
    /// Writes, and waits for it.
    fn save(&self, old: &Objects, new: &Objects, durability: Durability) {
        self.prepare(&old.changes_to(new), new, durability).unwrap().commit().unwrap();
    }
}

fn contents(objects: &Objects) -> Vec<(String, u64, Owner)> {
    objects.iter().map(|(key, owned)| (key.to_string(), owned.seq, owned.owner)).collect()
}

#[test]
fn what_is_stored_comes_back_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (objects(&["10.1.0.0/16", "10.2.0.0/16"]), objects(&["10.2.0.0/16", "10.3.0.0/16"]));
    {
        let store = Store::open(dir.path()).unwrap();
        assert!(store.load().unwrap().is_none(), "nothing was ever stored");
        store.save(&Objects::default(), &one, Durability::Disk);
        drop(store.prepare(&one.changes_to(&two), &two, Durability::Disk).unwrap());
        drop(store.prepare(&one.changes_to(&two), &two, Durability::Kernel).unwrap());
        assert_eq!(contents(&store.load().unwrap().unwrap()), contents(&one), "not committed");
        store.save(&one, &two, Durability::Disk);
    }
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(contents(&store.load().unwrap().unwrap()), contents(&two));
}

#[test]
fn the_journal_counts_up_to_where_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two, three] =
        [&["10.1.0.0/16"][..], &["10.2.0.0/16"], &["10.2.0.0/16", "10.3.0.0/16"]].map(objects);
    {
        let store = Store::open(dir.path()).unwrap();
        store.save(&Objects::default(), &one, Durability::Disk);
        store.save(&one, &two, Durability::Kernel);
        store.save(&two, &three, Durability::Kernel);
    }
    assert_eq!(contents(&Store::open(dir.path()).unwrap().load().unwrap().unwrap()), contents(&three));
    let path = dir.path().join("viaduct.journal");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    {
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(contents(&store.load().unwrap().unwrap()), contents(&two), "the last line is torn");
        store.save(&two, &three, Durability::Kernel);
    }
    assert_eq!(std::fs::read(&path).unwrap(), whole, "it goes on where it was whole");
}

#[test]
fn a_journal_that_the_database_has_taken_up_counts_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (objects(&["10.1.0.0/16"]), objects(&["10.2.0.0/16"]));
    let path = dir.path().join("viaduct.journal");
    {
        let store = Store::open(dir.path()).unwrap();
        store.save(&Objects::default(), &one, Durability::Disk);
        store.save(&one, &two, Durability::Kernel);
        let journal = std::fs::read(&path).unwrap();
        store.save(&two, &one, Durability::Disk);
        std::fs::write(&path, journal).unwrap(); // as if the power had gone before it was emptied
    }
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(contents(&store.load().unwrap().unwrap()), contents(&one));
    store.save(&one, &two, Durability::Kernel);
    drop(store);
    assert_eq!(contents(&Store::open(dir.path()).unwrap().load().unwrap().unwrap()), contents(&two));
}

#[test]
fn an_empty_host_is_not_an_empty_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.save(&Objects::default(), &Objects::default(), Durability::Disk);
    assert!(store.load().unwrap().is_some_and(|objects| objects.iter().next().is_none()));
}

#[test]
fn two_daemons_cannot_share_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Store::open(dir.path()).unwrap();
    let said = Store::open(dir.path()).err().unwrap().to_string();
    assert!(said.contains("in use") && said.contains("--state-dir"), "{said}");
}

#[test]
fn damage_is_told_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    {
        let store = Store::open(dir.path()).unwrap();
        store.save(&Objects::default(), &objects(&["10.1.0.0/16"]), Durability::Disk);
    }
    let path = dir.path().join("viaduct.redb");
    let good = std::fs::read(&path).unwrap();
    let damage: [Vec<u8>; 3] =
        [b"not a store".to_vec(), good[..good.len() / 3].to_vec(), vec![0xa5; good.len()]];
    for bytes in damage {
        std::fs::write(&path, bytes).unwrap();
        let said = Store::open(dir.path()).and_then(|store| store.load().map(drop)).unwrap_err().to_string();
        assert!(said.contains("can't be read") && said.contains("mv "), "{said}");
    }
}

#[test]
fn another_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let write = store.database.begin_write().unwrap();
    write.open_table(META).unwrap().insert("version", VERSION + 1).unwrap();
    write.commit().unwrap();
    let said = store.load().unwrap_err().to_string();
    assert!(said.contains("version is 2"), "{said}");
}

/// Runs in a child that is killed: stores one set after the other, telling each on standard output.
#[test]
fn writer_that_gets_killed() {
    let Some(dir) = std::env::var_os("VIADUCT_TEST_STORE") else { return };
    let store = Store::open(Path::new(&dir)).unwrap();
    let mut old = Objects::default();
    for n in 0..=u8::MAX {
        let prefixes: Vec<String> = (0..=n).map(|n| format!("10.{n}.0.0/16")).collect();
        let new = objects(&prefixes.iter().map(String::as_str).collect::<Vec<_>>());
        let durability = if n % 16 == 0 { Durability::Disk } else { Durability::Kernel };
        store.save(&old, &new, durability);
        // Past the test harness, which keeps what is printed.
        std::io::Write::write_all(&mut std::io::stderr(), format!("stored {n}\n").as_bytes()).unwrap();
        old = new;
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
    let stored = Store::open(dir.path()).unwrap().load().unwrap().unwrap();
    let count = stored.iter().count();
    assert!(count >= 21, "{count} of at least 21");
    let whole: Vec<String> = (0..count).map(|n| format!("10.{n}.0.0/16")).collect();
    for prefix in whole {
        assert!(stored.iter().any(|(key, _)| key.name == prefix), "{prefix} is missing");
    }
}

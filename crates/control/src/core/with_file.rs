//! A file's objects beside those that others brought.

use crate::owner::{Objects, Owner};
use config::{Item, Key};

/// The objects of a host with those of a file in place of those of the file before.
pub(super) struct WithFile<'a> {
    pub(super) objects: Objects,
    /// The file's objects among them, with their places in the file.
    pub(super) taken: Vec<&'a Item>,
    /// Those of the file that are not: others of their names differ, and belong to these.
    pub(super) left: Vec<(Key, Owner)>,
}

impl<'a> WithFile<'a> {
    pub(super) fn new(old: &Objects, file: &'a [Item]) -> Self {
        let mut objects = Objects::default();
        for owned in old.in_order().into_iter().filter(|owned| owned.owner != Owner::File) {
            objects.restore(owned.seq, owned.owner, owned.object.clone());
        }
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        for item in file {
            let key = item.object.key();
            match (objects.get(&key).filter(|other| other.owner != Owner::File), old.get(&key)) {
                // What is there already, and the same, stays as it is: an exported file has what others brought.
                (Some(other), _) if other.object == item.object => continue,
                (Some(other), _) => {
                    left.push((key, other.owner));
                    continue;
                }
                (None, Some(old)) if old.object == item.object => {
                    objects.restore(old.seq, Owner::File, item.object.clone());
                }
                (None, _) => objects.put(Owner::File, item.object.clone()),
            }
            taken.push(item);
        }
        Self { objects, taken, left }
    }
}

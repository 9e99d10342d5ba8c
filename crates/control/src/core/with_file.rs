//! Puts a file's objects beside those of other owners.

use crate::owner::{Objects, Owner};
use config::{Item, Key};

/// The objects of a host after those of a new file replaced those of the old one.
pub(super) struct WithFile<'a> {
    pub(super) objects: Objects,
    /// The file's objects among them, with their places in the file.
    pub(super) taken: Vec<&'a Item>,
    /// The file's objects that are not among them, because an existing one with the same name differs, with
    /// its owner.
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
                // An equal object that exists already stays with its owner: an exported file also has the
                // objects of other owners.
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

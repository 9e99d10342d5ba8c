//! Puts a file's objects beside those of other owners.

use crate::owner::{Objects, Owner};
use config::{Item, Key};
use std::collections::HashSet;

/// The objects of a host after those of a new file replaced those of the old one.
pub(super) struct WithFile<'a> {
    /// They have in common with the old ones what is equal.
    pub(super) objects: Objects,
    /// The file's objects among them, with their places in the file.
    pub(super) taken: Vec<&'a Item>,
    /// The file's objects that are not among them, because an existing one with the same name differs, with
    /// its owner.
    pub(super) left: Vec<(Key, Owner)>,
    /// Whether the file has two objects with the same name.
    pub(super) has_twins: bool,
}

impl<'a> WithFile<'a> {
    pub(super) fn new(old: &Objects, file: &'a [Item]) -> Self {
        let mut objects = old.clone();
        let (mut taken, mut left, mut keys) = (Vec::new(), Vec::new(), HashSet::with_capacity(file.len()));
        for item in file {
            let key = item.object.key();
            match old.get(&key) {
                // An equal object that exists already stays with its owner: an exported file also has the
                // objects of other owners.
                Some(other) if other.owner != Owner::File && other.object == item.object => continue,
                Some(other) if other.owner != Owner::File => {
                    left.push((key, other.owner.clone()));
                    continue;
                }
                Some(old) if old.object == item.object => {}
                _ => {
                    objects.remove(&key);
                    objects.put(Owner::File, item.object.clone());
                }
            }
            taken.push(item);
            keys.insert(key);
        }
        let gone = old.iter().filter(|(key, owned)| owned.owner == Owner::File && !keys.contains(key));
        gone.for_each(|(key, _)| drop(objects.remove(key)));
        let has_twins = keys.len() < taken.len();
        Self { objects, taken, left, has_twins }
    }
}

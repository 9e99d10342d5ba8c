//! Puts a file's objects beside those of other owners.

use crate::owner::{Listed, Objects, Owner};
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
            let there = old.namesake(&item.object);
            let is_same = there.is_some_and(|there| there.is(&item.object));
            match there.map(Listed::owner) {
                // An equal object that exists already stays with its owner: an exported file also has the
                // objects of other owners.
                Some(owner) if *owner != Owner::File && is_same => continue,
                Some(owner) if *owner != Owner::File => {
                    left.push((key, owner.clone()));
                    continue;
                }
                Some(_) if is_same => {}
                _ => {
                    objects.remove(&key);
                    objects.put(Owner::File, item.object.clone());
                }
            }
            taken.push(item);
            keys.insert(key);
        }
        let of_file = old.listed().filter(|listed| *listed.owner() == Owner::File).map(Listed::key);
        of_file.filter(|key| !keys.contains(key)).for_each(|key| {
            objects.remove(&key);
        });
        let has_twins = keys.len() < taken.len();
        Self { objects, taken, left, has_twins }
    }
}

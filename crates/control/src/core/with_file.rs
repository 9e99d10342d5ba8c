//! Puts a file's objects beside those of other owners.

use crate::owner::{Listed, Objects, Owner, Written};
use config::{Item, Key, Object};
use ipnet::IpNet;
use std::collections::{HashMap, HashSet};

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
        let (mut taken, mut left, mut keys) = (Vec::new(), Vec::new(), Names::default());
        for item in file {
            let there = old.namesake(&item.object);
            let is_same = there.is_some_and(|there| there.is(&item.object));
            match there.map(Listed::owner) {
                // An equal object that exists already stays with its owner: an exported file also has the
                // objects of other owners.
                Some(owner) if *owner != Owner::File && is_same => continue,
                Some(owner) if *owner != Owner::File => {
                    left.push((item.object.key(), owner.clone()));
                    continue;
                }
                Some(_) if is_same => {}
                _ => {
                    objects.remove_namesake(&item.object);
                    objects.put(Owner::File, item.object.clone());
                }
            }
            taken.push(item);
            keys.add(&item.object);
        }
        let of_file = old.listed().filter(|listed| *listed.owner() == Owner::File);
        of_file.filter(|listed| !keys.have(*listed)).for_each(|listed| {
            objects.remove(&listed.key());
        });
        let has_twins = keys.len() < taken.len();
        Self { objects, taken, left, has_twins }
    }
}

/// The keys of a file's objects. Those of a hundred thousand routes are no texts.
#[derive(Default)]
struct Names<'a> {
    routes: HashMap<&'a str, HashSet<IpNet>>,
    others: HashSet<Key>,
}

impl<'a> Names<'a> {
    fn add(&mut self, object: &'a Object) {
        match object {
            Object::Route(route) => self.routes.entry(&route.network).or_default().insert(route.prefix),
            other => self.others.insert(other.key()),
        };
    }

    fn len(&self) -> usize {
        self.others.len() + self.routes.values().map(HashSet::len).sum::<usize>()
    }

    fn have(&self, listed: Listed<'_>) -> bool {
        match listed {
            Listed::Route(Written { network, prefix, .. }) => {
                self.routes.get(&**network).is_some_and(|routes| routes.contains(&prefix))
            }
            Listed::Other(owned) => self.others.contains(&owned.object.key()),
        }
    }
}

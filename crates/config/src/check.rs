//! Rules that must hold between objects.

mod count;
mod guards;
mod index;
mod pools;
mod refers;
mod services;
mod subnets;
mod unique;
mod windows;

pub use guards::unguarded;
pub use index::{CommonWindow, CommonWindows, Index};
pub use subnets::warnings;

use crate::{Item, Object, Problem};
use ipnet::IpNet;

/// Returns whether a network has a route with this prefix.
pub type HasRoute<'a> = &'a dyn Fn(&str, IpNet) -> bool;

/// Checks everything that must hold between the objects of a host. `index` is the index of these objects.
/// Errors in a single object were found when it was read. Returns nothing if nothing is wrong.
#[must_use]
pub fn check(index: &Index, objects: &[Item]) -> Vec<Problem> {
    check_beside(&[], index, objects)
}

/// Checks like [`check`], beside objects of these names that could not be read: a reference to one of them is
/// no problem.
pub(crate) fn check_beside(unread: &[String], index: &Index, objects: &[Item]) -> Vec<Problem> {
    check_all(unread, index, objects, &|_, _| false)
}

/// Checks like [`check`], beside routes that were checked before and depend on nothing that changed.
#[must_use]
pub fn check_beside_routes(index: &Index, objects: &[Item], has_route: HasRoute<'_>) -> Vec<Problem> {
    check_all(&[], index, objects, has_route)
}

fn check_all(unread: &[String], index: &Index, objects: &[Item], has_route: HasRoute<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    unique::check(index, objects, &mut problems);
    refers::check(index, unread, (objects, has_route), &mut problems);
    windows::check(index, objects, &mut problems);
    pools::check(objects, &mut problems);
    count::check(objects, &mut problems);
    problems
}

/// Checks routes and rules of a host whose other objects, in `index`, were checked before. Their keys, and the names of
/// rules, must be unique: they need nothing else of each other.
#[must_use]
pub fn check_routes_and_rules(index: &Index, objects: impl Iterator<Item = Object>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for object in objects {
        refers::check(index, &[], (&[Item::from(object)], &|_, _| false), &mut problems);
    }
    problems
}

/// Records a problem of an item at one of its keys.
fn problem(problems: &mut Vec<Problem>, item: &Item, key: &str, message: String) {
    problems.push(item.problem(key, message));
}

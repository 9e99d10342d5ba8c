//! Changes of objects for clients and files: checked against the state in force, with all that depends on them, and
//! with nothing else.

use super::ahead::{self, Ahead};
use super::joined::Joined;
use super::open_ports::{OnFailure, needed, unplugged};
use super::transact::may_wait;
use super::with_file::WithFile;
use super::{Core, Done, Error, State, Switching, check_host, none_of, note, of_port, rule};
use crate::compile;
use crate::history::Author;
use crate::leases::{self, Brought};
use crate::object_change::{describe, describe_host};
use crate::owner::{Changed, Objects, Owned, Owner, Written};
use crate::ports::{self, PortSpec};
use crate::store::Durability;
use config::{Host, Index, Item, Key, Kind, Lease, Network, Object, Texts};
use ipnet::IpNet;
use model::Vrf;
use std::cell::Cell;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The part of the objects on which a change has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    /// Everything but routes, and the routes that change themselves.
    BesideRoutes,
    /// The same, and no rules.
    BesideRules,
}

/// The work that a request makes, as long as the state stays as it is.
pub(super) enum Step<'a> {
    /// Nothing.
    Answer(Done),
    Make(Draft<'a>),
}

/// Objects that somebody wants in force.
pub(super) struct Draft<'a> {
    host: Arc<Host>,
    objects: Objects,
    /// The file's objects, with their lines, if they come from a file.
    places: Vec<&'a Item>,
    /// Whether two of these have the same name.
    has_twins: bool,
}

impl Draft<'_> {
    /// Makes a draft of objects that don't come from a file.
    pub(super) fn of(state: &State, mut objects: Objects) -> Result<Self, Error> {
        leases::settle(&mut objects)?;
        Ok(Self { host: state.host.clone(), objects, places: Vec::new(), has_twins: false })
    }
}

/// The result of an attempt.
pub(super) enum Attempt<'a> {
    Done(Done),
    /// Something is to be done before, without the lock on the state.
    Later(ahead::Next<'a>),
}

/// A state that is to be in force, whose objects fit together.
pub(super) struct Next {
    pub(super) host: Arc<Host>,
    pub(super) objects: Objects,
    pub(super) index: Index,
    pub(super) scope: Scope,
}

impl Core {
    /// Replaces the file's objects with those in `texts`; with `dry_run` only says what would change. With
    /// `confirm` the change is undone after that time.
    pub(crate) fn apply(
        &self,
        by: Author,
        texts: &Texts,
        dry_run: bool,
        confirm: Option<Duration>,
    ) -> Result<Done, Error> {
        // If reading fails, `parse` names all problems, including objects that don't fit together.
        let file = config::read(texts).map_err(|e| config::parse_all(texts).err().unwrap_or(e))?;
        let host = Arc::new(file.host.clone());
        // Objects that others have as well stay theirs.
        let is_all_taken = Cell::new(false);
        let draft = |state: &State| {
            check_host(&state.host, &host)?;
            let WithFile { objects, taken: places, left, has_twins } =
                WithFile::new(&state.objects, &file.objects);
            if let Some((key, owner)) = left.first() {
                return Err(Error::Conflict(format!(
                    "{key} belongs to {} and differs; leave it out of the file, or remove it there first",
                    owner.name()
                )));
            }
            is_all_taken.set(places.len() == file.objects.len());
            let mut objects = objects;
            leases::settle(&mut objects)?;
            let draft = Draft { host: host.clone(), objects, places, has_twins };
            if dry_run {
                return self.tried(state, &draft).map(Step::Answer);
            }
            may_wait(state, confirm)?;
            if confirm.is_some() && *host != *state.host {
                return Err(Error::Conflict(
                    "only objects go back if nobody confirms, and the file changes [host] or [bgp], too: apply \
                     that first, without --confirm"
                        .to_owned(),
                ));
            }
            Ok(Step::Make(draft))
        };
        let digest = super::digest(&file.objects);
        let own = self.config.read().ok().filter(|_| !dry_run);
        // Another text may still have the objects of the daemon's file.
        let is_like = |own| config::read(own).is_ok_and(|own| super::digest(&own.objects) == digest);
        let is_own = own.as_ref().is_some_and(|(own, _)| own.are(texts) || is_like(own));
        let taken = is_own.then_some(digest);
        let how = || Switching { durability: Durability::Disk, taken: taken.clone(), ..Switching::by(by) };
        self.change(draft, how, |state, before, _| {
            self.wait(state, confirm, before);
            if let Some((_, stamp)) = own.filter(|(own, _)| is_all_taken.get() && own.are(texts)) {
                self.config.is_in_force(stamp, &host, &state.objects);
            }
        })
    }

    /// Gives a guest the addresses that it leased on another host.
    ///
    /// # Errors
    /// It can't have them here.
    pub(crate) fn bring_lease(&self, by: Author, guest: &str, brought: &Brought) -> Result<(), Error> {
        let key = Key { kind: Kind::Guest, network: None, name: guest.to_owned() };
        let draft = |state: &State| {
            let Some(Object::Guest(guest)) = state.objects.other(&key).map(|owned| &owned.object) else {
                return Err(Error::NotFound(format!("there is no {key}")));
            };
            let objects = leases::brought(&state.objects, guest, brought.clone());
            Draft::of(state, objects.map_err(|e| Error::Conflict(e.to_string()))?).map(Step::Make)
        };
        self.change(draft, || Switching::by(by), |_, _, _| {}).map(drop)
    }

    /// Checks a change and says what it would do.
    pub(super) fn tried(&self, state: &State, draft: &Draft<'_>) -> Result<Done, Error> {
        let changed: Vec<_> = state.objects.changes_to(&draft.objects).collect();
        let next = Next::after(state, draft, &changed)?;
        let (changes, notes) = (
            [describe_host(&state.host, &draft.host), describe(&changed)].concat(),
            self.remade(state, &next),
        );
        Ok(Done { changes, notes, revision: state.revision })
    }

    /// Lists the ports that a change would close and open again.
    fn remade(&self, state: &State, next: &Next) -> Vec<(String, String)> {
        let wanted = ports::wanted(&next.host, &self.run_dir, &next.index);
        let is_open = |spec: &&PortSpec| {
            let slot = state.slots.get(&spec.name).filter(|slot| slot.port().is_some());
            slot.is_some_and(|slot| !slot.spec.is_same_port(spec))
        };
        wanted.values().filter(is_open).map(|spec| note(spec, &next.index)).collect()
    }

    /// Puts in force what `draft` makes of the state in force, and then calls `after` with the revision before. If the
    /// change needs ports, they are opened first, while others may change the state; then the draft is made anew.
    pub(super) fn change<'a>(
        &self,
        draft: impl Fn(&State) -> Result<Step<'a>, Error>,
        how: impl Fn() -> Switching,
        after: impl FnOnce(&mut State, u64, &Done),
    ) -> Result<Done, Error> {
        let mut ahead = Ahead::default();
        loop {
            let mut state = self.lock_to_change()?;
            let draft = match draft(&state)? {
                Step::Answer(done) => return Ok(done),
                Step::Make(draft) => draft,
            };
            let before = self.history().number();
            match self.attempt(&mut state, &draft, how(), Some(&mut ahead))? {
                Attempt::Done(done) => {
                    after(&mut state, before, &done);
                    return Ok(done);
                }
                Attempt::Later(next) => {
                    drop(state);
                    ahead.perform(self, next)?;
                }
            }
        }
    }

    /// Puts objects in force for the daemon itself. A port that can't be opened then has a fault, and stops nothing.
    pub(super) fn change_now(&self, state: &mut State, objects: Objects, by: Author) -> Result<Done, Error> {
        let draft = Draft::of(state, objects)?;
        let how = Switching { on_failure: OnFailure::Retry, ..Switching::by(by) };
        match self.attempt(state, &draft, how, None)? {
            Attempt::Done(done) => Ok(done),
            Attempt::Later(_) => Ok(Done::default()),
        }
    }

    /// Makes a change, unless ports are to be opened ahead of it.
    pub(super) fn attempt<'a>(
        &'a self,
        state: &mut State,
        draft: &Draft<'_>,
        how: Switching,
        ahead: Option<&mut Ahead<'a>>,
    ) -> Result<Attempt<'a>, Error> {
        let before = state.objects.clone();
        let changed: Vec<_> = before.changes_to(&draft.objects).collect();
        // A file that is applied waits for the disk, even if nothing changes.
        if how.durability == Durability::Kernel {
            let mut joined = Joined::on(state);
            if let Some(done) = joined.add(state, &draft.objects, how.by)? {
                return self.make_together(state, joined).map(|()| Attempt::Done(done));
            }
        }
        let next = Next::after(state, draft, &changed)?;
        let wanted = ports::wanted(&next.host, &self.run_dir, &next.index);
        if let Some((old, new)) = unplugged(&state.slots, &wanted) {
            let (new, old, device) = (of_port(new, &next.index), of_port(old, &state.index), &old.device);
            return Err(Error::Conflict(format!(
                "{new} would take {device} out of the container that {old} has it in: keep its name, or remove {old} \
                 first"
            )));
        }
        let Some(ahead) = ahead else { return self.switch(state, next, how).map(Attempt::Done) };
        match ahead.next(self, needed(&state.slots, &wanted)) {
            Some(next) => Ok(Attempt::Later(next)),
            None => self.switch(state, next, Switching { opened: ahead.take(), ..how }).map(Attempt::Done),
        }
    }
}

/// Returns the changed routes and rules, where `before` is what the removed ones refer to.
pub(super) fn compiled_changes<'a>(before: &'a Index, changed: &[Changed<'a>]) -> compile::Changes<'a> {
    compile::Changes {
        before,
        removed: changed.iter().filter_map(|changed| changed.old_route()).collect(),
        added: changed.iter().filter_map(|changed| changed.new_route()).collect(),
        changed_guests: changed.iter().filter_map(|changed| guest(changed.old())).collect(),
        removed_rules: changed.iter().filter_map(|changed| rule(changed.old())).collect(),
        added_rules: changed.iter().filter_map(|changed| rule(changed.now())).collect(),
    }
}

fn guest(object: Option<&Owned>) -> Option<&str> {
    match &object?.object {
        Object::Guest(guest) => Some(&guest.name),
        _ => None,
    }
}

/// Returns whether routes that lead into a network, or by its routers, stay right and the same if it changes.
fn leads_alike(before: &Network, after: &Network) -> bool {
    (before.vrf, &before.wire) == (after.vrf, &after.wire)
        && before.gateways.iter().all(|subnet| after.gateways.contains(subnet))
}

/// Returns a function that tells whether a route is there before and after a change, and the same.
pub(super) fn kept<'a>(before: &'a Objects, after: &'a Objects) -> impl Fn(&str, IpNet) -> bool + 'a {
    move |network, prefix| {
        let of = |objects: &'a Objects| objects.routes().get(network, prefix).map(|route| route.kept);
        of(after).is_some_and(|new| of(before) == Some(new))
    }
}

impl Next {
    /// Checks objects against each other. `places` are the file's objects, with their lines.
    pub(super) fn checked(host: Arc<Host>, mut objects: Objects, places: &[&Item]) -> Result<Self, Error> {
        leases::settle(&mut objects)?;
        let ordered = objects.in_order_of(Kind::ALL);
        let index = Index::new(&host, ordered.iter().map(|owned| &owned.object));
        let is_other = |owner: &Owner| places.is_empty() || *owner != Owner::File;
        let others = ordered.into_iter().filter(|owned| is_other(&owned.owner));
        let items: Vec<Item> = places
            .iter()
            .map(|item| (*item).clone())
            .chain(others.map(|owned| Item::from(owned.object.clone())))
            .collect();
        let has_route = |network: &str, prefix| objects.routes().get(network, prefix).is_some();
        let mut problems = config::check_beside_routes(&index, &items, &has_route);
        let routes = objects.routes().iter().filter(|route| is_other(route.owner()));
        problems.extend(config::check_routes_and_rules(&index, routes.map(Written::object)));
        none_of(problems)?;
        Ok(Self { host, objects, index, scope: Scope::All })
    }

    /// Checks what a change of the state in force can make wrong.
    fn after(state: &State, draft: &Draft<'_>, changed: &[Changed<'_>]) -> Result<Self, Error> {
        let Draft { host, objects, places, has_twins } = draft;
        let (host, objects) = (host.clone(), objects.clone());
        if *has_twins || *host != *state.host || !state.leaves_routes(changed, &objects) {
            return Self::checked(host, objects, places);
        }
        let routes = changed.iter().filter_map(|changed| changed.new_route());
        let routes: HashSet<(&str, IpNet)> = routes.map(|route| (&**route.network, route.prefix)).collect();
        let scope = if state.leaves_rules(changed) { Scope::BesideRules } else { Scope::BesideRoutes };
        let others = objects.in_order_of(scope.kinds());
        let index = Index::new(&host, others.iter().map(|owned| &owned.object));
        let is_checked = |object: &Object| match object {
            Object::Route(route) => routes.contains(&(&*route.network, route.prefix)),
            Object::Rule(_) => scope != Scope::BesideRules,
            _ => true,
        };
        let from_file = places.iter().filter(|item| is_checked(&item.object)).map(|item| (*item).clone());
        let is_other = |owner: &Owner| places.is_empty() || *owner != Owner::File;
        let others = others.into_iter().filter(|owned| is_other(&owned.owner));
        let beside = changed.iter().filter_map(|changed| changed.new_route());
        let beside = beside.filter(|route| is_other(route.owner())).map(Written::object);
        let items: Vec<Item> =
            from_file.chain(others.map(|owned| owned.object.clone()).chain(beside).map(Item::from)).collect();
        let problems = config::check_beside_routes(&index, &items, &kept(&state.objects, &objects));
        #[cfg(test)]
        assert_eq!(
            problems.is_empty(),
            Self::checked(host.clone(), objects.clone(), places).is_ok(),
            "{problems:?}"
        );
        none_of(problems)?;
        Ok(Self { host, objects, index, scope })
    }
}

impl Scope {
    /// Returns the kinds of objects that are checked and compiled as a whole.
    pub(super) fn kinds(self) -> impl Iterator<Item = Kind> {
        let is_left = move |kind: &Kind| match kind {
            Kind::Route => self != Self::All,
            Kind::Rule => self == Self::BesideRules,
            _ => false,
        };
        Kind::ALL.into_iter().filter(move |kind| !is_left(kind))
    }
}

impl State {
    /// Is true if only routes and rules change, and no other object depends on them. A route
    /// to a guest on standby gives way while the guest is here, so it depends on the guest.
    pub(super) fn is_plain(&self, changed: &[Changed<'_>], next: &Objects) -> bool {
        let is_free = |changed: &Changed<'_>| match changed.kind() {
            Kind::Route => {
                !self.standby && !changed.old_route().is_some_and(|gone| self.is_needed(gone, next))
            }
            Kind::Rule => true,
            _ => false,
        };
        changed.iter().all(is_free)
    }

    /// Is true if a floating address needs this route: nothing else of `next` covers the address.
    fn is_needed(&self, gone: Written<'_>, next: &Objects) -> bool {
        let Some(network) = self.index.networks().get(&**gone.network) else { return false };
        let vrf = Vrf(network.vrf);
        let has_route = |net: IpNet| next.routes().get(&network.name, net.trunc()).is_some();
        let is_covered = |addr: IpAddr| {
            let most = IpNet::from(addr).max_prefix_len();
            let mut prefixes = (1..=most).filter_map(|len| IpNet::new(addr, len).ok());
            network.gateways.iter().any(|net| net.contains(&addr)) || prefixes.any(has_route)
        };
        let (first, last) = ((vrf, gone.prefix.network()), (vrf, gone.prefix.broadcast()));
        // The default route covers none.
        let mut needing = self.desired.floating.range(first..=last).filter(|_| gone.prefix.prefix_len() > 0);
        needing.any(|((_, addr), _)| !is_covered(*addr))
    }

    /// Is true if rules do not change, and stay right and the same.
    fn leaves_rules(&self, changed: &[Changed<'_>]) -> bool {
        let leaves = |changed: &Changed<'_>| match changed.kind() {
            Kind::Guest => changed.is_new() || !self.targets.of_rules(&changed.key()),
            Kind::Lease => !self.targets.of_rules(&Key { kind: Kind::Guest, ..changed.key().into_owned() }),
            Kind::Network => changed.is_new(),
            Kind::Wire | Kind::Default | Kind::Rule => false,
            Kind::Nexthop
            | Kind::Route
            | Kind::Mac
            | Kind::Flood
            | Kind::Nat
            | Kind::Forward
            | Kind::Mpls
            | Kind::Vxlan => true,
        };
        changed.iter().all(leaves)
    }

    /// Is true if routes that do not change themselves stay right and the same.
    fn leaves_routes(&self, changed: &[Changed<'_>], next: &Objects) -> bool {
        let leaves = |changed: &Changed<'_>| {
            let is_new = changed.is_new();
            let is_target = || self.targets.of_routes(&changed.key());
            let is_free = |network: &str, addr: IpAddr| next.routes().get(network, addr.into()).is_none();
            match (changed.kind(), changed.now().map(|new| &new.object)) {
                (Kind::Route, _) => !changed.old_route().is_some_and(|gone| self.is_needed(gone, next)),
                (Kind::Wire, _) => false,
                (_, Some(Object::Network(network))) => {
                    let before = self.index.networks().get(&network.name).filter(|_| !is_new);
                    before.is_none_or(|before| leads_alike(before, network))
                        && network.gateways.iter().all(|gateway| is_free(&network.name, gateway.addr()))
                }
                (Kind::Network, _) => {
                    let key = changed.key();
                    let vrf = self.index.networks().get(&key.name).map(|network| Vrf(network.vrf));
                    let is_learned =
                        |vrf| self.desired.learned.has_network(vrf) || self.desired.bridges.has_network(vrf);
                    !is_target()
                        && !vrf.is_some_and(is_learned)
                        && next.routes().of_network(&key.name).next().is_none()
                }
                (_, Some(Object::Guest(guest))) => {
                    let mut own = crate::compile::places_of(guest);
                    !guest.is_standby()
                        && (is_new || !is_target())
                        && own.all(|(network, addr)| is_free(network, addr))
                }
                (Kind::Lease, lease) => {
                    let of =
                        |lease: &Lease| lease.addresses.iter().all(|addr| is_free(&lease.network, *addr));
                    let guest = Key { kind: Kind::Guest, ..changed.key().into_owned() };
                    !self.targets.of_routes(&guest)
                        && lease.is_none_or(|lease| matches!(lease, Object::Lease(lease) if of(lease)))
                }
                (Kind::Guest | Kind::Nexthop, _) => is_new || !is_target(),
                _ => true,
            }
        };
        !self.standby && changed.iter().all(leaves)
    }
}

//! The one place where the host's objects change: checked, compiled, applied and stored as a whole, or not at all.

mod open_ports;
mod seen;
mod view;

pub(crate) use view::View;

use crate::compile::{Desired, Ids, compile, recompile, route_origins};
use crate::object_change::{ObjectChange, describe};
use crate::owner::{Changed, Objects, Owned, Owner};
use crate::ports::{self, Ports};
use crate::store::{Durability, Store, StoreError};
use config::{Host, Index, Item, Key, Kind, Object, Problem, Problems, Route};
use executor::Executor;
use model::{ApplyError, Vrf};
use open_ports::{Open, Switch};
use packet::Mac;
use seen::News;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Why a change was refused. Nothing of it was done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for is wrong.
    #[error(transparent)]
    Invalid(#[from] Problems),
    /// It does not go with what is there.
    #[error("{0}")]
    Conflict(String),
    /// It is not there.
    #[error("{0}")]
    NotFound(String),
    /// A port can't be opened.
    #[error("interface \"{name}\" can't be opened: {reason}")]
    Port {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// The executor can't.
    #[error("the executor refuses it: {0}")]
    Executor(#[from] ApplyError),
    /// It can't be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The control plane of a running host.
pub struct Core {
    executor: Arc<dyn Executor>,
    ports: Box<dyn Ports>,
    store: Store,
    run_dir: PathBuf,
    started: Instant,
    /// Locked for as long as a change takes.
    state: Mutex<State>,
    /// What was in force after the last change. Readers never wait for one in progress.
    view: Mutex<Arc<View>>,
}

/// What is to be in force: the objects fit together.
struct Next {
    host: Arc<Host>,
    objects: Objects,
    index: Index,
}

/// What is in force.
struct State {
    host: Arc<Host>,
    objects: Objects,
    index: Index,
    ids: Ids,
    desired: Desired,
    open: BTreeMap<String, Open>,
}

impl Core {
    /// Brings up the host: with what is stored, or else with what `file` says. `[host]` is always the file's.
    ///
    /// # Errors
    /// As for any change.
    pub fn start(
        file: config::Document,
        run_dir: PathBuf,
        store: Store,
        executor: Arc<dyn Executor>,
        ports: Box<dyn Ports>,
    ) -> Result<Self, Error> {
        let stored = store.load()?;
        let objects = stored.clone().unwrap_or_else(|| {
            let mut objects = Objects::default();
            file.objects.iter().for_each(|item| objects.put(Owner::File, item.object.clone()));
            objects
        });
        let empty = State {
            host: Arc::default(),
            objects: stored.unwrap_or_default(),
            index: Index::default(),
            ids: Ids::default(),
            desired: Desired::default(),
            open: BTreeMap::new(),
        };
        let started = Instant::now();
        let view = Mutex::new(Arc::new(View::new(&empty, executor.clone(), started)));
        let core = Self { executor, ports, store, run_dir, started, state: Mutex::new(empty), view };
        let next = Next::checked(file.host.into(), objects, &[])?;
        core.switch(&mut core.lock(), next, Durability::Disk)?;
        Ok(core)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in force, for reading.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Who opened the ports.
    pub(crate) fn ports(&self) -> &dyn Ports {
        &*self.ports
    }

    /// Directory of sockets.
    pub(crate) fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Replaces the file's objects by those of another file; with `dry_run` only says what would change.
    pub(crate) fn apply(&self, toml: &str, dry_run: bool) -> Result<Vec<ObjectChange>, Error> {
        // Where reading fails, all that is wrong is told, with what does not fit together.
        let file = config::read(toml).map_err(|e| config::parse(toml).err().unwrap_or(e))?;
        let mut state = self.lock();
        check_host(&state.host, &file.host)?;
        let mut next = Objects::default();
        for owned in state.objects.in_order().into_iter().filter(|owned| owned.owner != Owner::File) {
            next.restore(owned.seq, owned.owner, owned.object.clone());
        }
        let mut places: Vec<&Item> = Vec::new();
        for item in &file.objects {
            let key = item.object.key();
            if let Some(other) = next.get(&key).filter(|other| other.owner != Owner::File) {
                // What is there already, and the same, stays as it is: an exported file has what others brought.
                if other.object == item.object {
                    continue;
                }
                return Err(Error::Conflict(format!(
                    "{key} belongs to {} and differs; leave it out of the file, or remove it there first",
                    other.owner.name()
                )));
            }
            match state.objects.get(&key) {
                Some(old) if old.object == item.object => {
                    next.restore(old.seq, Owner::File, item.object.clone())
                }
                _ => next.put(Owner::File, item.object.clone()),
            }
            places.push(item);
        }
        let next = Next::checked(file.host.into(), next, &places)?;
        if dry_run {
            return Ok(describe(&state.objects.changes_to(&next.objects)));
        }
        self.switch(&mut state, next, Durability::Disk)
    }

    /// Adds objects for an owner. What is there already, and the same, is no change.
    pub(crate) fn add(&self, owner: Owner, objects: Vec<Object>) -> Result<Vec<ObjectChange>, Error> {
        let mut state = self.lock();
        let mut next = state.objects.clone();
        for object in objects {
            let key = object.key();
            match next.get(&key) {
                Some(old) if old.object == object => continue,
                Some(old) => {
                    return Err(Error::Conflict(format!(
                        "{key} is there already (owner {}) and differs; remove it first",
                        old.owner.name()
                    )));
                }
                None => next.put(owner, object),
            }
        }
        self.change(&mut state, next)
    }

    /// Removes an owner's objects.
    pub(crate) fn remove(&self, owner: Owner, keys: &[Key]) -> Result<Vec<ObjectChange>, Error> {
        let mut state = self.lock();
        let mut next = state.objects.clone();
        for key in keys {
            match next.remove(key) {
                None => return Err(missing(key, &state.objects)),
                Some(old) if old.owner != owner && old.owner == Owner::File => {
                    return Err(Error::Conflict(format!(
                        "{key} comes from the host's file; take it out there and run `viaduct apply FILE`"
                    )));
                }
                Some(old) if old.owner != owner => {
                    return Err(Error::Conflict(format!(
                        "{key} belongs to {}; remove it there",
                        old.owner.name()
                    )));
                }
                Some(_) => {}
            }
        }
        self.change(&mut state, next)
    }

    /// Takes up what changed by itself: the link-layer address of a wire's device that went and came back.
    ///
    /// # Errors
    /// The executor's.
    pub fn refresh(&self) -> Result<(), Error> {
        let mut state = self.lock();
        state.log_devices();
        if !state.a_wire_moved() {
            return Ok(());
        }
        let next =
            Next { host: state.host.clone(), objects: state.objects.clone(), index: state.index.clone() };
        self.switch(&mut state, next, Durability::Kernel).map(drop)
    }

    /// Makes `next` be in force, for a client of the API. Where only routes come and go, it costs what these cost.
    fn change(&self, state: &mut State, next: Objects) -> Result<Vec<ObjectChange>, Error> {
        let changed = state.objects.changes_to(&next);
        if changed.is_empty() {
            return Ok(Vec::new());
        }
        if !state.only_routes_matter(&changed) {
            let next = Next::checked(state.host.clone(), next, &[])?;
            return self.switch(state, next, Durability::Kernel);
        }
        none_of(config::check_routes(&state.index, changed.iter().filter_map(|c| Some(&c.new?.object))))?;
        let mut ids = state.ids.clone();
        let removed = changed.iter().filter_map(|changed| route(changed.old));
        let added = changed.iter().filter_map(|changed| route(changed.new));
        let desired = recompile(&state.desired, &state.index, removed, added, &mut ids);
        self.commit((&state.desired, &desired), &changed, &next, Durability::Kernel)?;
        let described = describe(&changed);
        (state.objects, state.ids, state.desired) = (next, ids, desired);
        self.publish(self.view().after(state));
        Ok(described)
    }

    /// Makes `next` be in force, whatever changes.
    fn switch(
        &self,
        state: &mut State,
        Next { host, objects: next, index }: Next,
        durability: Durability,
    ) -> Result<Vec<ObjectChange>, Error> {
        let wanted = ports::wanted(&host, &self.run_dir, &index);

        let old_ids = state.ids.clone();
        let switch = Switch::open(&*self.ports, &mut state.open, wanted, &|name| old_ids.vif(name))?;
        let macs = macs(switch.ports());
        let mut ids = old_ids.clone();
        let desired = compile(&host, &index, &next.in_order(), &macs, &mut ids);
        let changed = state.objects.changes_to(&next);
        if let Err(e) = self.commit((&state.desired, &desired), &changed, &next, durability) {
            switch.undo();
            return Err(e);
        }
        switch.finish(&|name| ids.vif(name));
        let described = describe(&changed);
        (state.host, state.index) = (host, index);
        (state.objects, state.ids, state.desired) = (next, ids, desired);
        self.publish(View::new(state, self.executor.clone(), self.started));
        Ok(described)
    }

    /// Applies and stores a change, or does neither.
    fn commit(
        &self,
        (from, to): (&Desired, &Desired),
        changed: &[Changed<'_>],
        next: &Objects,
        durability: Durability,
    ) -> Result<(), Error> {
        let changes = from.changes_to(to);
        let pending = self.store.prepare(changed, next, durability)?;
        if !changes.is_empty() {
            self.executor.apply(&changes)?;
            self.ports.tables_changed();
        }
        pending.commit().map_err(|e| {
            // Back to what is stored. It was in force a moment ago, so that the executor takes it again.
            let _ = self.executor.apply(&to.changes_to(from));
            e.into()
        })
    }

    fn publish(&self, view: View) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }
}

impl State {
    /// Whether routes alone change, and nothing else stands or falls with them: a floating address may need one that
    /// goes.
    fn only_routes_matter(&self, changed: &[Changed<'_>]) -> bool {
        let needed = |gone: &Route| {
            let network = self.index.networks().get(&gone.network);
            let vrf = Vrf(network.map_or(0, |network| network.vrf));
            let (first, last) = ((vrf, gone.prefix.network()), (vrf, gone.prefix.broadcast()));
            self.desired.floating.range(first..=last).next().is_some()
        };
        changed
            .iter()
            .all(|changed| changed.key.kind == Kind::Route && !route(changed.old).is_some_and(needed))
    }

    /// Logs what happens to the host's network devices: their link, and frames that the kernel lost.
    fn log_devices(&mut self) {
        let now = Instant::now();
        for (interface, open) in self.open.iter_mut().filter(|(_, open)| open.is_device()) {
            let device = &open.spec.device;
            for news in open.seen.notice(&open.port.status(), now) {
                match news {
                    News::Down => tracing::warn!(interface, %device, "the wire is down"),
                    News::Up => tracing::info!(interface, %device, "the wire is up again"),
                    News::Lost(frames) => tracing::warn!(
                        interface, %device, frames,
                        "the kernel lost frames of the wire: its buffers were full"
                    ),
                }
            }
        }
    }

    /// Whether a wire's device has another link-layer address than the tables.
    fn a_wire_moved(&self) -> bool {
        self.open.iter().any(|(name, open)| {
            let vif = self.ids.vif(name).and_then(|id| self.desired.vifs.get(&id));
            let wire = vif.filter(|vif| vif.wire.is_some());
            wire.is_some_and(|wire| open.mac().is_some_and(|mac| wire.mac != Some(mac)))
        })
    }
}

/// The route that an object is, if it is one.
fn route(object: Option<&Owned>) -> Option<&Route> {
    match &object?.object {
        Object::Route(route) => Some(route),
        _ => None,
    }
}

/// The link-layer addresses of devices, where they have one.
fn macs(open: &BTreeMap<String, Open>) -> HashMap<String, Mac> {
    open.iter().filter_map(|(name, open)| Some((name.clone(), open.mac()?))).collect()
}

impl Next {
    /// Checks objects against each other; `places` are the file's, with their lines.
    fn checked(host: Arc<Host>, objects: Objects, places: &[&Item]) -> Result<Self, Error> {
        let ordered = objects.in_order();
        let index = Index::new(&host, ordered.iter().map(|owned| &owned.object));
        let others = ordered.into_iter().filter(|owned| places.is_empty() || owned.owner != Owner::File);
        let items: Vec<Item> = places
            .iter()
            .map(|item| (*item).clone())
            .chain(others.map(|owned| Item::from(owned.object.clone())))
            .collect();
        none_of(config::check(&index, &items))?;
        Ok(Self { host, objects, index })
    }
}

/// That an object is not there; or of a route, whose it is.
fn missing(key: &Key, objects: &Objects) -> Error {
    let route = Some(key).filter(|key| key.kind == Kind::Route);
    let place = route.and_then(|key| Some((key.network.as_deref()?, key.name.parse().ok()?)));
    let objects = objects.in_order();
    match place.and_then(|place| route_origins(&objects).get(&place).copied()) {
        Some(origin) => Error::Conflict(format!(
            "{key} is that of {}, and goes with it: change that, or remove it",
            origin.object.key()
        )),
        None => Error::NotFound(format!("there is no {key}")),
    }
}

/// That there are no problems, or which.
fn none_of(problems: Vec<Problem>) -> Result<(), Error> {
    if problems.is_empty() { Ok(()) } else { Err(Problems::from(problems).into()) }
}

/// What of `[host]` may change while the daemon runs: where tunnels start, and whom
/// their packets are taken from.
fn check_host(running: &Host, wanted: &Host) -> Result<(), Error> {
    if running.name != wanted.name {
        return Err(Error::Conflict(format!(
            "the file is of host \"{}\", this is \"{}\"",
            wanted.name, running.name
        )));
    }
    let fixed = [
        ("workers", running.workers != wanted.workers),
        ("executor", running.executor != wanted.executor),
        ("metrics", running.metrics != wanted.metrics),
        ("readers", running.readers != wanted.readers),
        ("socket_dirs", running.socket_dirs != wanted.socket_dirs),
    ];
    match fixed.iter().find(|(_, changed)| *changed) {
        Some((key, _)) => Err(Error::Conflict(format!(
            "[host] {key} changes only with a restart: put it in the file the daemon is started with and restart it"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests;

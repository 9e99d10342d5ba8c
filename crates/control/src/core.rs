//! The one place where the host's objects change: checked, compiled, applied and stored as a whole, or not at all.

mod switch;
mod view;

pub(crate) use view::View;

use crate::compile::{self, Desired, Ids, compile};
use crate::owner::{Objects, Owned, Owner};
use crate::plan::{self, ObjectChange};
use crate::ports::{self, Ports};
use crate::store::{Store, StoreError};
use config::{Host, Item, Key, Object, Problems};
use model::{ApplyError, Executor};
use packet::Mac;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use switch::{Open, Switch};

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

/// What is in force.
struct State {
    host: Host,
    objects: Arc<Objects>,
    ids: Arc<Ids>,
    desired: Arc<Desired>,
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
            host: Host::default(),
            objects: Arc::new(stored.unwrap_or_default()),
            ids: Arc::default(),
            desired: Arc::default(),
            open: BTreeMap::new(),
        };
        let started = Instant::now();
        let view = Mutex::new(Arc::new(View::new(&empty, executor.clone(), started)));
        let core = Self { executor, ports, store, run_dir, started, state: Mutex::new(empty), view };
        check(&file.host, &objects, &[])?;
        core.switch(&mut core.lock(), file.host, objects)?;
        Ok(core)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in force, for reading.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
                return Err(Error::Conflict(format!(
                    "{key} belongs to {}; leave it out of the file, or remove it there first",
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
        check(&file.host, &next, &places)?;
        if dry_run {
            return Ok(plan::describe(&state.objects, &next));
        }
        self.switch(&mut state, file.host, next)
    }

    /// Adds objects for an owner. What is there already, and the same, is no change.
    pub(crate) fn add(&self, owner: Owner, objects: Vec<Object>) -> Result<Vec<ObjectChange>, Error> {
        let mut state = self.lock();
        let mut next = Objects::clone(&state.objects);
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
        check(&state.host, &next, &[])?;
        let host = state.host.clone();
        self.switch(&mut state, host, next)
    }

    /// Removes an owner's objects.
    pub(crate) fn remove(&self, owner: Owner, keys: &[Key]) -> Result<Vec<ObjectChange>, Error> {
        let mut state = self.lock();
        let mut next = Objects::clone(&state.objects);
        for key in keys {
            match next.remove(key) {
                None => return Err(Error::NotFound(format!("there is no {key}"))),
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
        check(&state.host, &next, &[])?;
        let host = state.host.clone();
        self.switch(&mut state, host, next)
    }

    /// Takes up what changed by itself: the link-layer address of a wire's device that went and came back.
    ///
    /// # Errors
    /// The executor's.
    pub fn refresh(&self) -> Result<(), Error> {
        let mut state = self.lock();
        if !state.a_wire_moved() {
            return Ok(());
        }
        let (host, next) = (state.host.clone(), Objects::clone(&state.objects));
        self.switch(&mut state, host, next).map(drop)
    }

    /// Makes `next` be in force.
    fn switch(&self, state: &mut State, host: Host, next: Objects) -> Result<Vec<ObjectChange>, Error> {
        let described = plan::describe(&state.objects, &next);
        let ordered = next.in_order();
        let plain: Vec<&Object> = ordered.iter().map(|owned| &owned.object).collect();
        let mtus = compile::guest_mtus(&host, &plain);
        let mtu_of = |guest: &config::Guest| mtus.get(&guest.name).copied().unwrap_or(1500);
        let wanted = ports::wanted(&host, &self.run_dir, &plain, &mtu_of);

        let old_ids = state.ids.clone();
        let switch = Switch::open(&*self.ports, &mut state.open, wanted, &|name| old_ids.vif(name))?;
        let macs = macs(switch.ports());
        let mut ids = Ids::clone(&old_ids);
        let desired = compile(&host, &ordered, &macs, &mut ids);
        let changes = state.desired.changes_to(&desired);
        let result = self.store.prepare(&state.objects, &next).map_err(Error::from).and_then(|pending| {
            if !changes.is_empty() {
                self.executor.apply(&changes)?;
            }
            pending.commit().map_err(|e| {
                // Back to what is on disk. It was in force a moment ago, so that the executor takes it again.
                let _ = self.executor.apply(&desired.changes_to(&state.desired));
                e.into()
            })
        });
        if let Err(e) = result {
            switch.undo();
            return Err(e);
        }
        switch.finish(&|name| ids.vif(name));
        state.host = host;
        (state.objects, state.ids, state.desired) = (Arc::new(next), Arc::new(ids), Arc::new(desired));
        let view = Arc::new(View::new(state, self.executor.clone(), self.started));
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = view;
        Ok(described)
    }
}

impl State {
    /// Whether a wire's device has another link-layer address than the tables.
    fn a_wire_moved(&self) -> bool {
        self.open.iter().any(|(name, open)| {
            let vif = self.ids.vif(name).and_then(|id| self.desired.vifs.get(&id));
            let wire = vif.filter(|vif| vif.wire.is_some());
            wire.is_some_and(|wire| open.mac().is_some_and(|mac| wire.mac != Some(mac)))
        })
    }
}

/// The link-layer addresses of devices, where they have one.
fn macs(open: &BTreeMap<String, Open>) -> HashMap<String, Mac> {
    open.iter().filter_map(|(name, open)| Some((name.clone(), open.mac()?))).collect()
}

/// Checks objects against each other; `places` are the file's, with their lines.
fn check(host: &Host, objects: &Objects, places: &[&Item]) -> Result<(), Error> {
    let others = objects.in_order();
    let others = others.into_iter().filter(|owned| places.is_empty() || owned.owner != Owner::File);
    let items: Vec<Item> = places
        .iter()
        .map(|item| (*item).clone())
        .chain(others.map(|owned: &Owned| Item::from(owned.object.clone())))
        .collect();
    let problems = config::check(host, &items);
    if problems.is_empty() { Ok(()) } else { Err(Problems::from(problems).into()) }
}

/// What of `[host]` may change while the daemon runs: where tunnels start.
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

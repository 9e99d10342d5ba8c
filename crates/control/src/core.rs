//! The one place where the host's objects change. A change is checked, compiled, applied and stored as a
//! whole, or not at all.

mod ahead;
mod carry;
mod changes;
mod config_file;
mod counts;
mod directory;
mod hand_over;
mod host;
mod inherited;
mod joined;
mod learned;
mod links;
mod open_ports;
mod opening;
mod plugged;
mod queue;
mod resync;
mod retry;
mod routes;
mod seen;
mod start;
mod targets;
mod transact;
mod view;
mod with_file;

pub use carry::FORMAT;
pub use config_file::ConfigFile;
pub use hand_over::{Foreseen, SharedPort};
pub use learned::Learned;

pub(crate) use resync::Part;
pub(crate) use transact::{Operation, Transaction};
pub(crate) use view::View;

use crate::compile::{Desired, Ids, Links, Origins, WAY_OUT, compile, compile_beside_routes, kept_learned};
use crate::error::Error;
use crate::history::{Author, History};
use crate::leases;
use crate::object_change::{ObjectChange, describe, describe_host};
use crate::owner::{Objects, Owned};
use crate::ports::{self, Device, PortSpec, Ports};
use crate::speaking::speech;
use crate::store::{Durability, Store, Update};
use crate::underlay::Underlay;
use ahead::Claims;
use carry::{Carry, Early};
use carryover::Opened;
use changes::{Next, Scope, compiled_changes, kept};
use config::{HasRoute, Host, Index, Key, Kind, Object, Problem, Problems, Rule};
use config_file::digest;
use counts::Departed;
use directory::Directory;
use executor::Executor;
use host::{begin_anew, check_host};
use inherited::Inherited;
use model::Change;
use open_ports::{Fresh, OnFailure, Slots, Switch};
use plugged::Plugged;
use queue::Queue;
use resync::Resyncs;
use rib::SourceId;
use start::{Beginning, choose};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;
use targets::Targets;
use tokio::sync::watch;
use transact::{Answers, Unconfirmed};

pub struct Core {
    executor: Arc<dyn Executor>,
    ports: Arc<dyn Ports>,
    config: ConfigFile,
    store: Store,
    departed: Departed,
    run_dir: PathBuf,
    started: Instant,
    carry: OnceLock<Carry>,
    /// Whether a new daemon is taking over from this one.
    is_leaving: AtomicBool,
    /// Locked while ports are tried again.
    retrying: Mutex<()>,
    claims: Claims,
    /// Locked while a change is made, not while its ports are opened.
    state: Mutex<State>,
    /// Objects that changed since freed memory was given back, in this second and before.
    changed: [AtomicUsize; 2],
    /// Has those who change the state lock it in the order in which they come.
    turn: tokio::sync::Mutex<()>,
    queue: Queue,
    /// The last changes. Locked for moments only.
    history: Arc<Mutex<History>>,
    /// The present revision, for those who watch.
    revision: watch::Sender<u64>,
    /// The state after the last change. Readers never wait for a change in progress.
    view: Mutex<Arc<View>>,
}

/// The state in force.
struct State {
    host: Arc<Host>,
    objects: Objects,
    index: Index,
    ids: Ids,
    desired: Desired,
    slots: Slots,
    inherited: Inherited,
    plugged: Plugged,
    /// Whether there are guests on standby, and those of them that are away.
    standby: bool,
    away: BTreeSet<String>,
    /// The number of the last change.
    revision: u64,
    unconfirmed: Option<Unconfirmed>,
    answers: Answers,
    resyncs: Resyncs,
    targets: Targets,
    /// Sources whose stale routes go, and when.
    stale_routes: Vec<(SourceId, Instant)>,
}

struct Switching {
    by: Author,
    durability: Durability,
    on_failure: OnFailure,
    /// The digest of the daemon's file, if the change takes its objects.
    taken: Option<String>,
    /// At the start, the data that the previous daemon left.
    carryover: Option<Opened>,
    /// The ports that were opened for the change.
    opened: Fresh,
}

impl Switching {
    /// Describes a change by a client of the API.
    const fn by(by: Author) -> Self {
        let (durability, on_failure) = (Durability::Kernel, OnFailure::Refuse);
        Self { by, durability, on_failure, taken: None, carryover: None, opened: Fresh::new() }
    }
}

/// Changed objects after which memory that was freed is given back: they took ten megabytes on their way, about.
const MANY: usize = 10_000;

/// The effects of a change, done or only tried.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) changes: Vec<ObjectChange>,
    /// Further notes, as pairs of an object and what happens to it.
    pub(crate) notes: Vec<(String, String)>,
    /// The host's revision after it.
    pub(crate) revision: u64,
}

impl Core {
    /// Starts the host from the stored objects and `file`; `config` can read the file again later. `[host]`
    /// always comes from the file. A port that can't be opened has a fault and is tried again. Before packets
    /// flow, this daemon takes over the data in `carryover` that the previous one left, and from then on
    /// leaves its own there.
    ///
    /// # Errors
    /// As for any change.
    pub fn start(
        file: &config::Document,
        config: ConfigFile,
        run_dir: PathBuf,
        store: Store,
        executor: Arc<dyn Executor>,
        ports: Arc<dyn Ports>,
        carryover: Option<Opened>,
    ) -> Result<Self, Error> {
        let Beginning { next, taken } = choose(file, &store)?;
        let objects = store.load().map(|stored| stored.objects).unwrap_or_default();
        let targets = Targets::of(&objects);
        let empty = State {
            host: Arc::default(),
            objects,
            index: Index::default(),
            ids: Ids::numbered(store.numbers()),
            desired: Desired::default(),
            slots: Slots::new(),
            inherited: Inherited::default(),
            plugged: Plugged::default(),
            standby: false,
            away: BTreeSet::new(),
            revision: store.revision(),
            unconfirmed: None,
            answers: Answers::default(),
            resyncs: Resyncs::default(),
            targets,
            stale_routes: Vec::new(),
        };
        let (number, history) = (empty.revision, store.history());
        let before = ports_of(&file.host, &run_dir, &empty.objects);
        let started = Instant::now();
        let view = Mutex::new(Arc::new(View::new(&empty, executor.clone(), started)));
        let (carry, is_leaving, state) = (OnceLock::new(), AtomicBool::new(false), Mutex::new(empty));
        let retrying = Mutex::default();
        let core = Self {
            executor,
            ports,
            config,
            store,
            departed: Departed::default(),
            run_dir,
            started,
            carry,
            is_leaving,
            retrying,
            claims: Claims::default(),
            state,
            changed: [AtomicUsize::new(MANY), AtomicUsize::new(0)],
            turn: tokio::sync::Mutex::default(),
            queue: Queue::default(),
            history,
            revision: watch::Sender::new(number),
            view,
        };
        let (durability, on_failure) = (Durability::DiskOrLater, OnFailure::Retry);
        let by = Switching::by(Author::daemon("start"));
        let start = Switching { durability, on_failure, taken, carryover, ..by };
        let mut state = core.lock();
        core.switch(&mut state, next, start)?;
        core.ports.remove_sockets(&ports::left_sockets(&before, state.slots.values().map(|slot| &slot.spec)));
        drop(state);
        core.carry.get().into_iter().for_each(|carry| core.departed.add(carry.resume(&core.view())));
        Ok(core)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state in force, for reading.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn store_problems(&self) -> Vec<String> {
        self.store.problems()
    }

    pub(crate) fn ports(&self) -> &dyn Ports {
        &*self.ports
    }

    /// Returns the guests whose programs may move connections to memory in common.
    pub(crate) fn sockets(&self) -> Vec<crate::SocketsSpec> {
        let state = self.lock();
        crate::sockets::wanted(&state.index, &self.run_dir, |name| state.ids.vif(name))
    }

    /// Returns the directory of sockets.
    pub(crate) fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    pub(crate) const fn config(&self) -> &ConfigFile {
        &self.config
    }

    /// Puts in force the file with which the daemon was started. Logs what changed, or why nothing did.
    pub fn reload(&self) {
        let file = self.config.path().display();
        let read = self.config.read().map_err(|e| e.to_string());
        let by = Author::daemon("reload");
        match read.and_then(|(texts, _)| self.apply(by, &texts, false, None).map_err(|e| e.to_string())) {
            Ok(Done { changes, notes, .. }) => {
                changes.iter().for_each(|change| tracing::info!("reload: {} {}", change.what, change.object));
                notes.iter().for_each(|(object, note)| tracing::warn!("reload: {object}: {note}"));
                tracing::info!(changes = changes.len(), "{file} is in force");
            }
            Err(e) => tracing::error!("{file} is not taken, and the configuration is as before: {e}"),
        }
    }

    /// Follows changes that nobody requested: links of wires, link-layer addresses of their devices, guests
    /// on standby that came or went, and a disk that works again.
    ///
    /// # Errors
    /// The executor refuses the change.
    pub fn refresh(&self) -> Result<(), Error> {
        let Ok(mut state) = self.lock_to_change() else { return Ok(()) };
        self.undo_unconfirmed(&mut state, false);
        self.end_late_resyncs(&mut state);
        self.follow_links(&mut state)?;
        self.expire_routes(&mut state)?;
        self.learn_macs(&mut state);
        if away(&state.index, |name| state.is_up(name)) != state.away {
            let (host, objects, index) = (state.host.clone(), state.objects.clone(), state.index.clone());
            let next = Next { host, objects, index, scope: Scope::All };
            let by = Switching::by(Author::daemon("refresh"));
            self.switch(&mut state, next, Switching { on_failure: OnFailure::Leave, ..by })?;
        }
        self.tell_speaker(&state);
        drop(state);
        self.store.heal();
        Ok(())
    }

    /// Returns a number that changes when an interface's other end comes or goes.
    pub(crate) fn present(&self) -> u64 {
        let state = self.lock();
        let mut hasher = DefaultHasher::new();
        state.slots.keys().for_each(|name| (name, state.is_up(name)).hash(&mut hasher));
        hasher.finish()
    }

    /// Tells the BGP speaker what the host has to say.
    fn tell_speaker(&self, state: &State) {
        self.ports.keep_speech(speech(&state.host, &state.index, |name| state.is_up(name)));
    }

    /// Writes the MACs into leases by which guests first asked for their addresses.
    fn learn_macs(&self, state: &mut State) {
        for (guest, mac) in self.ports.learnt_macs() {
            let Some(next) = leases::with_mac(&state.objects, &guest, mac) else { continue };
            if let Err(e) = self.change_now(state, next, Author::daemon("dhcp")) {
                tracing::warn!(
                    "guest \"{guest}\" asks for its addresses from {mac}, which it may not have: {e}"
                );
                self.ports.forget_mac(&guest);
            }
        }
    }

    /// Updates the tables, and the guests that follow a wire, to the links of wires.
    fn follow_links(&self, state: &mut State) -> Result<(), Error> {
        let changed = state.changed_links();
        if !changed.is_empty() {
            let mut desired = state.desired.clone();
            desired.vifs.extend(changed);
            self.executor.apply(&state.desired.changes_to(&desired))?;
            self.ports.tables_changed();
            state.desired = desired;
            self.publish(self.view().after(state));
        }
        state.tell_guests();
        state.log_devices();
        Ok(())
    }

    /// Writes for the next daemon everything but connections, and gives back memory that large changes took. The server
    /// calls it about once a second.
    pub(crate) fn keep(&self) {
        self.give_back_memory();
        self.carry.get().into_iter().for_each(|carry| carry.keep(&self.view(), &self.departed, false));
    }

    /// Gives back memory in the first second without changes after many: others may wait for the allocator meanwhile.
    fn give_back_memory(&self) {
        let [now, before] = &self.changed;
        match now.swap(0, Ordering::Relaxed) {
            0 if before.load(Ordering::Relaxed) >= MANY => {
                before.store(0, Ordering::Relaxed);
                mem::give_back();
            }
            changed => drop(before.fetch_add(changed, Ordering::Relaxed)),
        }
    }

    /// Does the same as `keep` at the daemon's end, after the workers have flushed their counts.
    pub fn leave(&self) {
        self.undo_unconfirmed(&mut self.lock(), true);
        self.executor.settle();
        self.carry.get().into_iter().for_each(|carry| carry.keep(&self.view(), &self.departed, true));
    }

    /// Puts `next` in force, no matter which objects change.
    fn switch(
        &self,
        state: &mut State,
        Next { host, objects: next, index, scope }: Next,
        how: Switching,
    ) -> Result<Done, Error> {
        let wanted = ports::wanted(&host, &self.run_dir, &index);
        let State { slots, objects, .. } = state;
        let switch = Switch::open(&self.ports, slots, wanted, (how.on_failure, how.opened))?;
        let links = Links { wires: switch.links(), away: away(&index, |name| switch.is_up(name)) };
        let mut ids = state.ids.clone();
        let revision = self.history().next(how.by, objects.differences_to(&next));
        let changed: Vec<_> = revision.iter().flat_map(|revision| revision.changed()).collect();
        let desired = match scope {
            Scope::All => {
                let learned = kept_learned(&state.desired, &index);
                compile((&host, &index), &next, &learned, &links, &mut ids)
            }
            Scope::BesideRoutes | Scope::BesideRules => {
                let others = next.in_order_of(scope.kinds());
                let changes = &compiled_changes(&state.index, &changed);
                let beside = (changes, &kept(objects, &next) as HasRoute<'_>, scope == Scope::BesideRules);
                compile_beside_routes(&state.desired, (&host, &index), &others, &links, beside, &mut ids)
            }
        };
        #[cfg(test)]
        tests::is_as_compiled_whole(&desired, (&host, &index), &next, &links, &ids);
        let update = Update {
            revisions: revision.as_slice(),
            objects: &next,
            taken: how.taken.as_deref(),
            number: &|key| ids.number(key),
            durability: how.durability,
        };
        self.commit((&state.desired, &desired), &update)?;
        state.targets.follow(&changed);
        let remade: Vec<_> = switch.remade().cloned().collect();
        state.inherited.follow(&state.desired, &desired, &*self.executor);
        if let Some(opened) = how.carryover {
            let to = (&mut state.inherited, &state.plugged);
            let carry = Carry::begin((opened, Early::default()), &desired, &*self.executor, to);
            carry.succeed();
            let _ = self.carry.set(carry);
        }
        switch.finish(&|name| state.ids.vif(name), &|name| ids.vif(name));
        self.ports.keep_windows(&ports::windows(state.slots.values().map(|slot| &slot.spec)));
        let faults = state.slots.values().filter_map(|slot| slot.fault_of_port(&index));
        self.ports.keep_sockets(&crate::sockets::wanted(&index, &self.run_dir, |name| ids.vif(name)));
        self.ports.keep_services(crate::bindings::plan(&index, |name| ids.vif(name)));
        let notes = remade.iter().map(|spec| note(spec, &index)).chain(faults).collect();
        let changes = [describe_host(&state.host, &host), describe(&changed)].concat();
        state.revision = self.announce();
        (state.host, state.index) = (host, index);
        (state.objects, state.ids, state.desired) = (next, ids, desired);
        state.standby = state.index.guests().values().any(config::Guest::is_standby);
        state.away = links.away;
        state.tell_guests();
        self.tell_speaker(state);
        self.publish(View::new(state, self.executor.clone(), self.started));
        Ok(Done { changes, notes, revision: state.revision })
    }

    /// Applies and stores a change, or does neither.
    fn commit(&self, (from, to): (&Desired, &Desired), update: &Update<'_>) -> Result<(), Error> {
        let changes = from.changes_to(to);
        // Whenever the daemon ends, the snapshot must have the names of everything in the tables.
        let is_named = from.vifs.ptr_eq(&to.vifs) && from.networks.ptr_eq(&to.networks);
        let carry = self.carry.get().filter(|_| !is_named);
        let name = |names: &dyn Fn() -> Directory| carry.into_iter().for_each(|carry| carry.name(names()));
        name(&|| Directory::of(from).and(Directory::of(to)));
        let committed = self.apply_and_store(from, &changes, update).inspect_err(|e| {
            if matches!(e, Error::Store(_)) {
                // Back to the stored state. The executor accepts it, because it was in force a moment ago.
                let _ = self.executor.apply(&to.changes_to(from));
                self.ports.tables_changed();
            }
        });
        name(&|| Directory::of(if committed.is_ok() { to } else { from }));
        committed
    }

    fn apply_and_store(&self, from: &Desired, changes: &[Change], update: &Update<'_>) -> Result<(), Error> {
        self.put(from, changes)?;
        let changed: usize = update.revisions.iter().map(|revision| revision.differences.len()).sum();
        self.changed[0].fetch_add(changed, Ordering::Relaxed);
        Ok(self.store.write(update)?)
    }

    /// Tells those who watch of a change that is in force, and returns the present revision.
    fn announce(&self) -> u64 {
        let number = self.history().number();
        self.revision.send_if_modified(|known| std::mem::replace(known, number) != number);
        number
    }

    /// Returns the number of the last change, and that of later ones.
    pub(crate) fn revisions(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    fn publish(&self, view: View) {
        let before = {
            let mut shown = self.view.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *shown, Arc::new(view))
        };
        let now = self.view();
        let same =
            |a: &Desired, b: &Desired| a.nexthops.has_tunnels_of(&b.nexthops) && a.vifs.ptr_eq(&b.vifs);
        if !same(&before.tables, &now.tables) || before.host != now.host {
            self.ports.keep_underlay(Underlay::of(&now));
        }
    }
}

fn ports_of(host: &Host, run_dir: &Path, objects: &Objects) -> BTreeMap<String, PortSpec> {
    let of_kind = |kind| objects.of_kind(kind).map(|owned| &owned.object);
    let index = Index::new(
        host,
        [Kind::Network, Kind::Guest, Kind::Wire, Kind::Forward].into_iter().flat_map(of_kind),
    );
    ports::wanted(host, run_dir, &index)
}

fn rule(object: Option<&Owned>) -> Option<&Rule> {
    match &object?.object {
        Object::Rule(rule) => Some(rule),
        _ => None,
    }
}

/// Notes for people that a port is closed and opened again.
fn note(spec: &PortSpec, index: &Index) -> (String, String) {
    let what = match spec.device {
        Device::Tap { host: Some(_), .. } => "it comes back without what others set on it",
        Device::Tap { .. } => "it comes back in the daemon's network namespace, without addresses and routes",
        Device::Vhost { .. } => "its VM has to connect again",
        Device::Verbs(ref verbs) if verbs.window.is_none() => "its programs have to open it again",
        Device::Verbs(_) => {
            "its programs have to open it again, and a VM whose window changes has it once it is started again"
        }
        _ => "meanwhile it has no packets",
    };
    (of_port(spec, index), format!("recreates {}: {what}", spec.device))
}

/// Describes the object to which a port belongs.
fn of_port(spec: &PortSpec, index: &Index) -> String {
    if let Some(network) = spec.name.strip_suffix(WAY_OUT) {
        return format!("network \"{network}\"");
    }
    let name = spec.name.split(':').next().unwrap_or_default();
    let kind = if index.wire(name).is_some() { "wire" } else { "guest" };
    format!("{kind} \"{name}\"")
}

fn away(index: &Index, is_up: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let standby = index.guests().values().filter(|guest| guest.is_standby());
    standby.map(|guest| guest.name.clone()).filter(|name| !is_up(name)).collect()
}

/// Returns the error that an object does not exist, or for a route that follows from an object, names that
/// object.
fn missing(key: &Key, state: &State) -> Error {
    let route = Some(key).filter(|key| key.kind == Kind::Route);
    let place = route.and_then(|key| Some((key.network.as_deref()?, key.name.parse().ok()?)));
    let origins = Origins::of(&state.objects, &state.away);
    match place.and_then(|(network, prefix)| origins.get(network, prefix)) {
        Some(origin) => Error::Conflict(format!(
            "{key} is that of {}, and goes with it: change that, or remove it",
            origin.key()
        )),
        None => Error::NotFound(format!("there is no {key}")),
    }
}

fn none_of(problems: Vec<Problem>) -> Result<(), Error> {
    if problems.is_empty() { Ok(()) } else { Err(Problems::from(problems).into()) }
}

#[cfg(test)]
pub(crate) mod tests;

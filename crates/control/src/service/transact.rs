//! Transactions, the last changes, and watching them.

use super::refusal::{invalid, invalid_at};
use super::{Core, ENTRY, Held, Operation, Part, Transaction, View, change, convert, tables};
use crate::history::{Revision, since_1970};
use crate::object_change::describe;
use crate::owner::Owner;
use api::v1::{self, operation::Operation as Step};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::channel;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Most changes of a revision that are listed.
const LISTED: usize = 100;
/// Most objects in a message to those who watch: more of them are listed anew.
const WATCHED: usize = 10_000;

pub(super) fn seconds(seconds: u32) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

pub(super) fn transaction(view: &View, request: v1::TransactRequest) -> Result<Transaction, Status> {
    let rules = tables::RuleNumbers::of(view);
    let steps = request.operations.into_iter().enumerate();
    let operations: Result<_, Status> =
        steps.map(|(at, step)| operation(&rules, step.operation).map_err(invalid_at(at))).collect();
    let owner = owner(&request.owner)?;
    let resync = Part::of(request.resync, request.end_resync);
    Ok(Transaction {
        owner,
        resync,
        operations: operations?,
        expected: request.expected_revision,
        request_id: request.request_id,
        take_over: request.take_over,
        dry_run: request.dry_run,
        confirm: seconds(request.confirm_seconds),
    })
}

/// Returns the owner who asks.
pub(super) fn owner(name: &str) -> Result<Owner, Status> {
    match name {
        "" => Ok(Owner::Api),
        name => Owner::from_name(name).ok_or_else(|| {
            invalid(format!("\"{name}\" is no owner: 1 to 32 lowercase letters, digits and \"-\""))
        }),
    }
}

/// Returns whether a request names rules, which may have to be searched by their names.
pub(super) fn names_rules(request: &v1::TransactRequest) -> bool {
    let key = |operation: &v1::Operation| match &operation.operation {
        Some(Step::Patch(v1::Patch { key, .. }) | Step::Delete(v1::Delete { key, .. })) => key.clone(),
        _ => None,
    };
    request.operations.iter().filter_map(key).any(|key| key.kind() == v1::Kind::Rule)
}

fn operation(rules: &tables::RuleNumbers<'_>, step: Option<Step>) -> Result<Operation, String> {
    let key = |key: Option<v1::Key>| {
        let key = key.ok_or("an operation without key")?;
        convert::key(&rules.named(key))
    };
    match step.ok_or("an operation without content")? {
        Step::Create(object) => convert::object(&object).map(Operation::Create),
        Step::Put(object) => convert::object(&object).map(Operation::Put),
        Step::Patch(v1::Patch { key: of, object, fields }) => {
            let (kind, table) = convert::fields_of(&object.unwrap_or_default())?;
            let key = key(of)?;
            match kind == key.kind {
                true => Ok(Operation::Patch { key, table, fields }),
                false => Err(format!("{key} has no fields of a {kind}")),
            }
        }
        Step::Delete(v1::Delete { key: of, allow_missing }) => {
            key(of).map(|key| Operation::Delete { key, allow_missing })
        }
    }
}

/// Returns the last changes.
pub(super) fn history(core: &Core) -> v1::HistoryReply {
    let (first, last): (_, Vec<_>) = {
        let history = core.history();
        (history.first(), history.last().cloned().collect())
    };
    let unconfirmed = core.unconfirmed();
    let revisions = last.iter().map(|revision| {
        let until = unconfirmed.filter(|it| it.revision == revision.number).map(|it| it.until);
        entry(revision, until)
    });
    v1::HistoryReply { revisions: revisions.collect(), first }
}

fn entry(revision: &Revision, until: Option<Instant>) -> v1::Revision {
    let listed: Vec<_> = revision.changed().take(LISTED).collect();
    v1::Revision {
        revision: revision.number,
        time: revision.since_1970(),
        uid: revision.uid,
        request: revision.request.clone().into_owned(),
        changes: describe(&listed).into_iter().map(change).collect(),
        count: revision.differences.len() as u64,
        unconfirmed_until: until
            .map(|until| since_1970(SystemTime::now() + until.saturating_duration_since(Instant::now()))),
    }
}

/// Tells of changes after a revision. Between two messages nothing is kept for the client: it gets what changed until it
/// reads on.
pub(super) fn watch(
    core: Arc<Core>,
    since: Option<u64>,
    hold: impl Fn(usize) -> Result<Arc<Held>, Status> + Send + 'static,
) -> ReceiverStream<Result<v1::WatchReply, Status>> {
    let (to, replies) = channel(1);
    let mut news = core.revisions();
    let (mut known, mut held) = (since.unwrap_or_else(|| *news.borrow()), None);
    tokio::spawn(async move {
        // Waits for room before it looks what changed. Then the message before was taken.
        while let Ok(room) = to.reserve().await {
            drop(held.take());
            if *news.borrow_and_update() != known {
                let reply = reply(&core, known);
                match hold(reply.differences.len() * ENTRY) {
                    Ok(memory) => held = Some(memory),
                    Err(refused) => return room.send(Err(refused)),
                }
                known = reply.revision;
                room.send(Ok(reply));
                continue;
            }
            drop(room);
            tokio::select! {
                changed = news.changed() => if changed.is_err() { return },
                () = to.closed() => return,
            }
        }
    });
    ReceiverStream::new(replies)
}

fn reply(core: &Core, known: u64) -> v1::WatchReply {
    let (revision, since) = {
        let history = core.history();
        (history.number(), history.since(known))
    };
    let count =
        |all: &Vec<Arc<Revision>>| all.iter().map(|revision| revision.differences.len()).sum::<usize>();
    let Some(since) = since.filter(|all| count(all) <= WATCHED) else {
        return v1::WatchReply { revision, differences: Vec::new(), resync: true };
    };
    let mut last = BTreeMap::new();
    for changed in since.iter().flat_map(|revision| revision.changed()) {
        last.insert(changed.key(), changed);
    }
    let differences = last.into_iter().map(|(key, changed)| {
        let [_, object] = changed.objects();
        let object = object.zip(changed.new_owner()).map(|(object, (owner, _))| {
            let (owner, object) = (owner.name().to_owned(), Some(convert::message(&object)));
            v1::OwnedObject { owner, object, ..v1::OwnedObject::default() }
        });
        v1::Difference { key: Some(convert::key_message(&key)), object }
    });
    v1::WatchReply { revision, differences: differences.collect(), resync: false }
}

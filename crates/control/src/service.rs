//! The gRPC service: reads from [`View`]s, changes through [`Core`].

mod convert;
mod daemon;
mod flows;
mod guest_state;
mod lists;
mod ovs;
mod packets;
mod rdma;
mod read_only;
mod refusal;
mod sockets;
mod speaker;
mod state;
mod tables;
mod transact;
mod users;

use crate::answers::{Answers, Held};
use crate::clients::{Connection, Peer};
use crate::core::{Core, Done, Operation, Part, Transaction, View};
use crate::history::Author;
use crate::object_change::{ObjectChange, log};
use api::v1;
use api::v1::viaduct_server::Viaduct;
use config::{Included, Texts};
use guest_state::Import;
use prost::Message;
use refusal::{invalid, invalid_at, missing};
use std::pin::Pin;
use std::sync::Arc;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

#[cfg(test)]
pub(crate) use convert::message;
pub use daemon::{Missing, Sandbox};
pub(crate) use ovs::ports as ovs_ports;
pub(crate) use rdma::overview as rdma_overview;
pub(crate) use read_only::ReadOnly;
pub(crate) use state::reasons;
pub(crate) use tables::{nexthop_kind, rule_entries, vif_entries};

#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) core: Arc<Core>,
    pub(crate) sandbox: Sandbox,
    /// Problems of sockets of `[host]` that are not served.
    pub(crate) missing: Missing,
    /// The memory of unread answers.
    pub(crate) answers: Answers,
}

type Reply<T> = Result<Response<T>, Status>;
type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    /// Exports the configuration; with secrets for who may see them.
    async fn exported(&self, request: Request<v1::ExportRequest>, may_see: bool) -> Reply<v1::ExportReply> {
        let (user, answers) = (peer(&request).uid, self.answers.clone());
        let work = move |core: &Core| {
            let view = core.view();
            let held = answers.hold(user, view.objects.len() * EXPORTED)?;
            let export = |most, send: &mut lists::Send<'_, _>| lists::export(&view, may_see, most, send);
            Ok((lists::whole("StreamExport", export)?, held))
        };
        self.blocking(work).await.map(held)
    }

    fn exported_in_parts(
        &self,
        request: Request<v1::ExportRequest>,
        may_see: bool,
    ) -> Reply<Streamed<v1::ExportReply>> {
        let held = self.answers.hold(peer(&request).uid, lists::STREAM)?;
        let make =
            move |view: &View, send: &mut lists::Send<'_, _>| lists::export(view, may_see, lists::PART, send);
        Ok(Response::new(lists::stream(self.core.clone(), held, make)))
    }

    fn view(&self) -> Arc<View> {
        self.core.view()
    }

    /// Runs work that may open devices, or wait for the disk or workers, off the server's own threads. A client that
    /// hangs up does not end it.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Core) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let core = self.core.clone();
        let joined = tokio::task::spawn_blocking(move || work(&core)).await;
        joined.unwrap_or_else(|e| Err(Status::internal(e.to_string())))
    }

    /// Makes a transaction, together with others that wait if it can be. It is logged even if the client has hung up
    /// meanwhile. What `is_short` is read here: another thread would cost more.
    async fn transacted(
        &self,
        by: Author,
        is_short: bool,
        read: impl FnOnce(&Core) -> Result<(Transaction, Vec<v1::Warning>), Status> + Send + 'static,
    ) -> Reply<v1::Changes> {
        let (asked, warnings) = if is_short { read(&self.core)? } else { self.blocking(read).await? };
        if !asked.can_be_joined() {
            return self.change(by, move |core| Ok((core.transact_alone(by, asked)?, warnings))).await;
        }
        let answer = Core::ask(&self.core, by, asked)?;
        let done = answer.await.map_err(|e| Status::internal(e.to_string()))??;
        Ok(Response::new(changed(&self.view(), done, warnings)))
    }

    /// Makes a change. It is logged even if the client has hung up meanwhile.
    async fn change(
        &self,
        by: Author,
        work: impl FnOnce(&Core) -> Result<(Done, Vec<v1::Warning>), Status> + Send + 'static,
    ) -> Reply<v1::Changes> {
        let changes = self.blocking(move |core| {
            let _admitted = core.admit()?;
            let (done, warnings) = work(core)?;
            log(by, &done.changes);
            Ok(changed(&core.view(), done, warnings))
        });
        changes.await.map(Response::new)
    }
}

/// Most objects of a request that are read on one of the server's own threads.
const SHORT: usize = 8;

/// Memory of a listed object, of a table's entry, and of an object in the exported file, bytes, about.
const OBJECT: usize = 700;
const ENTRY: usize = 500;
const EXPORTED: usize = 200;

/// Makes a reply whose memory is given back when the client has read it.
fn held<T>((reply, held): (T, Arc<Held>)) -> Response<T> {
    let mut response = Response::new(reply);
    response.extensions_mut().insert(held);
    response
}

fn peer<T>(request: &Request<T>) -> Peer {
    request.extensions().get::<Connection>().map_or_else(Peer::default, |connection| connection.peer)
}

/// Returns who asks, and for what.
fn author<T>(request: &Request<T>, what: &'static str) -> Author {
    Author { peer: peer(request), request: what }
}

/// Reports what was done, with warnings.
fn changed(view: &View, done: Done, mut warnings: Vec<v1::Warning>) -> v1::Changes {
    warnings.extend(state::stalled(&view.executor.status().stalled));
    changes(done, warnings)
}

fn change(c: ObjectChange) -> v1::Change {
    v1::Change { what: c.what.to_owned(), object: c.object, details: c.details }
}

/// Most bytes of the changes in an answer. Clients by default refuse messages of more than four megabytes, though the
/// changes were made.
const LISTED: usize = 2 << 20;

fn changes(Done { changes, notes, revision }: Done, warnings: Vec<v1::Warning>) -> v1::Changes {
    let (all, mut bytes) = (changes.len(), 0);
    let fits = |change: &v1::Change| {
        // With tag and length.
        bytes += change.encoded_len() + 6;
        bytes <= LISTED
    };
    let changes: Vec<_> = changes.into_iter().map(change).take_while(fits).collect();
    let more = all
        .checked_sub(changes.len())
        .filter(|more| *more > 0)
        .map(|more| (String::from("answer"), format!("{more} more changes are not listed here")));
    let notes = notes.into_iter().chain(more).map(|(object, message)| v1::Warning { object, message });
    v1::Changes { changes, warnings: notes.chain(warnings).collect(), revision }
}

#[tonic::async_trait]
impl Viaduct for Service {
    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Reply<v1::Changes> {
        let by = author(&request, "apply");
        let v1::ApplyRequest { toml, dry_run, confirm_seconds, included, owner } = request.into_inner();
        let owner = (!owner.is_empty()).then(|| transact::owner(&owner)).transpose()?;
        let file = |file: v1::IncludedFile| Included { name: file.name, text: file.toml };
        let included = included.map(|all| all.files.into_iter().map(file).collect());
        let (texts, confirm) = (Texts { main: toml, included }, transact::seconds(confirm_seconds));
        let apply = move |core: &Core| match owner {
            None => core.apply(by, &texts, dry_run, confirm),
            Some(owner) => core.apply_as(by, owner, &texts.main, dry_run, confirm),
        };
        if dry_run {
            let tried = self.blocking(move |core| Ok(changes(apply(core)?, Vec::new())));
            return tried.await.map(Response::new);
        }
        let work = move |core: &Core| {
            let done = apply(core)?;
            Ok((done, state::all_warnings(&core.view())))
        };
        self.change(by, work).await
    }

    async fn add(&self, request: Request<v1::AddRequest>) -> Reply<v1::Changes> {
        let by = author(&request, "add");
        let objects = request.into_inner().objects;
        let is_short = objects.len() <= SHORT;
        let work = move |_: &Core| {
            let objects = objects.iter().enumerate();
            let objects: Result<Vec<_>, _> =
                objects.map(|(at, object)| convert::object(object).map_err(invalid_at(at))).collect();
            let objects = objects?;
            let warnings = state::warnings(objects.iter());
            let operations = objects.into_iter().map(Operation::Create).collect();
            Ok((Transaction { operations, ..Transaction::default() }, warnings))
        };
        self.transacted(by, is_short, work).await
    }

    async fn remove(&self, request: Request<v1::RemoveRequest>) -> Reply<v1::Changes> {
        let by = author(&request, "remove");
        let keys = request.into_inner().keys;
        // A rule may have to be searched by its name.
        let is_short = keys.len() <= SHORT && keys.iter().all(|key| key.kind() != v1::Kind::Rule);
        let work = move |core: &Core| {
            let view = core.view();
            let rules = tables::RuleNumbers::of(&view);
            let delete = |(at, key)| {
                let key = convert::key(&rules.named(key)).map_err(invalid_at(at))?;
                Ok(Operation::Delete { key, allow_missing: false })
            };
            let operations: Result<_, Status> = keys.into_iter().enumerate().map(delete).collect();
            Ok((Transaction { operations: operations?, ..Transaction::default() }, Vec::new()))
        };
        self.transacted(by, is_short, work).await
    }

    async fn transact(&self, request: Request<v1::TransactRequest>) -> Reply<v1::Changes> {
        let by = author(&request, "transact");
        let request = request.into_inner();
        let is_short = request.operations.len() <= SHORT && !transact::names_rules(&request);
        let work = move |core: &Core| {
            let asked = transact::transaction(&core.view(), request)?;
            let created = asked.operations.iter().filter_map(|operation| match operation {
                Operation::Create(object) | Operation::Put(object) => Some(object),
                Operation::Patch { .. } | Operation::Delete { .. } => None,
            });
            let warnings = state::warnings(created);
            Ok((asked, warnings))
        };
        self.transacted(by, is_short, work).await
    }

    async fn begin_resync(&self, request: Request<v1::BeginResyncRequest>) -> Reply<v1::BeginResyncReply> {
        let by = author(&request, "resync");
        let v1::BeginResyncRequest { owner, seconds } = request.into_inner();
        let (owner, wait) = (transact::owner(&owner)?, transact::seconds(seconds));
        let resync = self.blocking(move |core| Ok(core.begin_resync(by, owner, wait)?)).await?;
        Ok(Response::new(v1::BeginResyncReply { resync }))
    }

    async fn confirm(&self, request: Request<v1::ConfirmRequest>) -> Reply<v1::ConfirmReply> {
        let peer = peer(&request);
        let revision = self.blocking(|core| Ok(core.confirm()?)).await?;
        tracing::info!(uid = peer.uid, pid = peer.pid, revision, "confirmed");
        Ok(Response::new(v1::ConfirmReply { revision }))
    }

    async fn history(&self, _: Request<v1::HistoryRequest>) -> Reply<v1::HistoryReply> {
        self.blocking(|core| Ok(transact::history(core))).await.map(Response::new)
    }

    async fn rollback(&self, request: Request<v1::RollbackRequest>) -> Reply<v1::Changes> {
        let by = author(&request, "rollback");
        let to = request.into_inner().revision;
        let work = move |core: &Core| {
            let done = core.rollback(by, to)?;
            Ok((done, state::all_warnings(&core.view())))
        };
        self.change(by, work).await
    }

    type WatchStream = Streamed<v1::WatchReply>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Reply<Self::WatchStream> {
        let (user, answers) = (peer(&request).uid, self.answers.clone());
        let since = request.into_inner().revision;
        let hold = move |bytes| answers.hold(user, bytes);
        Ok(Response::new(Box::pin(transact::watch(self.core.clone(), since, hold))))
    }

    async fn objects(&self, request: Request<v1::ObjectsRequest>) -> Reply<v1::ObjectsReply> {
        let (user, answers) = (peer(&request).uid, self.answers.clone());
        let request = request.into_inner();
        let work = move |core: &Core| {
            let view = core.view();
            let held = answers.hold(user, lists::count(&view, &request) * OBJECT)?;
            let reply =
                lists::whole("StreamObjects", |most, send| lists::objects(&view, &request, most, send))?;
            Ok((reply, held))
        };
        self.blocking(work).await.map(held)
    }

    async fn export(&self, request: Request<v1::ExportRequest>) -> Reply<v1::ExportReply> {
        self.exported(request, true).await
    }

    async fn table(&self, request: Request<v1::TableRequest>) -> Reply<v1::TableReply> {
        let (user, answers) = (peer(&request).uid, self.answers.clone());
        let request = request.into_inner();
        let work = move |core: &Core| {
            let view = core.view();
            let held = answers.hold(user, tables::entries(&view, request.table()) * ENTRY)?;
            let reply = lists::whole("StreamTable", |most, send| {
                tables::parts((&view, core.ports()), &request, most, send)
            })?;
            Ok((reply, held))
        };
        self.blocking(work).await.map(held)
    }

    type StreamObjectsStream = Streamed<v1::ObjectsReply>;

    async fn stream_objects(&self, request: Request<v1::ObjectsRequest>) -> Reply<Self::StreamObjectsStream> {
        let held = self.answers.hold(peer(&request).uid, lists::STREAM)?;
        let request = request.into_inner();
        let make = move |view: &View, send: &mut lists::Send<'_, _>| {
            lists::objects(view, &request, lists::PART, send)
        };
        Ok(Response::new(lists::stream(self.core.clone(), held, make)))
    }

    type StreamExportStream = Streamed<v1::ExportReply>;

    async fn stream_export(&self, request: Request<v1::ExportRequest>) -> Reply<Self::StreamExportStream> {
        self.exported_in_parts(request, true)
    }

    type StreamTableStream = Streamed<v1::TableReply>;

    async fn stream_table(&self, request: Request<v1::TableRequest>) -> Reply<Self::StreamTableStream> {
        let held = self.answers.hold(peer(&request).uid, lists::STREAM)?;
        let (core, request) = (self.core.clone(), request.into_inner());
        let make = move |view: &View, send: &mut lists::Send<'_, _>| {
            tables::parts((view, core.ports()), &request, lists::PART, send)
        };
        Ok(Response::new(lists::stream(self.core.clone(), held, make)))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Reply<v1::StatusReply> {
        let mut status = self.blocking(|core| Ok(state::status(core))).await?;
        let warning = |message: &String| v1::Warning { object: "[host]".into(), message: message.clone() };
        status.warnings.extend(self.missing.list().iter().map(warning));
        Ok(Response::new(v1::StatusReply { sandbox: Some(state::sandbox(&self.sandbox)), ..status }))
    }

    async fn stats(&self, request: Request<v1::StatsRequest>) -> Reply<v1::StatsReply> {
        state::stats(&self.view(), request.into_inner().worker).map(Response::new)
    }

    async fn drop_stats(&self, request: Request<v1::DropStatsRequest>) -> Reply<v1::DropStatsReply> {
        let request = request.into_inner();
        self.blocking(move |core| state::drops(core, &request)).await.map(Response::new)
    }

    async fn rdma(&self, request: Request<v1::RdmaRequest>) -> Reply<v1::RdmaReply> {
        let request = request.into_inner();
        self.blocking(move |core| rdma::reply(core, &request)).await.map(Response::new)
    }

    async fn bgp(&self, _: Request<v1::BgpRequest>) -> Reply<v1::BgpReply> {
        self.blocking(|core| Ok(core.ports().bgp().unwrap_or_default())).await.map(Response::new)
    }

    type BgpRoutesStream = Streamed<v1::BgpRoutesReply>;

    async fn bgp_routes(&self, request: Request<v1::BgpRoutesRequest>) -> Reply<Self::BgpRoutesStream> {
        let held = self.answers.hold(peer(&request).uid, lists::STREAM)?;
        let wanted = speaker::wanted(&self.view(), &request.into_inner())?;
        let core = self.core.clone();
        let make =
            move |_: &View, send: &mut lists::Send<'_, _>| speaker::routes(core.ports(), &wanted, send);
        Ok(Response::new(lists::stream(self.core.clone(), held, make)))
    }

    type BgpEvpnStream = Streamed<v1::BgpEvpnReply>;

    async fn bgp_evpn(&self, request: Request<v1::BgpEvpnRequest>) -> Reply<Self::BgpEvpnStream> {
        let held = self.answers.hold(peer(&request).uid, lists::STREAM)?;
        let networks = speaker::networks(&self.view(), request.into_inner().network.as_ref())?;
        let core = self.core.clone();
        let make =
            move |_: &View, send: &mut lists::Send<'_, _>| speaker::evpn(core.ports(), &networks, send);
        Ok(Response::new(lists::stream(self.core.clone(), held, make)))
    }

    type BgpAnnouncementsStream = Streamed<v1::BgpAnnouncementsReply>;

    async fn bgp_announcements(
        &self,
        request: Request<v1::BgpAnnouncementsRequest>,
    ) -> Reply<Self::BgpAnnouncementsStream> {
        let held = self.answers.hold(peer(&request).uid, lists::STREAM)?;
        let only = request.into_inner().network;
        let networks = speaker::networks(&self.view(), only.as_ref())?;
        let vrf = only.and(networks.first().map(|(_, vrf)| *vrf));
        let core = self.core.clone();
        let make = move |_: &View, send: &mut lists::Send<'_, _>| {
            let all = core.ports().bgp_announcements(vrf);
            lists::in_parts(all, lists::PART, |announcements| {
                send(v1::BgpAnnouncementsReply { announcements })
            })
        };
        Ok(Response::new(lists::stream(self.core.clone(), held, make)))
    }

    async fn bgp_drain(&self, request: Request<v1::BgpDrainRequest>) -> Reply<v1::BgpDrainReply> {
        let drains = !request.into_inner().undo;
        let drain = move |core: &Core| match core.ports().bgp() {
            Some(_) => {
                core.ports().drain_bgp(drains);
                Ok(())
            }
            None => Err(Status::failed_precondition("the host speaks no BGP: its file has no [bgp]")),
        };
        self.blocking(drain).await.map(|()| Response::new(v1::BgpDrainReply {}))
    }

    async fn sockets(&self, request: Request<v1::SocketsRequest>) -> Reply<v1::SocketsReply> {
        let request = request.into_inner();
        self.blocking(move |core| sockets::reply(core, &request)).await.map(Response::new)
    }

    async fn ovs(&self, request: Request<v1::OvsRequest>) -> Reply<v1::OvsReply> {
        let request = request.into_inner();
        self.blocking(move |core| ovs::reply(core, &request)).await.map(Response::new)
    }

    type OvsFlowsStream = Streamed<v1::OvsFlow>;

    async fn ovs_flows(&self, request: Request<v1::OvsFlowsRequest>) -> Reply<Self::OvsFlowsStream> {
        let port = request.into_inner().port;
        let found = self.blocking(move |core| ovs::flows(core, port.as_ref())).await?;
        let view = self.view();
        let messages = found.into_iter().map(move |flow| Ok(ovs::flow(&view, &flow)));
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }

    type FlowsStream = Streamed<v1::Flow>;

    async fn flows(&self, request: Request<v1::FlowsRequest>) -> Reply<Self::FlowsStream> {
        let text = request.into_inner().r#match;
        let found = self.blocking(move |core| flows::list(&core.view(), &text)).await?;
        let view = self.view();
        let floating = flows::Floating::of(&view.tables);
        let messages = found.into_iter().map(move |flow| Ok(flows::message(&view, &floating, &flow)));
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }

    async fn flush_flows(&self, request: Request<v1::FlushFlowsRequest>) -> Reply<v1::FlushFlowsReply> {
        let peer = peer(&request);
        let text = request.into_inner().r#match;
        let flushed = self.blocking(move |core| flows::flush(&core.view(), &text)).await?;
        tracing::info!(uid = peer.uid, pid = peer.pid, flushed, "connections flushed");
        Ok(Response::new(v1::FlushFlowsReply { flushed }))
    }

    type ExportGuestStream = Streamed<v1::GuestState>;

    async fn export_guest(&self, request: Request<v1::ExportGuestRequest>) -> Reply<Self::ExportGuestStream> {
        let v1::ExportGuestRequest { name, when_stopped } = request.into_inner();
        let of = name.clone();
        let parts = self.blocking(move |core| guest_state::export(core, &of)).await?;
        if when_stopped && self.view().port(&name).up {
            return Ok(Response::new(Box::pin(guest_state::export_when_stopped(self.clone(), name))));
        }
        Ok(Response::new(Box::pin(tokio_stream::iter(parts.into_iter().map(Ok)))))
    }

    async fn import_guest(&self, request: Request<Streaming<v1::GuestState>>) -> Reply<v1::ImportGuestReply> {
        let (view, peer, by) = (self.view(), peer(&request), author(&request, "import guest"));
        let mut parts = request.into_inner();
        let mut import = Import::new(view);
        while let Some(part) = parts.message().await? {
            import.take(part)?;
        }
        let (guest, done) = self.blocking(move |core| import.finish(core, by)).await?;
        let (connections, macs) = (done.connections, done.macs);
        tracing::info!(uid = peer.uid, pid = peer.pid, guest, connections, macs, "state of a guest imported");
        Ok(Response::new(done))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Reply<v1::Explanation> {
        let request = request.into_inner();
        self.blocking(move |core| packets::explain(core, request)).await.map(Response::new)
    }

    type CaptureStream = Streamed<v1::CapturedPacket>;

    async fn capture(&self, request: Request<v1::CaptureRequest>) -> Reply<Self::CaptureStream> {
        let packets = packets::capture(self.core.clone(), request.into_inner())?;
        Ok(Response::new(Box::pin(packets)))
    }
}

#[cfg(test)]
mod hostile;

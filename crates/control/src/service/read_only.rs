//! The service for clients that may look and not touch.

use super::lists::hide;
use super::{Reply, Service};
use api::v1;
use api::v1::viaduct_server::Viaduct;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, Streaming};

/// A [`Service`] that refuses requests which change the host, and those which show tenants' whole packets or
/// the keys of their memory. It hides the user data of guests.
pub(crate) struct ReadOnly(pub(crate) Service);

fn refused<T>(what: &str) -> Result<T, Status> {
    let text = format!(
        "this socket is for reading: {what} needs the control socket, viaduct.sock (for root, and members of its group)"
    );
    Err(Status::permission_denied(text))
}

#[tonic::async_trait]
impl Viaduct for ReadOnly {
    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Reply<v1::Changes> {
        // A diff is no secret, but it holds up those who change something.
        refused(if request.get_ref().dry_run { "diff" } else { "apply" })
    }

    async fn add(&self, _: Request<v1::AddRequest>) -> Reply<v1::Changes> {
        refused("add")
    }

    async fn remove(&self, _: Request<v1::RemoveRequest>) -> Reply<v1::Changes> {
        refused("remove")
    }

    async fn transact(&self, _: Request<v1::TransactRequest>) -> Reply<v1::Changes> {
        refused("transact")
    }

    async fn begin_resync(&self, _: Request<v1::BeginResyncRequest>) -> Reply<v1::BeginResyncReply> {
        refused("a resync")
    }

    async fn confirm(&self, _: Request<v1::ConfirmRequest>) -> Reply<v1::ConfirmReply> {
        refused("confirm")
    }

    async fn history(&self, request: Request<v1::HistoryRequest>) -> Reply<v1::HistoryReply> {
        self.0.history(request).await
    }

    async fn rollback(&self, _: Request<v1::RollbackRequest>) -> Reply<v1::Changes> {
        refused("rollback")
    }

    type WatchStream = <Service as Viaduct>::WatchStream;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Reply<Self::WatchStream> {
        let stream = self.0.watch(request).await?.into_inner();
        let hidden = stream.map(|reply| {
            let mut reply = reply?;
            let objects = reply.differences.iter_mut().filter_map(|difference| difference.object.as_mut());
            objects.for_each(hide);
            Ok(reply)
        });
        Ok(Response::new(Box::pin(hidden)))
    }

    async fn objects(&self, request: Request<v1::ObjectsRequest>) -> Reply<v1::ObjectsReply> {
        let mut reply = self.0.objects(request).await?;
        reply.get_mut().objects.iter_mut().for_each(hide);
        Ok(reply)
    }

    async fn export(&self, request: Request<v1::ExportRequest>) -> Reply<v1::ExportReply> {
        self.0.exported(request, false).await
    }

    async fn table(&self, request: Request<v1::TableRequest>) -> Reply<v1::TableReply> {
        self.0.table(request).await
    }

    type StreamObjectsStream = <Service as Viaduct>::StreamObjectsStream;

    async fn stream_objects(&self, request: Request<v1::ObjectsRequest>) -> Reply<Self::StreamObjectsStream> {
        let stream = self.0.stream_objects(request).await?.into_inner();
        let hidden = stream.map(|reply| {
            let mut reply = reply?;
            reply.objects.iter_mut().for_each(hide);
            Ok(reply)
        });
        Ok(Response::new(Box::pin(hidden)))
    }

    type StreamExportStream = <Service as Viaduct>::StreamExportStream;

    async fn stream_export(&self, request: Request<v1::ExportRequest>) -> Reply<Self::StreamExportStream> {
        self.0.exported_in_parts(request, false)
    }

    type StreamTableStream = <Service as Viaduct>::StreamTableStream;

    async fn stream_table(&self, request: Request<v1::TableRequest>) -> Reply<Self::StreamTableStream> {
        self.0.stream_table(request).await
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Reply<v1::StatusReply> {
        self.0.status(request).await
    }

    async fn stats(&self, request: Request<v1::StatsRequest>) -> Reply<v1::StatsReply> {
        self.0.stats(request).await
    }

    async fn drop_stats(&self, request: Request<v1::DropStatsRequest>) -> Reply<v1::DropStatsReply> {
        self.0.drop_stats(request).await
    }

    async fn rdma(&self, request: Request<v1::RdmaRequest>) -> Reply<v1::RdmaReply> {
        // With the key of a memory region, a peer can read and write it.
        if request.get_ref().table() == v1::RdmaTable::Mr {
            return refused("rdma mr");
        }
        self.0.rdma(request).await
    }

    async fn bgp(&self, request: Request<v1::BgpRequest>) -> Reply<v1::BgpReply> {
        self.0.bgp(request).await
    }

    type BgpRoutesStream = <Service as Viaduct>::BgpRoutesStream;

    async fn bgp_routes(&self, request: Request<v1::BgpRoutesRequest>) -> Reply<Self::BgpRoutesStream> {
        self.0.bgp_routes(request).await
    }

    type BgpEvpnStream = <Service as Viaduct>::BgpEvpnStream;

    async fn bgp_evpn(&self, request: Request<v1::BgpEvpnRequest>) -> Reply<Self::BgpEvpnStream> {
        self.0.bgp_evpn(request).await
    }

    type BgpAnnouncementsStream = <Service as Viaduct>::BgpAnnouncementsStream;

    async fn bgp_announcements(
        &self,
        request: Request<v1::BgpAnnouncementsRequest>,
    ) -> Reply<Self::BgpAnnouncementsStream> {
        self.0.bgp_announcements(request).await
    }

    async fn bgp_drain(&self, _: Request<v1::BgpDrainRequest>) -> Reply<v1::BgpDrainReply> {
        refused("bgp drain")
    }

    async fn sockets(&self, request: Request<v1::SocketsRequest>) -> Reply<v1::SocketsReply> {
        self.0.sockets(request).await
    }

    async fn ovs(&self, request: Request<v1::OvsRequest>) -> Reply<v1::OvsReply> {
        self.0.ovs(request).await
    }

    type OvsFlowsStream = <Service as Viaduct>::OvsFlowsStream;

    async fn ovs_flows(&self, request: Request<v1::OvsFlowsRequest>) -> Reply<Self::OvsFlowsStream> {
        self.0.ovs_flows(request).await
    }

    type FlowsStream = <Service as Viaduct>::FlowsStream;

    async fn flows(&self, request: Request<v1::FlowsRequest>) -> Reply<Self::FlowsStream> {
        self.0.flows(request).await
    }

    async fn flush_flows(&self, _: Request<v1::FlushFlowsRequest>) -> Reply<v1::FlushFlowsReply> {
        refused("flow flush")
    }

    type ExportGuestStream = <Service as Viaduct>::ExportGuestStream;

    async fn export_guest(&self, _: Request<v1::ExportGuestRequest>) -> Reply<Self::ExportGuestStream> {
        refused("guest export")
    }

    async fn import_guest(&self, _: Request<Streaming<v1::GuestState>>) -> Reply<v1::ImportGuestReply> {
        refused("guest import")
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Reply<v1::Explanation> {
        self.0.explain(request).await
    }

    type CaptureStream = <Service as Viaduct>::CaptureStream;

    async fn capture(&self, _: Request<v1::CaptureRequest>) -> Reply<Self::CaptureStream> {
        refused("capture")
    }
}

//! The requests on an application's control socket: dispatch to their handlers.

use crate::base::ids::{CqId, Key, MwId, PdId, Qpn, SrqId};
use crate::base::refusal::{Answer, done, refuse};
use crate::client::Client;
use crate::context::mr::{Change, Wanted};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use uverbs::{Kind, Region, Request};

impl Client {
    pub(crate) fn handle(&mut self, request: Request, files: Vec<OwnedFd>) -> Answer {
        match request {
            // Answered when the peer has answered.
            Request::Direct { .. } | Request::Pages { .. } | Request::Memory { .. } => {
                refuse(Errno::PROTO, "this request is answered later, not here")
            }
            Request::Cm(_) => refuse(Errno::PROTO, "the connection manager needs a connection of its own"),
            Request::AllocPages { len } => self.alloc_pages(len),
            Request::FreePages { part } => self.free_pages(part),
            Request::Ended { gone } => {
                self.context.source.end_suspects(&gone);
                done()
            }
            Request::Hello { .. } => refuse(Errno::PROTO, "greeted before"),
            Request::QueryPort => self.query_port(),
            Request::AllocPd => self.alloc_pd(),
            Request::DeallocPd { pd } => self.dealloc_pd(PdId(pd)),
            Request::RegMr { pd, address, length: len, iova, access, pages } => {
                let region = Region { pd, address, len, iova, access, file: 0, kind: Kind::Region };
                let file = files.into_iter().next();
                self.register(region, Wanted { extents: pages, file, stands_in: false })
            }
            Request::ServeCopies => self.serve_copies(),
            Request::RegStandIn { pd, address, length: len, iova, access, pages } => {
                let region = Region { pd, address, len, iova, access, file: 0, kind: Kind::Region };
                self.register_stand_in(region, pages)
            }
            Request::ReregMr { mr, pd, range, access } => {
                self.reregister(Key(mr), Change { pd: pd.map(PdId), range, access })
            }
            Request::DeregMr { mr } => self.deregister(Key(mr)),
            Request::AllocMw { pd, mw_type } => self.alloc_window(PdId(pd), mw_type),
            Request::DeallocMw { mw } => self.context.regions.dealloc_window(MwId(mw)),
            Request::CreateChannel => self.create_channel(),
            Request::DestroyChannel { channel } => self.destroy_channel(channel),
            Request::CreateCq { entries, channel, timestamps } => {
                self.create_cq(entries, channel, timestamps)
            }
            Request::ResizeCq { cq, entries } => self.resize_cq(CqId(cq), entries),
            Request::TellChannel { cq } => self.tell_channel(CqId(cq)),
            Request::TellPeer { qpn } => self.tell_peer(Qpn(qpn)),
            Request::DestroyCq { cq } => self.destroy_cq(CqId(cq)),
            Request::CreateSrq { pd, max_wr, max_sge } => self.create_srq(PdId(pd), max_wr, max_sge),
            Request::ResizeSrq { srq, max_wr, limit } => self.resize_srq(SrqId(srq), max_wr, limit),
            Request::ArmSrq { srq, limit } => self.arm_srq(SrqId(srq), limit),
            Request::PeerIsLow { qpn } => self.tell_peer_of_few(Qpn(qpn)),
            Request::QuerySrq { srq } => self.query_srq(SrqId(srq)),
            Request::DestroySrq { srq } => self.destroy_srq(SrqId(srq)),
            Request::CreateQp(asked) => self.create_qp(&asked),
            Request::ModifyQp { qpn, mask, attributes } => self.modify_qp(Qpn(qpn), mask, &attributes),
            Request::QueryQp { qpn } => self.query_qp(Qpn(qpn)),
            Request::DestroyQp { qpn } => self.destroy_qp(Qpn(qpn)),
            Request::AttachMcast { qpn, gid } => self.attach(Qpn(qpn), gid),
            Request::DetachMcast { qpn, gid } => self.detach(Qpn(qpn), gid),
            Request::CreateAh { pd, vector } => self.create_ah(PdId(pd), &vector),
            Request::DestroyAh { ah } => self.destroy_ah(ah),
        }
    }
}

//! The requests that applications make on their control socket: who does which.

use crate::client::Client;
use crate::mr::Change;
use crate::refusal::{Answer, refuse};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use uverbs::{Kind, Region, Request};

impl Client {
    /// Does what is asked for.
    pub(crate) fn handle(&mut self, request: Request, files: Vec<OwnedFd>) -> Answer {
        match request {
            // Answered when the peer has.
            Request::Direct { .. } | Request::Pages { .. } | Request::Memory { .. } => {
                refuse(Errno::PROTO, "asked for in passing")
            }
            Request::Cm(_) => refuse(Errno::PROTO, "the connection manager has connections of its own"),
            Request::Hello { .. } => refuse(Errno::PROTO, "greeted before"),
            Request::QueryPort => self.query_port(),
            Request::AllocPd => self.alloc_pd(),
            Request::DeallocPd { pd } => self.dealloc_pd(pd),
            Request::RegMr { pd, address, length: len, iova, access, pages } => {
                let region = Region { pd, address, len, iova, access, file: 0, kind: Kind::Region };
                self.register(region, pages.map(|range| (range, files.into_iter().next())))
            }
            Request::ReregMr { mr, pd, range, access } => self.reregister(mr, Change { pd, range, access }),
            Request::DeregMr { mr } => self.deregister(mr),
            Request::AllocMw { pd, mw_type } => self.alloc_window(pd, mw_type),
            Request::DeallocMw { mw } => self.context.regions.dealloc_window(mw),
            Request::CreateChannel => self.create_channel(),
            Request::DestroyChannel { channel } => self.destroy_channel(channel),
            Request::CreateCq { entries, channel } => self.create_cq(entries, channel),
            Request::ResizeCq { cq, entries } => self.resize_cq(cq, entries),
            Request::TellChannel { cq } => self.tell_channel(cq),
            Request::TellPeer { qpn } => self.tell_peer(qpn),
            Request::DestroyCq { cq } => self.destroy_cq(cq),
            Request::CreateSrq { pd, max_wr, max_sge } => self.create_srq(pd, max_wr, max_sge),
            Request::ResizeSrq { srq, max_wr, limit } => self.resize_srq(srq, max_wr, limit),
            Request::ArmSrq { srq, limit } => self.arm_srq(srq, limit),
            Request::PeerIsLow { qpn } => self.tell_peer_of_few(qpn),
            Request::QuerySrq { srq } => self.query_srq(srq),
            Request::DestroySrq { srq } => self.destroy_srq(srq),
            Request::CreateQp(asked) => self.create_qp(&asked),
            Request::ModifyQp { qpn, mask, attributes } => self.modify_qp(qpn, mask, &attributes),
            Request::QueryQp { qpn } => self.query_qp(qpn),
            Request::DestroyQp { qpn } => self.destroy_qp(qpn),
            Request::AttachMcast { qpn, gid } => self.attach(qpn, gid),
            Request::DetachMcast { qpn, gid } => self.detach(qpn, gid),
            Request::CreateAh { pd, vector } => self.create_ah(pd, &vector),
            Request::DestroyAh { ah } => self.destroy_ah(ah),
        }
    }
}

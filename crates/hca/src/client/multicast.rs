//! Attaching queue pairs to multicast groups.

use crate::base::header::is_group;
use crate::base::ids::Qpn;
use crate::base::refusal::{Answer, done, found, no_memory, refuse};
use crate::client::Client;
use crate::net::groups::Member;
use rustix::io::Errno;
use std::net::Ipv6Addr;
use uverbs::QpType;

impl Client {
    pub(super) fn attach(&self, qpn: Qpn, gid: Ipv6Addr) -> Answer {
        let endpoint = &found(self.qps.get(&qpn), "queue pair")?.endpoint;
        if endpoint.kind != QpType::Ud || !is_group(gid) {
            return refuse(Errno::INVAL, "queue pairs of datagrams are attached to multicast addresses");
        }
        let (queue_key, inbox) = (endpoint.queue_key.clone(), self.context.inbox.clone());
        self.context.adapter.groups.attach(gid, Member { qpn, queue_key, inbox }).map_err(no_memory)?;
        done()
    }

    pub(super) fn detach(&self, qpn: Qpn, gid: Ipv6Addr) -> Answer {
        found(self.qps.get(&qpn), "queue pair")?;
        found(self.context.adapter.groups.detach(gid, qpn).then_some(()), "queue pair in the group")?;
        done()
    }
}

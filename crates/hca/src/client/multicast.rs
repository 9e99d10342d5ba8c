//! Attaching queue pairs to multicast groups.

use crate::base::header::is_group;
use crate::base::ids::Qpn;
use crate::base::refusal::{Answer, done, found, no_memory, refuse};
use crate::client::Client;
use rustix::io::Errno;
use std::net::Ipv6Addr;
use uverbs::QpType;

impl Client {
    pub(super) fn attach(&self, qpn: Qpn, gid: Ipv6Addr) -> Answer {
        let endpoint = &found(self.qps.get(&qpn), "queue pair")?.endpoint;
        if endpoint.kind != QpType::Ud || !is_group(gid) {
            return refuse(Errno::INVAL, "queue pairs of datagrams are attached to multicast addresses");
        }
        let (member, context) = ((qpn, &endpoint.queue_key), &self.context);
        context.adapter.groups.attach(gid, member, &context.inbox).map_err(no_memory)?;
        done()
    }

    pub(super) fn detach(&self, qpn: Qpn, gid: Ipv6Addr) -> Answer {
        found(self.qps.get(&qpn), "queue pair")?;
        found(self.context.adapter.groups.detach(gid, qpn).then_some(()), "queue pair in the group")?;
        done()
    }
}

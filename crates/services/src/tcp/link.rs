//! The link of one connection's stack: packets go in and come out one by one.

use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use std::mem::take;

/// IP packets on their way to the stack and from it.
#[derive(Debug)]
pub(super) struct Link<'a> {
    pub(super) mtu: usize,
    pub(super) to: Option<&'a [u8]>,
    pub(super) from: Vec<Vec<u8>>,
}

pub(super) struct Inbound<'a>(&'a [u8]);
pub(super) struct Outbound<'a>(&'a mut Vec<Vec<u8>>);

impl Device for Link<'_> {
    type RxToken<'t>
        = Inbound<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Outbound<'t>
    where
        Self: 't;

    fn receive(&mut self, _now: Instant) -> Option<(Inbound<'_>, Outbound<'_>)> {
        let packet = take(&mut self.to)?;
        Some((Inbound(packet), Outbound(&mut self.from)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Outbound<'_>> {
        Some(Outbound(&mut self.from))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut own = DeviceCapabilities::default();
        own.medium = Medium::Ip;
        own.max_transmission_unit = self.mtu;
        own
    }
}

impl RxToken for Inbound<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

impl TxToken for Outbound<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut packet = vec![0; len];
        let result = write(&mut packet);
        self.0.push(packet);
        result
    }
}

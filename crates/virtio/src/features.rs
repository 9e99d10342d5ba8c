//! Feature bits (VIRTIO 1.2, sections 5.1.3 and 6), and which of them we offer.

use mem::{Accepts, vnet};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features(pub(crate) u64);

macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $words:literal;)*) => {
        impl Features {
            $($(#[$doc])* pub(crate) const $name: Self = Self(1 << $bit);)*

            /// Returns the names of the set bits, for display.
            pub(crate) fn words(self) -> Vec<String> {
                [$((Self::$name, $words)),*]
                    .iter()
                    .filter(|(bit, words)| self.has(*bit) && !words.is_empty())
                    .map(|(_, words)| (*words).to_owned())
                    .collect()
            }
        }
    };
}

bits! {
    /// The device completes partial checksums.
    CSUM = 0, "csum";
    /// The driver completes partial checksums.
    GUEST_CSUM = 1, "guest-csum";
    /// The device has a maximum MTU.
    MTU = 3, "mtu";
    /// The driver takes large TCP segments over IPv4.
    GUEST_TSO4 = 7, "guest-tso4";
    /// The driver takes large TCP segments over IPv6.
    GUEST_TSO6 = 8, "guest-tso6";
    /// The driver takes large TCP segments with CWR.
    GUEST_ECN = 9, "guest-ecn";
    /// The device takes large TCP segments over IPv4.
    HOST_TSO4 = 11, "host-tso4";
    /// The device takes large TCP segments over IPv6.
    HOST_TSO6 = 12, "host-tso6";
    /// The device takes large TCP segments with CWR.
    HOST_ECN = 13, "host-ecn";
    /// A received packet may take several of the driver's buffers.
    MRG_RXBUF = 15, "mrg-rxbuf";
    /// The link status can be read.
    STATUS = 16, "";
    /// There is a control queue.
    CTRL_VQ = 17, "";
    /// The driver announces the guest to the network when it is told to.
    GUEST_ANNOUNCE = 21, "guest-announce";
    /// More than one queue pair.
    MQ = 22, "mq";
    /// vhost's own bit: pages that the device writes are logged.
    LOG_ALL = 26, "";
    /// Header and packet may share a descriptor.
    ANY_LAYOUT = 27, "";
    /// Tables of descriptors.
    INDIRECT_DESC = 28, "indirect";
    /// Notifications at an index.
    EVENT_IDX = 29, "event-idx";
    /// vhost-user's own bit: protocol features follow.
    PROTOCOL_FEATURES = 30, "";
    /// VIRTIO 1.0 or later.
    VERSION_1 = 32, "version-1";
    /// Packed virtqueues.
    RING_PACKED = 34, "packed";
    /// Buffers are used in the order in which they were made available.
    IN_ORDER = 35, "in-order";
}

impl Features {
    pub(crate) const fn has(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    const fn with(self, bits: Self) -> Self {
        Self(self.0 | bits.0)
    }

    /// Returns the features that we offer: only implemented ones. UFO and USO are not offered, because nobody
    /// here could segment such packets.
    ///
    /// The control queue, and announcements through it, are the VMM's task. But VMMs that mask their own
    /// offer with ours (cloud-hypervisor) would otherwise lose the control queue, and multiqueue with it.
    ///
    /// `offload`: checksums and segmentation; `migrates`: the log of written pages, without which VMMs do not
    /// migrate.
    pub(crate) const fn offered(offload: bool, migrates: bool) -> Self {
        let base = Self::MTU
            .with(Self::MRG_RXBUF)
            .with(Self::STATUS)
            .with(Self::CTRL_VQ)
            .with(Self::MQ)
            .with(Self::GUEST_ANNOUNCE)
            .with(Self::ANY_LAYOUT)
            .with(Self::INDIRECT_DESC)
            .with(Self::EVENT_IDX)
            .with(Self::PROTOCOL_FEATURES)
            .with(Self::VERSION_1)
            .with(Self::RING_PACKED)
            .with(Self::IN_ORDER);
        let base = if migrates { base.with(Self::LOG_ALL) } else { base };
        if !offload {
            return base;
        }
        base.with(Self::CSUM)
            .with(Self::GUEST_CSUM)
            .with(Self::GUEST_TSO4)
            .with(Self::GUEST_TSO6)
            .with(Self::GUEST_ECN)
            .with(Self::HOST_TSO4)
            .with(Self::HOST_TSO6)
            .with(Self::HOST_ECN)
    }

    /// Returns the length of `struct virtio_net_hdr` in bytes (5.1.6). Only legacy drivers use it without
    /// `num_buffers`.
    pub(crate) const fn header_len(self) -> usize {
        if self.has(Self::VERSION_1) || self.has(Self::MRG_RXBUF) {
            vnet::VNET_HEADER
        } else {
            vnet::VNET_HEADER_SHORT
        }
    }

    /// Returns the offloads that the driver may leave to us.
    pub(crate) const fn finished_for_driver(self) -> Accepts {
        Accepts {
            csum: self.has(Self::CSUM),
            tso4: self.has(Self::HOST_TSO4),
            tso6: self.has(Self::HOST_TSO6),
            ecn: self.has(Self::HOST_ECN),
        }
    }

    /// Returns the offloads that we may leave to the driver.
    pub(crate) const fn left_to_driver(self) -> Accepts {
        Accepts {
            csum: self.has(Self::GUEST_CSUM),
            tso4: self.has(Self::GUEST_TSO4),
            tso6: self.has(Self::GUEST_TSO6),
            ecn: self.has(Self::GUEST_ECN),
        }
    }
}

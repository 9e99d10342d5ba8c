//! A guest: a vhost-user front end with one pair of queues.

use crate::frames;
use crate::memory::Memory;
use crate::ring::Ring;
use anyhow::{Context, Result};
use std::path::Path;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VringConfigData};
use vm_memory::Bytes;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const QUEUES: usize = 2;

const PROTOCOL_FEATURES: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;

/// Bytes of virtio-net's header (VIRTIO 1.3, 5.1.6).
const HEADER: usize = 12;
/// Bytes of a buffer, as drivers have them: an odd number of cache lines, because otherwise all buffers
/// compete for a few cache sets.
const STRIDE: usize = 2048 + 64;
const SMALL_RING: u16 = 64;
const FCS: u16 = 4;

/// The task of a guest, and the size of its ring for it.
pub enum Role {
    /// Sends frames of `size` bytes.
    Sender {
        ring: u16,
        flows: u32,
        size: u16,
    },
    Receiver {
        ring: u16,
    },
}

pub struct Guest {
    pub memory: Memory,
    pub receive: Ring,
    pub transmit: Ring,
    kicks: Vec<EventFd>,
    _frontend: Frontend,
    _calls: Vec<EventFd>,
}

impl Guest {
    /// Connects to the device that listens on the socket, with all rings filled and nothing offered yet.
    pub fn connect(socket: &Path, role: Role) -> Result<Self> {
        let (receive, transmit) = match role {
            Role::Sender { ring, .. } => (SMALL_RING, ring),
            Role::Receiver { ring } => (ring, SMALL_RING),
        };
        let length = match role {
            Role::Sender { size, .. } => HEADER + usize::from(size - FCS),
            Role::Receiver { .. } => HEADER + 60,
        };
        let mut memory = Memory::new(Ring::bytes(receive, STRIDE) + Ring::bytes(transmit, STRIDE))?;
        let receive = Ring::new(&mut memory, receive, STRIDE, STRIDE as u32, true)?;
        let transmit = Ring::new(&mut memory, transmit, STRIDE, length as u32, false)?;
        fill(&memory, &transmit, length, &role)?;

        let mut frontend = Frontend::connect(socket, QUEUES as u64)
            .with_context(|| format!("connecting to {}", socket.display()))?;
        let eventfds = || (0..QUEUES).map(|_| EventFd::new(EFD_NONBLOCK)).collect::<Result<Vec<_>, _>>();
        let (kicks, calls) = (eventfds()?, eventfds()?);
        negotiate(&mut frontend)?;
        frontend.set_mem_table(&[memory.region_info()])?;
        for (queue, ring) in [(RECEIVE, &receive), (TRANSMIT, &transmit)] {
            set_up(&frontend, &memory, queue, ring)?;
            frontend.set_vring_call(queue, &calls[queue])?;
            frontend.set_vring_kick(queue, &kicks[queue])?;
        }
        for queue in [RECEIVE, TRANSMIT] {
            frontend.set_vring_enable(queue, true)?;
        }
        Ok(Self { memory, receive, transmit, kicks, _frontend: frontend, _calls: calls })
    }

    /// Tells the device that there are buffers to receive into.
    pub fn kick_receive(&self) -> Result<()> {
        Ok(self.kicks[RECEIVE].write(1)?)
    }

    /// Tells the device that there are packets to take.
    pub fn kick_transmit(&self) -> Result<()> {
        Ok(self.kicks[TRANSMIT].write(1)?)
    }
}

fn negotiate(frontend: &mut Frontend) -> Result<()> {
    frontend.set_owner()?;
    let features = frontend.get_features()?;
    anyhow::ensure!(features & VERSION_1 != 0, "the device is older than VIRTIO 1.0");
    frontend.set_features(features & (PROTOCOL_FEATURES | VERSION_1))?;
    if features & PROTOCOL_FEATURES != 0 {
        let offered = frontend.get_protocol_features()?;
        frontend.set_protocol_features(offered & vhost::vhost_user::VhostUserProtocolFeatures::MQ)?;
    }
    Ok(())
}

fn set_up(frontend: &Frontend, memory: &Memory, queue: usize, ring: &Ring) -> Result<()> {
    frontend.set_vring_num(queue, ring.size)?;
    frontend.set_vring_base(queue, 0)?;
    let addresses = VringConfigData {
        queue_max_size: ring.size,
        queue_size: ring.size,
        flags: 0,
        desc_table_addr: memory.host_address(ring.descriptors),
        used_ring_addr: memory.host_address(ring.used),
        avail_ring_addr: memory.host_address(ring.available),
        log_addr: None,
    };
    Ok(frontend.set_vring_addr(queue, &addresses)?)
}

fn fill(memory: &Memory, ring: &Ring, length: usize, role: &Role) -> Result<()> {
    let mut bytes = vec![0; length];
    for number in 0..ring.size {
        let frame = &mut bytes[HEADER..];
        match role {
            Role::Sender { flows, .. } => frames::udp(frame, u32::from(number) % flows)?,
            Role::Receiver { .. } => frames::announcement(frame)?,
        }
        memory.slice(ring.buffer(number), length)?.write_slice(&bytes, 0)?;
    }
    Ok(())
}

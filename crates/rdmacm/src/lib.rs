//! `librdmacm.so.1`: connections between IP addresses, for programs on a host of Viaduct, over the guest's device.
//!
//! Owns: the C interface of `librdmacm` as Debian 12 has it ([`abi`]), its event channels and identifiers. The device
//! manages the connections: this library sends it control messages (`uverbs::cm`), receives its events, and makes queue
//! pairs ready through `libibverbs` at the right moments.
//!
//! Must not know: how connections are managed, how verbs are executed. It needs `libibverbs.so.1`, for its symbols and
//! for the paths of the devices' sockets (`viaduct_device`).
//!
//! [`rsocket`] has sockets over RDMA. XRC and enhanced connection establishment are refused.
//!
//! The shared library is linked with the versions of `librdmacm.map`; its symbols are those of `symbols.txt`.
//!
//! # Safety
//!
//! Functions of the C interface follow C's rules: a pointer is null where the man page allows it, or points to what
//! the man page says; identifiers, channels and events are those that this library made and that are not yet
//! destroyed.

pub mod abi;
pub mod address;
mod addrinfo;
mod channel;
mod connecting;
mod device;
mod endpoint;
mod error;
mod events;
mod id;
mod migrating;
mod multicast;
mod options;
mod queue_pair;
mod refused;
mod resolving;
mod returning;
pub mod rsocket;
mod verbs;

pub use addrinfo::{rdma_freeaddrinfo, rdma_getaddrinfo};
pub use channel::{rdma_create_event_channel, rdma_destroy_event_channel};
pub use connecting::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_listen, rdma_notify, rdma_reject,
    rdma_reject_ece,
};
pub use device::{rdma_free_devices, rdma_get_devices};
pub use endpoint::{rdma_create_ep, rdma_destroy_ep, rdma_get_request};
pub use events::{rdma_ack_cm_event, rdma_event_str, rdma_get_cm_event};
pub use id::{rdma_create_id, rdma_destroy_id, rdma_get_dst_port, rdma_get_src_port};
pub use migrating::rdma_migrate_id;
pub use multicast::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast};
pub use options::rdma_set_option;
pub use queue_pair::{
    rdma_create_qp, rdma_create_qp_ex, rdma_create_srq, rdma_create_srq_ex, rdma_destroy_qp,
    rdma_destroy_srq, rdma_init_qp_attr,
};
pub use resolving::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};

//! The properties of the device and its port.

use crate::abi::*;
use crate::advise::{CAPABILITIES, NO_CAPABILITIES};
use crate::context::Context;
use crate::errno::{Outcome, code};
use std::ffi::c_int;
use uverbs::{DeviceInfo, PortInfo, Reply, Request};

/// The identifier of an unregistered vendor.
const NO_VENDOR: u32 = 0x00ff_ffff;

fn count(of: u32) -> c_int {
    c_int::try_from(of).unwrap_or(c_int::MAX)
}

fn device_attr(info: &DeviceInfo) -> ibv_device_attr {
    ibv_device_attr {
        fw_ver: crate::device::text(&info.version),
        node_guid: info.node_guid.to_be(),
        sys_image_guid: info.node_guid.to_be(),
        max_mr_size: info.max_mr_size,
        // Pages may have any size from 4 KiB on.
        page_size_cap: 0xffff_f000,
        vendor_id: NO_VENDOR,
        vendor_part_id: 0,
        hw_ver: uverbs::VERSION,
        max_qp: count(info.max_qp),
        max_qp_wr: count(info.max_qp_wr),
        device_cap_flags: IBV_DEVICE_BAD_PKEY_CNTR
            | IBV_DEVICE_BAD_QKEY_CNTR
            | IBV_DEVICE_CURR_QP_STATE_MOD
            | IBV_DEVICE_PORT_ACTIVE_EVENT
            | IBV_DEVICE_SYS_IMAGE_GUID
            | IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_SRQ_RESIZE
            | IBV_DEVICE_MEM_WINDOW
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B
            // Programs get two of these extensions: local invalidation, and SEND with invalidate. Fast registration
            // is only for the kernel.
            | IBV_DEVICE_MEM_MGT_EXTENSIONS,
        max_sge: count(info.max_sge),
        max_sge_rd: count(info.max_sge),
        max_cq: count(info.max_cq),
        max_cqe: count(info.max_cqe),
        max_mr: count(info.max_mr),
        max_pd: count(info.max_pd),
        max_qp_rd_atom: count(info.max_rd_atomic),
        max_ee_rd_atom: 0,
        max_res_rd_atom: count(info.max_rd_atomic.saturating_mul(info.max_qp)),
        max_qp_init_rd_atom: count(info.max_rd_atomic),
        max_ee_init_rd_atom: 0,
        atomic_cap: IBV_ATOMIC_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: count(info.max_mw),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: count(info.max_mcast_grp),
        max_mcast_qp_attach: count(info.max_mcast_qp_attach),
        max_total_mcast_qp_attach: count(info.max_total_mcast_qp_attach),
        max_ah: count(info.max_ah),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: count(info.max_srq),
        max_srq_wr: count(info.max_srq_wr),
        max_srq_sge: count(info.max_srq_sge),
        max_pkeys: 1,
        // 4.096 us times two to the power of this: how much longer an answer may take when the device's CPU is busy.
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: a context of ours, and room for the attributes.
    unsafe { attr.write(device_attr(Context::of(context).link.info())) };
    0
}

pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: the program's input, if it gave one.
    if !input.is_null() && unsafe { (*input).comp_mask } != 0 || size < size_of::<ibv_device_attr>() {
        return crate::errno::set(libc::EINVAL);
    }
    // SAFETY: a context of ours.
    let link = &unsafe { Context::of(context) }.link;
    let info = ibv_device_attr_ex {
        orig_attr: device_attr(link.info()),
        comp_mask: 0,
        odp_caps: if link.is_remote() { NO_CAPABILITIES } else { CAPABILITIES },
        completion_timestamp_mask: u64::MAX,
        // kHz: timestamps are nanoseconds.
        hca_core_clock: 1_000_000,
        device_cap_flags_ex: 0,
        tso_caps: Default::default(),
        rss_caps: Default::default(),
        max_wq_type_rq: 0,
        packet_pacing_caps: Default::default(),
        raw_packet_caps: 0,
        tm_caps: Default::default(),
        cq_mod_caps: Default::default(),
        max_dm_size: 0,
        pci_atomic_caps: Default::default(),
        xrc_odp_caps: 0,
        phys_port_cnt_ex: 1,
    };
    // SAFETY: the program says how much room there is.
    unsafe { fill(attr.cast(), size, &info) };
    0
}

/// Fills as much of a structure as the program knows. Fields that we don't know become zero.
///
/// # Safety
/// There must be room for `size` bytes.
unsafe fn fill<T>(to: *mut u8, size: usize, from: &T) {
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's promise, and no more than the source has. Padding is copied as it is.
    unsafe {
        to.write_bytes(0, size);
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(from).cast(), to, known);
    }
}

/// Returns the current state of the port.
///
/// # Errors
/// `EINVAL` if it is not port 1; the device's error.
pub fn port(context: &Context, number: u32) -> Outcome<PortInfo> {
    if number != 1 {
        return Err(libc::EINVAL);
    }
    match context.link.ask(&Request::QueryPort)? {
        Reply::Port(port) => Ok(port),
        _ => Err(libc::EIO),
    }
}

fn port_attr(info: &PortInfo) -> ibv_port_attr {
    ibv_port_attr {
        state: if info.is_active { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
        max_mtu: IBV_MTU_4096,
        active_mtu: info.active_mtu,
        gid_tbl_len: c_int::try_from(info.gids.len()).unwrap_or(c_int::MAX),
        port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: 1 << 31,
        bad_pkey_cntr: info.bad_pkeys,
        qkey_viol_cntr: info.qkey_violations,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        // There is no physical line with a speed, but programs use the value for estimates: 4 lanes of 25 Gbit/s.
        active_width: 2,
        active_speed: 32,
        // 5 is LinkUp, 3 is Disabled.
        phys_state: if info.is_active { 5 } else { 3 },
        link_layer: IBV_LINK_LAYER_ETHERNET,
        flags: IBV_QPF_GRH_REQUIRED,
        ..ibv_port_attr::default()
    }
}

pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    number: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: a context of ours, and the room that the program says.
    unsafe {
        let outcome = port(Context::of(context), number.into());
        code(outcome.map(|info| fill(attr.cast(), size, &port_attr(&info))))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    number: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: programs that call it by this name have that much room.
    unsafe { query_port(context, number, attr, COMPAT_PORT_ATTR) }
}

pub unsafe extern "C" fn query_rt_values(_context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    // SAFETY: the program's structure.
    let values = unsafe { &mut *values };
    if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
        // SAFETY: room for a time. It is the same clock as for completions' timestamps.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut values.raw_clock) };
    }
    values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
    0
}

//! Conversions of the kernel's structures to those that programs know.

use crate::abi::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const ib_uverbs_ah_attr) {
    // SAFETY: both are the program's.
    unsafe { to.write(address(&*from)) };
}

fn address(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    let grh = ibv_global_route {
        dgid: ibv_gid { raw: from.dgid },
        flow_label: from.flow_label,
        sgid_index: from.sgid_index,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
    };
    ibv_ah_attr {
        grh,
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// Copies attributes, except the state and the rate limit: `to` keeps its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const ib_uverbs_qp_attr) {
    // SAFETY: both are the program's.
    let (to, from) = unsafe { (&mut *to, &*from) };
    let cap = ibv_qp_cap {
        max_send_wr: from.max_send_wr,
        max_recv_wr: from.max_recv_wr,
        max_send_sge: from.max_send_sge,
        max_recv_sge: from.max_recv_sge,
        max_inline_data: from.max_inline_data,
    };
    *to = ibv_qp_attr {
        qp_state: to.qp_state,
        cur_qp_state: from.cur_qp_state,
        path_mtu: from.path_mtu,
        path_mig_state: from.path_mig_state,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap,
        ah_attr: address(&from.ah_attr),
        alt_ah_attr: address(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: to.rate_limit,
    };
}

/// Copies the fields that have the same name and type in both path records.
macro_rules! shared {
    ($to:ident, $from:ident: $($field:ident),*) => { $($to.$field = $from.$field;)* };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    // SAFETY: both are the program's.
    let (to, from) = unsafe { (&mut *to, &*from) };
    shared!(to, from: dlid, slid, flow_label, hop_limit, traffic_class, numb_path, pkey, sl, mtu_selector);
    shared!(to, from: rate_selector, rate, packet_life_time_selector, packet_life_time, preference);
    (to.dgid.raw, to.sgid.raw, to.mtu) = (from.dgid, from.sgid, from.mtu as u8);
    (to.raw_traffic, to.reversible) = (from.raw_traffic as i32, from.reversible as i32);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut ib_user_path_rec, from: *const ibv_sa_path_rec) {
    // SAFETY: both are the program's.
    let (to, from) = unsafe { (&mut *to, &*from) };
    shared!(to, from: dlid, slid, flow_label, hop_limit, traffic_class, numb_path, pkey, sl, mtu_selector);
    shared!(to, from: rate_selector, rate, packet_life_time_selector, packet_life_time, preference);
    (to.dgid, to.sgid, to.mtu) = (from.dgid.raw, from.sgid.raw, from.mtu.into());
    (to.raw_traffic, to.reversible) = (from.raw_traffic as u32, from.reversible as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_record_survives_both_ways() {
        let record = ib_user_path_rec {
            dgid: [1; 16],
            sgid: [2; 16],
            dlid: 3,
            slid: 4,
            raw_traffic: 5,
            flow_label: 6,
            reversible: 7,
            mtu: 8,
            pkey: 9,
            hop_limit: 10,
            traffic_class: 11,
            numb_path: 12,
            sl: 13,
            mtu_selector: 14,
            rate_selector: 15,
            rate: 16,
            packet_life_time_selector: 17,
            packet_life_time: 18,
            preference: 19,
        };
        let (mut known, mut back) = (ibv_sa_path_rec::default(), ib_user_path_rec::default());
        // SAFETY: places of our own.
        unsafe {
            ibv_copy_path_rec_from_kern(&raw mut known, &raw const record);
            ibv_copy_path_rec_to_kern(&raw mut back, &raw const known);
        }
        assert_eq!(back, record);
    }
}

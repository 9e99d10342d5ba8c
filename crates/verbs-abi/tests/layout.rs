//! Structures compared with the system's headers: a C program prints their layout.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;
use verbs_abi::*;

/// A structure and the offsets of its fields, according to C and to us.
struct Layout {
    c: String,
    ours: Vec<(String, usize)>,
}

/// A structure that is longer at the front in newer headers; programs use its end.
const GROWS_AT_FRONT: &str = "struct verbs_context";
/// Structures that are longer at the end in newer headers.
const GROW: [&str; 3] = ["struct ibv_qp_ex", "struct ibv_cq_ex", "struct ibv_device_attr_ex"];

/// Takes `"struct name" Ours { field, "their.name" = field.of.ours }`.
macro_rules! layouts {
    ($($c:literal $ours:ty { $($theirs:literal = $($field:ident).+),* })*) => {
        vec![$(Layout {
            c: $c.into(),
            ours: vec![
                (String::new(), size_of::<$ours>()),
                $(($theirs.into(), offset_of!($ours, $($field).+))),*
            ],
        }),*]
    };
}

/// Takes structures whose fields have the same names on both sides.
macro_rules! same {
    ($($c:literal $ours:ty { $($field:ident),* $(,)? })*) => {
        layouts! { $($c $ours { $("" = $field),* })* }
            .into_iter()
            .zip([$(vec![$(stringify!($field)),*]),*])
            .map(|(mut layout, names)| {
                for (entry, name) in layout.ours[1..].iter_mut().zip(names) {
                    entry.0 = name.into();
                }
                layout
            })
            .collect::<Vec<_>>()
    };
}

fn devices() -> Vec<Layout> {
    let mut all = same! {
        "union ibv_gid" ibv_gid { raw }
        "struct ibv_gid_entry" ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        "struct ibv_device" ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        "struct ibv_device_attr" ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
            max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
            max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd,
            max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach,
            max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
            phys_port_cnt,
        }
        "struct ibv_device_attr_ex" ibv_device_attr_ex {
            orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock, device_cap_flags_ex, tso_caps,
            rss_caps, max_wq_type_rq, packet_pacing_caps, raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size,
            pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex,
        }
        "struct ibv_query_device_ex_input" ibv_query_device_ex_input { comp_mask }
        "struct ibv_port_attr" ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
            pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
            active_speed, phys_state, link_layer, flags, port_cap_flags2,
        }
        "struct ibv_values_ex" ibv_values_ex { comp_mask, raw_clock }
        "struct ibv_context_ops" ibv_context_ops {
            alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv,
        }
        "struct ibv_context" ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        "struct verbs_context" verbs_context {
            query_port, advise_mr, alloc_parent_domain, dealloc_td, alloc_td, query_rt_values, create_cq_ex, query_device_ex,
            create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, sz, context,
        }
        "struct ibv_async_event" ibv_async_event { element, event_type }
    };
    all.extend(layouts! { "struct verbs_context" verbs_context { "priv" = priv_ } });
    all
}

fn objects() -> Vec<Layout> {
    let mut all = same! {
        "struct ibv_pd" ibv_pd { context, handle }
        "struct ibv_td" ibv_td { context }
        "struct ibv_mw" ibv_mw { context, pd, rkey, handle }
        "struct ibv_mw_bind_info" ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        "struct ibv_mw_bind" ibv_mw_bind { wr_id, send_flags, bind_info }
        "struct ibv_td_init_attr" ibv_td_init_attr { comp_mask }
        "struct ibv_parent_domain_init_attr" ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
        "struct ibv_mr" ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        "struct ibv_ah" ibv_ah { context, pd, handle }
        "struct ibv_ece" ibv_ece { vendor_id, options, comp_mask }
        "struct ibv_global_route" ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        "struct ibv_ah_attr" ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        "struct ibv_grh" ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
        "struct ibv_comp_channel" ibv_comp_channel { context, fd, refcnt }
        "struct ibv_cq" ibv_cq {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed,
        }
        "struct ibv_cq_ex" ibv_cq_ex {
            comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len,
            read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits,
            read_completion_ts, read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns,
        }
        "struct ibv_cq_init_attr_ex" ibv_cq_init_attr_ex {
            cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain,
        }
        "struct ibv_poll_cq_attr" ibv_poll_cq_attr { comp_mask }
        "struct ibv_srq_init_attr" ibv_srq_init_attr { srq_context, attr }
        "struct ibv_srq_attr" ibv_srq_attr { max_wr, max_sge, srq_limit }
        "struct ibv_srq_init_attr_ex" ibv_srq_init_attr_ex {
            srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap,
        }
        "struct ibv_srq" ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        "struct ibv_qp_cap" ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        "struct ibv_qp_init_attr" ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        "struct ibv_qp_init_attr_ex" ibv_qp_init_attr_ex {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags,
        }
        "struct ibv_qp_attr" ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit,
        }
        "struct ibv_qp" ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed,
        }
        "struct ibv_qp_ex" ibv_qp_ex {
            qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv,
            wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso,
            wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge,
            wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write,
        }
    };
    all.extend(layouts! {
        "struct ibv_mw" ibv_mw { "type" = type_ }
        "struct ibv_send_wr" ibv_send_wr { "bind_mw.rkey" = bind_mw.rkey, "bind_mw.bind_info" = bind_mw.bind_info }
        "struct ibv_cq_ex" ibv_cq_ex { "context" = base.context, "async_events_completed" = base.async_events_completed }
        "struct ibv_wc_tm_info" ibv_wc_tm_info { "tag" = tag, "priv" = priv_ }
    });
    all
}

fn work() -> Vec<Layout> {
    let mut all = same! {
        "struct ibv_sge" ibv_sge { addr, length, lkey }
        "struct ibv_data_buf" ibv_data_buf { addr, length }
        "struct ibv_recv_wr" ibv_recv_wr { wr_id, next, sg_list, num_sge }
        "struct ibv_send_wr" ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, qp_type, bind_mw,
        }
        "struct ibv_wc" ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits,
        }
        "struct ib_uverbs_ah_attr" ib_uverbs_ah_attr { dlid, sl, src_path_bits, static_rate, is_global, port_num }
        "struct ib_uverbs_qp_attr" ib_uverbs_qp_attr {
            qp_attr_mask, qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, ah_attr, alt_ah_attr, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge,
            max_inline_data, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
        }
        "struct ib_user_path_rec" ib_user_path_rec {
            dgid, sgid, dlid, slid, raw_traffic, flow_label, reversible, mtu, pkey, hop_limit, traffic_class,
            numb_path, sl, mtu_selector, rate_selector, rate, packet_life_time_selector, packet_life_time, preference,
        }
        "struct ibv_sa_path_rec" ibv_sa_path_rec {
            dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible, numb_path, pkey, sl,
            mtu_selector, mtu, rate_selector, rate, packet_life_time_selector, packet_life_time, preference,
        }
    };
    all.extend(layouts! {
        "struct ibv_send_wr" ibv_send_wr {
            "wr.rdma.remote_addr" = wr.rdma.remote_addr, "wr.rdma.rkey" = wr.rdma.rkey,
            "wr.atomic.remote_addr" = wr.atomic.remote_addr, "wr.atomic.compare_add" = wr.atomic.compare_add,
            "wr.atomic.swap" = wr.atomic.swap, "wr.atomic.rkey" = wr.atomic.rkey, "wr.ud.ah" = wr.ud.ah,
            "wr.ud.remote_qpn" = wr.ud.remote_qpn, "wr.ud.remote_qkey" = wr.ud.remote_qkey
        }
        "struct ib_uverbs_ah_attr" ib_uverbs_ah_attr {
            "grh.dgid" = dgid, "grh.flow_label" = flow_label, "grh.sgid_index" = sgid_index, "grh.hop_limit" = hop_limit,
            "grh.traffic_class" = traffic_class
        }
    });
    all
}

/// Returns a C program that prints the size and the offsets of each structure, in the order of the list.
fn program(layouts: &[Layout]) -> String {
    let mut text = String::from(
        "#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n#include <rdma/ib_user_sa.h>\n\
         #include <rdma/ib_user_verbs.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for Layout { c, ours } in layouts {
        let _ = writeln!(text, "printf(\"%zu\\n\", sizeof({c}));");
        for (field, _) in &ours[1..] {
            let _ = writeln!(text, "printf(\"%zu\\n\", offsetof({c}, {field}));");
        }
    }
    text + "return 0; }\n"
}

#[test]
fn structures_lie_as_in_the_systems_headers() {
    let layouts: Vec<Layout> = [devices(), objects(), work()].into_iter().flatten().collect();
    let directory = tempfile::tempdir().unwrap();
    let (source, binary) = (directory.path().join("layout.c"), directory.path().join("layout"));
    std::fs::write(&source, program(&layouts)).unwrap();
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&binary).status().expect("no C compiler");
    assert!(compiled.success(), "the headers are missing: apt-get install libibverbs-dev");
    let output = Command::new(&binary).output().unwrap().stdout;
    let mut theirs = std::str::from_utf8(&output).unwrap().lines().map(|line| line.parse::<usize>().unwrap());
    let mut wrong = String::new();
    for Layout { c, ours } in &layouts {
        let (sizes, from_end) = ((ours[0].1, theirs.next().unwrap()), c == GROWS_AT_FRONT);
        if sizes.0 != sizes.1 && !(sizes.0 < sizes.1 && (from_end || GROW.contains(&c.as_str()))) {
            let _ = writeln!(wrong, "{c} has {} bytes, should have {}", sizes.0, sizes.1);
        }
        for (field, ours) in &ours[1..] {
            let theirs = theirs.next().unwrap();
            let is_same = if from_end { sizes.0 - ours == sizes.1 - theirs } else { *ours == theirs };
            if !is_same {
                let _ = writeln!(wrong, "{c}: {field} is at {ours}, should be at {theirs}");
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert_eq!(theirs.next(), None);
}

// SPDX-License-Identifier: Apache-2.0
//
// The rewriter, with the fields of beats and edits as ports.

module rewriter_sim
  import registers_pkg::*;
  import viaduct_pkg::*;
(
    input  logic         clk,
    input  logic         rst,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic         s_last,
    input  logic [ 15:0] s_size,
    input  logic [511:0] s_data,
    input  logic         edit_valid,
    output logic         edit_ready,
    input  logic         drop,
    input  logic         punt,
    input  logic [511:0] meta,
    input  logic [  9:0] port,
    input  logic [  7:0] strip,
    input  logic [ 15:0] kept,
    input  logic         ip,
    input  logic         v6,
    input  logic [  4:0] l3_at,
    input  logic [  5:0] header_len,
    input  logic         new_tos,
    input  logic [  7:0] tos,
    input  logic         decrement_ttl,
    input  logic         nat_src,
    input  logic         nat_dst,
    input  logic [ 31:0] new_src,
    input  logic [ 31:0] new_dst,
    input  logic [  2:0] l4,
    input  logic         ethernet,
    input  logic [ 47:0] mac,
    input  logic [ 15:0] ethertype,
    input  logic         encap,
    input  logic [  1:0] tunnel,
    input  logic         outer_v6,
    input  logic [ 23:0] id,
    input  logic [127:0] outer_src,
    input  logic [127:0] outer_dst,
    input  logic [ 47:0] outer_src_mac,
    input  logic [ 47:0] outer_dst_mac,
    input  logic [  7:0] outer_tos,
    input  logic [ 31:0] entropy,
    input  logic [ 16:0] checksum,
    output logic         m_valid,
    input  logic         m_ready,
    output logic         m_last,
    output logic         m_direct,
    output logic [  9:0] m_port,
    output logic [ 15:0] m_size,
    output logic [511:0] m_data
);

  edit_t edit;
  assign edit = '{
          drop: drop,
          punt: punt,
          meta: punt_meta_t'(meta),
          port: port,
          strip: strip,
          kept: kept,
          ip: ip,
          v6: v6,
          l3_at: l3_at,
          header_len: header_len,
          set_tos: new_tos,
          tos: tos,
          decrement_ttl: decrement_ttl,
          nat_src: nat_src,
          nat_dst: nat_dst,
          new_src: new_src,
          new_dst: new_dst,
          l4: l4_e'(l4),
          ethernet: ethernet,
          mac: mac,
          ethertype: ethertype,
          encap: encap,
          tunnel: tunnel_e'(tunnel),
          outer_v6: outer_v6,
          id: id,
          outer_src: outer_src,
          outer_dst: outer_dst,
          outer_src_mac: outer_src_mac,
          outer_dst_mac: outer_dst_mac,
          outer_tos: outer_tos,
          entropy: entropy,
          checksum: checksum
      };

  beat_t m_beat;
  rewriter rewriter (
      .clk,
      .rst,
      .s_valid,
      .s_ready,
      .s_beat('{last: s_last, direct: 1'b0, port: '0, size: s_size, data: s_data}),
      .edit_valid,
      .edit_ready,
      .edit,
      .m_valid,
      .m_ready,
      .m_beat
  );
  assign {m_last, m_direct, m_port, m_size, m_data} = m_beat;

endmodule

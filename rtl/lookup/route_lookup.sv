// SPDX-License-Identifier: Apache-2.0
//
// Looks a destination up in a network's routes, IPv4 or IPv6; results in any order. Latency 1 cycle more than those of
// `route4_lookup` and `route6_lookup`, throughput 1 result per cycle.
//
// A requester of the route memory for each level of the IPv4 tries (0 to 2) and each way of the IPv6 prefixes (3 and
// 4).
module route_lookup
  import viaduct_pkg::*;
#(
    parameter int unsigned Route6Bits = 18  // lines of a way of the IPv6 prefixes, binary logarithm
) (
    input  logic               clk,
    input  logic               rst,
    input  logic [319:0]       secret,
    input  logic               s_valid,
    output logic               s_ready,
    input  tag_t               s_tag,
    input  logic               s_v6,
    input  logic [127:0]       s_dst,
    input  vrf_id_t            s_vrf,
    input  logic [19:0]        s_root,
    input  logic [127:0]       s_lengths6,
    output logic               m_valid,
    output tag_t               m_tag,
    output forward_result_t    m_result,
    output logic  [4:0]        req_valid,
    input  logic  [4:0]        req_ready,
    output line_t [4:0]        req_line,
    output tag_t  [4:0]        req_context,
    input  logic  [4:0]        resp_valid,
    output logic  [4:0]        resp_ready,
    input  tag_t  [4:0]        resp_context,
    input  logic  [4:0][255:0] resp_data
);
  logic            ready4, ready6;
  logic            [1:0] valid, ready;
  tag_t            [1:0] tag;
  forward_result_t [1:0] result;

  assign s_ready = s_v6 ? ready6 : ready4;

  route4_lookup route4 (
      .clk, .rst,
      .s_valid(s_valid && !s_v6), .s_ready(ready4), .s_tag, .s_dst(s_dst[31:0]), .s_root,
      .m_valid(valid[0]), .m_ready(ready[0]), .m_tag(tag[0]), .m_result(result[0]),
      .req_valid(req_valid[2:0]), .req_ready(req_ready[2:0]), .req_line(req_line[2:0]),
      .req_context(req_context[2:0]), .resp_valid(resp_valid[2:0]), .resp_ready(resp_ready[2:0]),
      .resp_context(resp_context[2:0]), .resp_data(resp_data[2:0])
  );

  route6_lookup #(.Route6Bits(Route6Bits)) route6 (
      .clk, .rst, .secret,
      .s_valid(s_valid && s_v6), .s_ready(ready6), .s_tag, .s_vrf, .s_dst, .s_lengths6,
      .m_valid(valid[1]), .m_ready(ready[1]), .m_tag(tag[1]), .m_result(result[1]),
      .req_valid(req_valid[4:3]), .req_ready(req_ready[4:3]), .req_line(req_line[4:3]),
      .req_context(req_context[4:3]), .resp_valid(resp_valid[4:3]), .resp_ready(resp_ready[4:3]),
      .resp_context(resp_context[4:3]), .resp_data(resp_data[4:3])
  );

  packet_mux #(.Inputs(2), .Width($bits(tag_t) + $bits(forward_result_t))) results (
      .clk, .rst,
      .s_valid(valid), .s_ready(ready), .s_data({tag[1], result[1], tag[0], result[0]}), .s_last('1),
      .m_valid, .m_ready(1'b1), .m_data({m_tag, m_result}), .m_last()
  );
endmodule

// SPDX-License-Identifier: Apache-2.0
//
// Looks a packet's destination up in its network's routes, IPv4 or IPv6; results in any order. Latency 1 cycle more
// than those of `route4_lookup` and `route6_lookup`, throughput 1 result per cycle.
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
    input  lookup_t            s,
    output forward_found_t     found,
    output memory_req_t  [4:0] reqs,
    input  memory_resp_t [4:0] resps
);
  logic            ready4, ready6;
  logic            [1:0] valid, ready;
  tag_t            [1:0] tag;
  forward_result_t [1:0] result;

  assign s_ready = s.key.v6 ? ready6 : ready4;

  route4_lookup route4 (
      .clk, .rst,
      .s_valid(s_valid && !s.key.v6), .s_ready(ready4), .s_tag(s.tag), .s_dst(s.key.dst[31:0]), .s_root(s.root),
      .m_valid(valid[0]), .m_ready(ready[0]), .m_tag(tag[0]), .m_result(result[0]),
      .reqs(reqs[2:0]), .resps(resps[2:0])
  );

  route6_lookup #(.Route6Bits(Route6Bits)) route6 (
      .clk, .rst, .secret,
      .s_valid(s_valid && s.key.v6), .s_ready(ready6), .s_tag(s.tag), .s_vrf(s.key.vrf), .s_dst(s.key.dst),
      .s_lengths6(s.lengths6),
      .m_valid(valid[1]), .m_ready(ready[1]), .m_tag(tag[1]), .m_result(result[1]),
      .reqs(reqs[4:3]), .resps(resps[4:3])
  );

  packet_mux #(.Inputs(2), .Width($bits(tag_t) + $bits(forward_result_t))) results (
      .clk, .rst,
      .s_valid(valid), .s_ready(ready), .s_data({tag[1], result[1], tag[0], result[0]}), .s_last('1),
      .m_valid(found.valid), .m_ready(1'b1), .m_data({found.tag, found.result}), .m_last()
  );
endmodule

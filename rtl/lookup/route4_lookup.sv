// SPDX-License-Identifier: Apache-2.0
//
// Walks an IPv4 trie of 16, 8 and 8 bits, a requester of the route memory for each level; results in any order. Latency
// 5 cycles, 9 and 13 for one that ends on the second or third level, besides memory's, which comes once a level.
// Throughput 1 look-up per cycle where all end on one level, else at least 0.8, as results wait for each other. Answers
// of the memory wait for `m_ready` alone.
module route4_lookup
  import registers_pkg::*;
  import viaduct_pkg::*;
(
    input  logic               clk,
    input  logic               rst,
    input  logic               s_valid,
    output logic               s_ready,
    input  tag_t               s_tag,
    input  logic [31:0]        s_dst,
    input  logic [19:0]        s_root,       // of the network's trie, units of 256 KiB
    output logic               m_valid,
    input  logic               m_ready,
    output tag_t               m_tag,
    output forward_result_t    m_result,
    output memory_req_t  [2:0] reqs,
    input  memory_resp_t [2:0] resps
);
  localparam int unsigned Tags = 2 ** TagWidth;

  logic    [2:0] valid, ready, ends, ended_ready;
  tag_t    [2:0] tag;
  route4_t [2:0] entry;
  logic    [2:0][$bits(tag_t)+$bits(forward_result_t)-1:0] ended;
  logic    [2:1] deeper_ready;
  logic    [15:0] rest16;
  logic    [7:0]  rest8;

  route4_level #(.RestWidth(16), .Queue(16)) level1 (
      .clk, .rst,
      .s_valid, .s_ready, .s_tag, .s_line({s_root[13:0], s_dst[31:19]}), .s_entry(s_dst[18:16]), .s_rest(s_dst[15:0]),
      .m_valid(valid[0]), .m_ready(ready[0]), .m_tag(tag[0]), .m_entry(entry[0]), .m_rest(rest16),
      .req(reqs[0]), .resp(resps[0])
  );

  route4_level #(.RestWidth(8), .Queue(Tags)) level2 (
      .clk, .rst,
      .s_valid(valid[0] && !ends[0]), .s_ready(deeper_ready[1]), .s_tag(tag[0]),
      .s_line({entry[0].value[21:0], rest16[15:11]}), .s_entry(rest16[10:8]), .s_rest(rest16[7:0]),
      .m_valid(valid[1]), .m_ready(ready[1]), .m_tag(tag[1]), .m_entry(entry[1]), .m_rest(rest8),
      .req(reqs[1]), .resp(resps[1])
  );

  route4_level #(.RestWidth(1), .Queue(Tags)) level3 (
      .clk, .rst,
      .s_valid(valid[1] && !ends[1]), .s_ready(deeper_ready[2]), .s_tag(tag[1]),
      .s_line({entry[1].value[21:0], rest8[7:3]}), .s_entry(rest8[2:0]), .s_rest(1'b0),
      .m_valid(valid[2]), .m_ready(ready[2]), .m_tag(tag[2]), .m_entry(entry[2]), .m_rest(),
      .req(reqs[2]), .resp(resps[2])
  );

  always_comb begin
    for (int unsigned i = 0; i < 3; i++) begin
      // Below the third level there is nothing: what leads there is no route.
      ends[i]  = entry[i].kind != RouteKindChild || i == 2;
      ended[i] = {tag[i], bad_route4(entry[i]), entry[i].kind == RouteKindNexthop, entry[i].value[19:0]};
    end
  end

  assign ready =
      {ended_ready[2], ends[1] ? ended_ready[1] : deeper_ready[2], ends[0] ? ended_ready[0] : deeper_ready[1]};

  packet_mux #(.Inputs(3), .Width($bits(tag_t) + $bits(forward_result_t))) results (
      .clk, .rst,
      .s_valid(valid & ends), .s_ready(ended_ready), .s_data(ended), .s_last('1),
      .m_valid, .m_ready, .m_data({m_tag, m_result}), .m_last()
  );

`ifndef SYNTHESIS
  always_ff @(posedge clk) begin
    if (!rst) begin
      assert (!(valid[0] && !ends[0]) || deeper_ready[1]) else $error("more look-ups than tags");
      assert (!(valid[1] && !ends[1]) || deeper_ready[2]) else $error("more look-ups than tags");
    end
  end
`endif
endmodule

// SPDX-License-Identifier: Apache-2.0
//
// Fetches nexthops that are not on chip, as look-ups come upon them: those that have any of its sources say so, all others
// take no part. What was fetched is kept by tag until that is used again. Latency 2 cycles to the request, or 3 with more than
// one source, none from memory's answer to the mark; throughput 1 nexthop per cycle, in any order.
module nexthop_fetch
  import registers_pkg::*;
  import viaduct_pkg::*;
#(
    parameter int unsigned OnChip  = 16384,  // nexthops with lower numbers are not asked for
    parameter int unsigned Sources = 1
) (
    input  logic                      clk,
    input  logic                      rst,
    // What the sources found: at most one nexthop for a tag.
    input  logic        [Sources-1:0] s_valid,
    input  tag_t        [Sources-1:0] s_tag,
    input  nexthop_id_t [Sources-1:0] s_nexthop,
    output logic        [Sources-1:0] fetches,   // the tag's mark comes from here
    output logic                      m_valid,
    output tag_t                      m_tag,
    // What was fetched for a tag, 2 cycles later.
    input  logic                      step,
    input  tag_t                      tag,
    output nexthop_t                  nexthop,
    output memory_req_t               req,
    input  memory_resp_t              resp
);
  typedef struct packed {
    nexthop_id_t nexthop;
    tag_t        tag;
  } wanted_t;

  logic    [Sources-1:0] waits, taken;
  wanted_t [Sources-1:0] waiting;
  wanted_t               wanted;
  logic                  req_valid;

  for (genvar i = 0; i < Sources; i++) begin : g_source
    assign fetches[i] = s_valid[i] && in_memory(s_nexthop[i], OnChip);

    // As deep as there are tags: sources don't wait.
    fifo #(.Width($bits(wanted_t)), .Depth(2 ** TagWidth)) found (
        .clk, .rst,
        .s_valid(fetches[i]), .s_ready(), .s_data({s_nexthop[i], s_tag[i]}),
        .m_valid(waits[i]), .m_ready(taken[i]), .m_data(waiting[i]),
        .level(), .almost_full()
    );
  end

  if (Sources == 1) begin : g_one
    assign req_valid = waits;
    assign taken     = resp.req_ready;
    assign wanted    = waiting;
  end else begin : g_several
    packet_mux #(.Inputs(Sources), .Width($bits(wanted_t))) requests (
        .clk, .rst,
        .s_valid(waits), .s_ready(taken), .s_data(waiting), .s_last('1),
        .m_valid(req_valid), .m_ready(resp.req_ready), .m_data(wanted), .m_last()
    );
  end

  assign req     = '{valid: req_valid, line: line_t'(wanted.nexthop), tag: wanted.tag, resp_ready: 1'b1};
  assign m_valid = resp.valid;
  assign m_tag   = resp.tag;

  table_ram #(.Width(512), .Depth(2 ** TagWidth)) fetched (
      .clk, .step, .wr_valid(resp.valid), .wr_address(resp.tag), .wr_data(resp.data), .address(tag), .data(nexthop)
  );
endmodule

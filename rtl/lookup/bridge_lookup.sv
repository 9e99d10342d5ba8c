// SPDX-License-Identifier: Apache-2.0
//
// Looks a packet's MAC up in its network's part of the bridge table. Latency 11 cycles besides memory's, throughput 1
// look-up per cycle; results come in the order of the look-ups.
module bridge_lookup
  import registers_pkg::*;
  import viaduct_pkg::*;
#(
    parameter bit          Source     = 1'b0, // the source MAC; else the destination's
    parameter int unsigned BridgeBits = 15,   // lines of a way, binary logarithm
    parameter int unsigned Slots      = 512   // look-ups at once
) (
    input  logic               clk,
    input  logic               rst,
    input  logic [319:0]       secret,
    input  logic               s_valid,
    output logic               s_ready,
    input  lookup_t            s,
    output bridge_found_t      found,
    // The table's memory, a requester of it for each way.
    output memory_req_t  [1:0] reqs,
    input  memory_resp_t [1:0] resps
);
  typedef struct packed {
    tag_t        tag;
    vrf_id_t     vrf;
    logic [47:0] mac;
  } wanted_t;

  wanted_t           asked, wanted;
  logic              read;
  logic [1:0][255:0] line;
  bridge_result_t    result;

  assign asked = '{tag: s.tag, vrf: s.key.vrf, mac: Source ? s.mac_src : s.mac_dst};

  two_choices #(
      .Bits(BridgeBits), .Way0('0), .Way1(line_t'(1) << BridgeBits), .ContextWidth($bits(wanted_t)), .Slots(Slots)
  ) two_choices (
      .clk, .rst, .secret,
      .s_valid, .s_ready, .s_key({260'd0, asked.vrf, asked.mac}), .s_context(asked),
      .m_valid(read), .m_ready(1'b1), .m_context(wanted), .m_line(line),
      .reqs, .resps
  );

  // In one of four places, and for the time of a move in two, alike.
  bridge_t [3:0] entries;
  assign entries = line;

  always_comb begin
    result = '0;
    for (int unsigned i = 0; i < 4; i++) result.bad = result.bad || bad_bridge(entries[i]);
    for (int unsigned i = 0; i < 4; i++) begin
      if (entries[i].valid && entries[i].vrf == wanted.vrf && entries[i].mac == wanted.mac) begin
        result = '{
            bad: 1'b0, found: 1'b1, fixed: entries[i].fixed, nexthop: entries[i].nexthop,
            at_tunnel: entries[i].at_tunnel, at: entries[i].at
        };
      end
    end
  end

  always_ff @(posedge clk) begin
    found <= '{valid: read && !rst, tag: wanted.tag, result: result};
  end
endmodule

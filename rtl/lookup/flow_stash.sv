// SPDX-License-Identifier: Apache-2.0
//
// The stash: a few flows that found no place in their buckets, each compared with the key. A key given in cycle 0 is
// answered in cycle 1; throughput 1 key per cycle; never stalls. A write takes the place of a flow at once: a key finds
// the old one or the new one. Empty after reset.
module flow_stash
  import registers_pkg::*;
  import viaduct_pkg::*;
#(
    localparam int unsigned NumberWidth = $clog2(StashFlows)
) (
    input  logic                   clk,
    input  logic                   rst,
    input  logic                   wr_valid,
    input  logic [NumberWidth-1:0] wr_number,
    input  logic [511:0]           wr_data,
    input  flow_key_t              s_key,
    output flow_result_t           m_result
);
  // Keys are compared all at once, of what belongs to them one is read: so that is in a RAM.
  flow_key_t             keys   [StashFlows];
  flow_result_t          results[StashFlows];
  logic [StashFlows-1:0] used, hits;

  // ---- Writes. Who finds a key reads its result a cycle later, so there the new one comes a cycle later, too.

  flow4_t flow4;
  flow6_t flow6;
  logic   whole;
  logic   late_valid;
  logic [NumberWidth-1:0] late_number;
  flow_result_t late_result;

  assign flow4 = wr_data[255:0];
  assign flow6 = wr_data;
  assign whole = flow_whole6(flow6);

  always_ff @(posedge clk) begin
    if (wr_valid) begin
      used[wr_number] <= whole ? flow6.v6 : flow4.kind == FlowKindV4 && !flow4.v6;
      keys[wr_number] <= whole ? {flow6.dst, flow6[191:0]} : {96'd0, flow4.dst, flow4[127:64], 96'd0, flow4.src};
    end
    late_valid  <= wr_valid && !rst;
    late_number <= wr_number;
    late_result <= whole ? flow_result6(flow6) : flow_result4(flow4);
    if (late_valid) results[late_number] <= late_result;
    if (rst) used <= '0;
  end

  // ---- Cycle 0: which of them it is. Cycle 1: what that one says; of several the first.

  logic [NumberWidth-1:0] number;

  always_ff @(posedge clk) for (int i = 0; i < StashFlows; i++) hits[i] <= used[i] && keys[i] == s_key;

  always_comb begin
    number = '0;
    for (int i = StashFlows - 1; i >= 0; i--) if (hits[i]) number = NumberWidth'(i);
    m_result = hits == '0 ? '0 : results[number];
  end
endmodule

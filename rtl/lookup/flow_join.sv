// SPDX-License-Identifier: Apache-2.0
//
// Joins what the halves of the flow table said to a tag, in whichever order they did: the one that comes second gives the
// result. Latency 5 cycles from there, throughput 1 tag per cycle. Half 1 has to wait where `ready` is not set, for up to
// 8 tags that are on their way. Not ready for 2^TagWidth cycles after reset.
module flow_join
  import viaduct_pkg::*;
(
    input  logic               clk,
    input  logic               rst,
    output logic               ready,
    output logic               ready_1,
    input  logic         [1:0] s_valid,
    input  tag_t         [1:0] s_tag,
    input  flow_result_t [1:0] s_result,
    output logic               m_valid,
    output tag_t               m_tag,
    output flow_result_t       m_result
);
  typedef struct packed {
    tag_t         tag;
    flow_result_t result;
  } joined_t;

  // Each half turns a tag's phase as it answers: both have where the phases are equal.
  logic phases_0[1 << TagWidth];
  logic phases_1[1 << TagWidth];
  flow_result_t results_0[1 << TagWidth];
  flow_result_t results_1[1 << TagWidth];

  logic [TagWidth:0] cleared;
  assign ready = cleared[TagWidth];
  always_ff @(posedge clk) begin
    if (rst) cleared <= '0;
    else if (!ready) cleared <= cleared + 1'b1;
  end

  // ---- Cycles 0 and 1: whether the other half came first. If both come at once, half 0 did.

  logic [1:0] valid, own, other, other_came, second;
  tag_t [1:0] tag;
  flow_result_t [1:0] result;

  assign second[0] = valid[0] && own[0] != (other[0] ^ other_came[0]);
  assign second[1] = valid[1] && own[1] != (other[1] ^ other_came[1] ^ (valid[0] && tag[0] == tag[1]));

  always_ff @(posedge clk) begin
    valid <= rst ? '0 : s_valid;
    own   <= {phases_1[s_tag[1]], phases_0[s_tag[0]]};
    other <= {phases_0[s_tag[1]], phases_1[s_tag[0]]};
    // What is being written as it is read.
    for (int h = 0; h < 2; h++) other_came[h] <= valid[1-h] && tag[1-h] == s_tag[h];
    tag    <= s_tag;
    result <= s_result;
  end

  always_ff @(posedge clk) begin
    if (!ready) begin
      phases_0[cleared[TagWidth-1:0]] <= 1'b0;
      phases_1[cleared[TagWidth-1:0]] <= 1'b0;
    end else begin
      if (valid[0]) phases_0[tag[0]] <= !own[0];
      if (valid[1]) phases_1[tag[1]] <= !own[1];
    end
    if (valid[0]) results_0[tag[0]] <= result[0];
    if (valid[1]) results_1[tag[1]] <= result[1];
  end

  // ---- Cycles 2 and 3: what the other half said.

  logic [1:0] reading, read;
  joined_t [1:0] mine, kept, joined;
  flow_result_t [1:0] theirs;

  for (genvar h = 0; h < 2; h++) begin : g_joined
    // A flow in one half is found even if the other half could not be read.
    assign joined[h] = '{
        tag: kept[h].tag,
        result: kept[h].result.hit || kept[h].result.bad && !theirs[h].hit ? kept[h].result : theirs[h]
    };
  end

  always_ff @(posedge clk) begin
    reading <= rst ? '0 : second;
    read    <= rst ? '0 : reading;
    for (int h = 0; h < 2; h++) begin
      if (second[h]) mine[h] <= '{tag: tag[h], result: result[h]};
      if (reading[h]) kept[h] <= mine[h];
    end
    if (reading[0]) theirs[0] <= results_1[mine[0].tag];
    if (reading[1]) theirs[1] <= results_0[mine[1].tag];
  end

  // ---- Half 0 is given at once, half 1 in between.

  localparam int unsigned Depth = 16;
  joined_t queued;
  logic queued_valid, unused_ready;
  logic [$clog2(Depth + 2)-1:0] level;

  queue #(
      .Width($bits(joined_t)),
      .Depth(Depth)
  ) later (
      .clk,
      .rst,
      .s_valid(read[1]),
      .s_ready(unused_ready),
      .s_data (joined[1]),
      .m_valid(queued_valid),
      .m_ready(!read[0]),
      .m_data (queued),
      .level
  );

  always_ff @(posedge clk) begin
    m_valid           <= !rst && (read[0] || queued_valid);
    {m_tag, m_result} <= read[0] ? joined[0] : queued;
    ready_1           <= 32'(level) <= Depth - 9;
  end
endmodule

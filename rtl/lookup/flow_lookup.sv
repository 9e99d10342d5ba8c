// SPDX-License-Identifier: Apache-2.0
//
// A pipe's look-ups in the flow table: both buckets in which a key may be are read at once, one from each half of the table.
// Flows that found no place there are in the stash: it is asked when the bucket of half 0 is there, as long as that is
// compared, so that it is never waited for.
// Latency 11 cycles besides the memory's, throughput 1 look-up per cycle, results in any order. A tag may be used again once
// its result came. Results must be taken as they come; answers of the memories are always taken in the end. Not ready for
// 2^TagWidth cycles after reset.
module flow_lookup
  import registers_pkg::*;
  import viaduct_pkg::*;
#(
    parameter int unsigned BucketBits = 23  // binary logarithm of the buckets of a half
) (
    input  logic                         clk,
    input  logic                         rst,
    input  logic [SecretWidth-1:0]       secret,
    input  write_t                       write,    // those of the stash are its
    input  logic                         s_valid,
    output logic                         s_ready,
    input  lookup_t                      s,
    output flow_found_t                  found,
    // To the memories of both halves.
    output memory_req_t  [1:0]           reqs,
    input  memory_resp_t [1:0]           resps
);
  localparam int unsigned Depth = 16;

  logic take, join_ready, hashed;
  logic [1:0][31:0] choice;
  tag_t hashed_tag;
  logic [1:0] room, unused_ready, resp_ready;
  logic [1:0] matched;
  tag_t [1:0] matched_tag;
  flow_result_t [1:0] matched_result;
  flow_key_t [1:0] compared;
  flow_result_t [1:0] otherwise;

  assign take = s_valid && s_ready;

  // Up to 5 keys are on their way to the queues.
  always_ff @(posedge clk) s_ready <= !rst && join_ready && &room;

  hash #(
      .ContextWidth(TagWidth)
  ) hasher (
      .clk,
      .rst,
      .s_valid  (take),
      .s_key    (s.key),
      .secret,
      .s_context(s.tag),
      .m_valid  (hashed),
      .m_a      (choice[0]),
      .m_b      (choice[1]),
      .m_context(hashed_tag)
  );

  for (genvar h = 0; h < 2; h++) begin : g_half
    logic [BucketBits-1:0] bucket;
    logic req_valid;
    tag_t req_tag;
    logic [$clog2(Depth + 2)-1:0] level;

    assign room[h] = 32'(level) <= Depth - 6;
    assign reqs[h] = '{valid: req_valid, line: line_t'(bucket), tag: req_tag, resp_ready: resp_ready[h]};

    queue #(
        .Width(BucketBits + TagWidth),
        .Depth(Depth)
    ) requests (
        .clk,
        .rst,
        .s_valid(hashed),
        .s_ready(unused_ready[h]),
        .s_data ({choice[h][BucketBits-1:0], hashed_tag}),
        .m_valid(req_valid),
        .m_ready(resps[h].req_ready),
        .m_data ({bucket, req_tag}),
        .level
    );

    flow_match match (
        .clk,
        .rst,
        .key_valid(take),
        .key_tag  (s.tag),
        .key      (s.key),
        .s_valid  (resps[h].valid && resp_ready[h]),
        .s_tag    (resps[h].tag),
        .s_bucket (resps[h].data),
        .compared (compared[h]),
        .otherwise(otherwise[h]),
        .m_valid  (matched[h]),
        .m_tag    (matched_tag[h]),
        .m_result (matched_result[h])
    );

    if (BucketBits < 32) begin : g_unused
      logic [31-BucketBits:0] unused_choice;
      assign unused_choice = choice[h][31:BucketBits];
    end
  end

  flow_stash stash (
      .clk,
      .rst,
      .wr_valid (write.valid && write.into == TableStash),
      .wr_number(write.address[$clog2(StashFlows)-1:0]),
      .wr_data  (write.data),
      .s_key   (compared[0]),
      .m_result(otherwise[0])
  );
  assign otherwise[1] = '0;

  assign resp_ready[0] = 1'b1;

  flow_join both (
      .clk,
      .rst,
      .ready   (join_ready),
      .ready_1 (resp_ready[1]),
      .s_valid (matched),
      .s_tag   (matched_tag),
      .s_result(matched_result),
      .m_valid (found.valid),
      .m_tag   (found.tag),
      .m_result(found.result)
  );
endmodule

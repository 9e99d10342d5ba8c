// SPDX-License-Identifier: Apache-2.0
//
// A bank of a memory: one HBM pseudo channel behind a cache of hot lines. A request is for one line and for any number of
// requesters at once, each with a context of its own; so is its answer. A line in the cache is answered from there; for one
// that is on its way the request waits; else it is read. Answers come in any order. Latency of a cached line 5 cycles, of
// another 5 besides memory's. Throughput 1 request per cycle, of those read 32 bytes per cycle.
//
// Waits for nothing but memory and the requesters' taking their answers, and starts on no request before there is room for
// whatever may come of it: so nothing behind `look` ever stalls.
module bank #(
    parameter  int unsigned Requesters   = 4,
    parameter  int unsigned LineBytes    = 64,            // 32 or 64
    parameter  int unsigned LineWidth    = 24,
    parameter  int unsigned ContextWidth = 10,
    parameter  int unsigned CacheLines   = 512,
    parameter  int unsigned Ids          = 64,
    localparam int unsigned DataWidth    = 8 * LineBytes
) (
    input  logic                                    clk,
    input  logic                                    rst,
    input  logic                                    req_valid,
    output logic                                    req_ready,
    input  logic [   LineWidth-1:0]                 req_line,
    input  logic [  Requesters-1:0]                 req_mask,      // who wants it: at least one
    input  logic [  Requesters-1:0][ContextWidth-1:0] req_context,
    // An answer stays until all whom it is for have taken it.
    output logic [  Requesters-1:0]                 resp_mask,     // who has not taken it
    input  logic [  Requesters-1:0]                 resp_taken,    // who takes it in this cycle
    output logic [  Requesters-1:0][ContextWidth-1:0] resp_context,
    output logic [   DataWidth-1:0]                 resp_data,
    input  logic                                    wr_valid,
    output logic                                    wr_ready,
    input  logic [   LineWidth-1:0]                 wr_line,
    input  logic                                    wr_half,
    input  logic [           255:0]                 wr_data,
    output logic                                    wr_done,
    output logic                                    wr_error,      // pulse, before `wr_done`
    output logic                                    error,         // pulse, of reads and writes
    output logic                                    arvalid,
    input  logic                                    arready,
    output logic [             5:0]                 arid,
    output logic [            32:0]                 araddr,
    input  logic                                    rvalid,
    output logic                                    rready,
    input  logic [             5:0]                 rid,
    input  logic [           255:0]                 rdata,
    input  logic [             1:0]                 rresp,
    input  logic                                    rlast,
    output logic                                    awvalid,
    input  logic                                    awready,
    output logic [            32:0]                 awaddr,
    output logic                                    wvalid,
    input  logic                                    wready,
    output logic [           255:0]                 wdata,
    input  logic                                    bvalid,
    output logic                                    bready,
    input  logic [             1:0]                 bresp
);
  // `reads` has all of its IDs before the first look-up.
  if (CacheLines < Ids) $error("bank: CacheLines must be at least Ids");
  localparam int unsigned IdWidth = $clog2(Ids);
  localparam int unsigned IndexWidth = $clog2(CacheLines);
  localparam int unsigned Hits = 4;

  // Whom an answer is for.
  typedef struct packed {
    logic [Requesters-1:0]                   mask;
    logic [Requesters-1:0][ContextWidth-1:0] context_of;
  } whom_t;

  typedef struct packed {
    logic [LineWidth-1:0] line;
    whom_t                whom;
  } request_t;

  // What is kept of a read.
  typedef struct packed {
    logic                  cached;  // its bytes go to the cache: place `index`, with `phase`
    logic                  phase;
    logic [IndexWidth-1:0] index;
    whom_t                 whom;
  } read_t;

  typedef struct packed {
    whom_t                whom;
    logic [DataWidth-1:0] data;
  } answer_t;

  request_t fresh, again, next, looked;
  logic fresh_valid, again_valid, take_fresh, take_again, take_forget;
  logic read_room, hit_room, waiter_room, cache_ready, room;
  logic forget_valid;
  logic [LineWidth-1:0] forget_line;
  logic looked_request, looked_again, looked_forget;
  logic hit, coming, vacant, phase;
  logic [IdWidth-1:0] coming_id, read_id, done_id;
  logic [IndexWidth-1:0] index;
  logic answer_hit, wait_for, start;
  logic hit_valid;
  whom_t hit_whom;
  logic [DataWidth-1:0] hit_data;
  logic done_valid, done_ready, done, done_bad;
  read_t read_done;
  logic [DataWidth-1:0] done_data;
  answer_t queued;
  logic queued_valid, queued_ready, output_free;
  logic [2:0] queued_hits;
  logic read_error;
  logic [2:0] unused_level;
  logic unused_ready;

  // ---- Cycle 0: whose turn it is. A line to be forgotten, then who has waited, then who is new.

  queue #(
      .Width($bits(request_t)),
      .Depth(4)
  ) requests (
      .clk,
      .rst,
      .s_valid(req_valid),
      .s_ready(req_ready),
      .s_data ({req_line, req_mask, req_context}),
      .m_valid(fresh_valid),
      .m_ready(take_fresh),
      .m_data (fresh),
      .level  (unused_level)
  );

  assign hit_room    = 32'(queued_hits) + 32'(looked_request) + 32'(hit_valid) < Hits;
  assign room        = cache_ready && read_room && hit_room;
  assign take_forget = forget_valid && cache_ready;
  assign take_again  = again_valid && room && !take_forget;
  assign take_fresh  = fresh_valid && room && waiter_room && !take_forget && !again_valid;
  assign next        = take_again ? again : fresh;

  // ---- Cycle 1: what is known of the line. Who has waited once doesn't wait again (the line was forgotten, or another took
  // its place), lest there be no end to it.

  always_ff @(posedge clk) begin
    looked_request <= !rst && (take_fresh || take_again);
    looked_forget  <= !rst && take_forget;
    looked_again   <= take_again;
    if (take_fresh || take_again) looked <= next;
  end

  cache #(
      .LineBytes (LineBytes),
      .LineWidth (LineWidth),
      .CacheLines(CacheLines),
      .IdWidth   (IdWidth)
  ) hot_lines (
      .clk,
      .rst,
      .ready     (cache_ready),
      .look      (take_forget || take_fresh || take_again),
      .look_line (take_forget ? forget_line : next.line),
      .hit,
      .coming,
      .coming_id,
      .vacant,
      .index,
      .phase,
      .claim     (start && vacant),
      .claim_id  (read_id),
      .forget    (looked_forget && (hit || coming)),
      .data      (hit_data),
      .fill      (done && read_done.cached),
      .fill_index(read_done.index),
      .fill_phase(read_done.phase),
      .fill_bad  (done_bad),
      .fill_data (done_data)
  );

  assign answer_hit = looked_request && hit;
  assign wait_for   = looked_request && coming && !looked_again;
  assign start      = looked_request && !answer_hit && !wait_for;

  waiters #(
      .Width  ($bits(request_t)),
      .IdWidth(IdWidth)
  ) waiting (
      .clk,
      .rst,
      .s_valid(wait_for),
      .s_data (looked),
      .s_id   (coming_id),
      .room   (waiter_room),
      .wake   (done),
      .wake_id(done_id),
      .m_valid(again_valid),
      .m_ready(take_again),
      .m_data (again)
  );

  reads #(
      .LineBytes   (LineBytes),
      .LineWidth   (LineWidth),
      .ContextWidth($bits(read_t)),
      .Ids         (Ids)
  ) reading (
      .clk,
      .rst,
      .room         (read_room),
      .id           (read_id),
      .start,
      .start_line   (looked.line),
      .start_context({vacant, phase, index, looked.whom}),
      .done_valid,
      .done_ready,
      .done_id,
      .done_context (read_done),
      .done_data,
      .done_bad,
      .error        (read_error),
      .arvalid,
      .arready,
      .arid,
      .araddr,
      .rvalid,
      .rready,
      .rid,
      .rdata,
      .rresp,
      .rlast
  );

  writes #(
      .LineBytes(LineBytes),
      .LineWidth(LineWidth)
  ) writing (
      .clk,
      .rst,
      .wr_valid,
      .wr_ready,
      .wr_line,
      .wr_half,
      .wr_data,
      .wr_done,
      .forget_valid,
      .forget_ready(take_forget),
      .forget_line,
      .error       (wr_error),
      .awvalid,
      .awready,
      .awaddr,
      .wvalid,
      .wready,
      .wdata,
      .bvalid,
      .bready,
      .bresp
  );

  // ---- Cycle 2: a cached line's bytes.

  always_ff @(posedge clk) begin
    hit_valid <= answer_hit && !rst;
    if (answer_hit) hit_whom <= looked.whom;
    error <= read_error || wr_error;
  end

  queue #(
      .Width($bits(answer_t)),
      .Depth(Hits)
  ) hits (
      .clk,
      .rst,
      .s_valid(hit_valid),
      .s_ready(unused_ready),
      .s_data ({hit_whom, hit_data}),
      .m_valid(queued_valid),
      .m_ready(queued_ready),
      .m_data (queued),
      .level  (queued_hits)
  );

  // ---- The answer: what was read first, since that makes room for reads.

  assign output_free  = (resp_mask & ~resp_taken) == '0;
  assign done_ready   = output_free;
  assign queued_ready = output_free && !done_valid;
  assign done         = done_valid && done_ready;

  always_ff @(posedge clk) begin
    resp_mask <= resp_mask & ~resp_taken;
    if (done) begin
      {resp_mask, resp_context} <= read_done.whom;
      resp_data <= done_data;
    end else if (queued_valid && queued_ready) begin
      {resp_mask, resp_context} <= queued.whom;
      resp_data <= queued.data;
    end
    if (rst) resp_mask <= '0;
  end
endmodule

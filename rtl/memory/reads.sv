// SPDX-License-Identifier: Apache-2.0
//
// Reads of lines through AXI3: gives each a free ID, keeps what is known of it until the answer, takes answers in any order
// (beats of different reads may alternate). Latency from the last beat to `done_valid` 1 cycle. Throughput 1 beat per cycle;
// a line of 64 bytes is two. A line that comes with an error is given as ones, and each table's look-up
// recognises them (`viaduct_pkg`).
module reads #(
    parameter  int unsigned LineBytes    = 64,                   // 32 or 64
    parameter  int unsigned LineWidth    = 24,
    parameter  int unsigned ContextWidth = 64,
    parameter  int unsigned Ids          = 64,                   // reads at once; power of two, 2 to 64
    localparam int unsigned IdWidth      = $clog2(Ids),
    localparam int unsigned DataWidth    = 8 * LineBytes
) (
    input  logic                    clk,
    input  logic                    rst,
    // A read begins. To be set only where `room` was in the cycle before.
    output logic                    room,
    output logic [     IdWidth-1:0] id,             // that it has
    input  logic                    start,
    input  logic [   LineWidth-1:0] start_line,
    input  logic [ContextWidth-1:0] start_context,
    // A read is done.
    output logic                    done_valid,
    input  logic                    done_ready,
    output logic [     IdWidth-1:0] done_id,
    output logic [ContextWidth-1:0] done_context,
    output logic [   DataWidth-1:0] done_data,
    output logic                    done_bad,       // memory answered with an error
    output logic                    error,          // pulse: memory answered with an error
    output logic                    arvalid,
    input  logic                    arready,
    output logic [             5:0] arid,
    output logic [            32:0] araddr,
    input  logic                    rvalid,
    output logic                    rready,
    input  logic [             5:0] rid,
    input  logic [           255:0] rdata,
    input  logic [             1:0] rresp,
    input  logic                    rlast
);
  localparam int unsigned Addresses = 4;
  localparam int unsigned Shift = $clog2(LineBytes);

  // ---- IDs: those free, in the order in which they became so.

  logic [IdWidth:0] born;
  logic [$clog2(Ids + 2)-1:0] free_ids;
  logic being_born, release_id, unused_ready, unused_valid;
  assign being_born = !born[IdWidth];

  queue #(
      .Width(IdWidth),
      .Depth(Ids)
  ) ids (
      .clk,
      .rst,
      .s_valid(being_born || release_id),
      .s_ready(unused_ready),
      .s_data (being_born ? born[IdWidth-1:0] : done_id),
      .m_valid(unused_valid),
      .m_ready(start),
      .m_data (id),
      .level  (free_ids)
  );

  always_ff @(posedge clk) begin
    if (rst) born <= '0;
    else if (being_born) born <= born + 1'b1;
  end

  // ---- Addresses on their way out

  logic [2:0] waiting;
  logic [IdWidth-1:0] ar_id;
  logic [LineWidth-1:0] ar_line;
  logic unused_address_ready;

  // For the read that may begin in this cycle and for one more.
  assign room = free_ids >= 2 && waiting <= 2;
  assign arid = 6'(ar_id);
  assign araddr = 33'(ar_line) << Shift;

  queue #(
      .Width(IdWidth + LineWidth),
      .Depth(Addresses)
  ) addresses (
      .clk,
      .rst,
      .s_valid(start),
      .s_ready(unused_address_ready),
      .s_data ({id, start_line}),
      .m_valid(arvalid),
      .m_ready(arready),
      .m_data ({ar_id, ar_line}),
      .level  (waiting)
  );

  // ---- Answers

  logic [ContextWidth-1:0] contexts[Ids];
  logic beat_valid, beat_last, beat_bad, accept;
  logic [255:0] beat;
  logic [IdWidth-1:0] read_of;

  assign read_of    = rid[IdWidth-1:0];
  assign done_valid = beat_valid && beat_last;
  assign rready     = !done_valid || done_ready;
  assign accept     = rvalid && rready;
  assign release_id = done_valid && done_ready;

  always_ff @(posedge clk) begin
    if (start) contexts[id] <= start_context;
    if (accept) begin
      done_context <= contexts[read_of];
      done_id      <= read_of;
      beat         <= rdata;
      beat_last    <= rlast;
      beat_bad     <= |rresp;
    end
    if (rready) beat_valid <= rvalid;
    error <= accept && |rresp;
    if (rst) beat_valid <= 1'b0;
  end

  if (LineBytes == 64) begin : g_two_beats
    // First beats, by ID; one that came just before the last beat is still on its way there.
    logic [256:0] firsts[Ids];
    logic [256:0] read_first, late_first;
    logic first_bad, late;
    logic [255:0] first;

    assign {first_bad, first} = late ? late_first : read_first;
    assign done_bad  = first_bad || beat_bad;
    assign done_data = done_bad ? '1 : {beat, first};

    always_ff @(posedge clk) begin
      if (beat_valid && !beat_last) begin
        firsts[done_id] <= {beat_bad, beat};
        late_first      <= {beat_bad, beat};
      end
      if (accept && rlast) begin
        read_first <= firsts[read_of];
        late       <= beat_valid && !beat_last && done_id == read_of;
      end
    end
  end else begin : g_one_beat
    assign done_bad  = beat_bad;
    assign done_data = done_bad ? '1 : beat;
  end

  if (Ids < 64) begin : g_unused
    logic [5-IdWidth:0] unused_id;
    assign unused_id = rid[5:IdWidth];
  end
endmodule

// SPDX-License-Identifier: Apache-2.0
//
// Puts a header of 0 to 84 bytes in front of a packet. Bytes behind the packet's end are 0.
// Latency: 2 cycles. Throughput: 1 beat a cycle out, without gaps between packets.

module joiner
  import viaduct_pkg::*;
#(
    parameter int unsigned HeaderBytes = 84
) (
    input  logic                     clk,
    input  logic                     rst,
    input  logic                     s_valid,
    output logic                     s_ready,
    input  logic                     s_first,
    input  logic                     s_last,
    input  logic [    BeatWidth-1:0] s_data,
    // Of the packet: the same with each of its beats.
    input  port_id_t                 s_port,
    input  logic [             15:0] s_size,        // with the header
    input  logic [              6:0] s_header_len,
    input  logic [8*HeaderBytes-1:0] s_header,
    output logic                     m_valid,
    input  logic                     m_ready,
    output beat_t                    m_beat
);

  typedef struct packed {
    logic                     first;
    logic                     last;
    port_id_t                 port;
    logic [15:0]              size;
    logic [6:0]               header_len;
    logic [8*HeaderBytes-1:0] header;
    logic [BeatWidth-1:0]     data;        // rotated: what of it leaves in the next beat is lowest
  } stage_t;

  // Bytes 0 to `count` - 1.
  function automatic logic [BeatWidth-1:0] lowest(input logic [6:0] count);
    for (int unsigned k = 0; k < BeatBytes; k++) lowest[8*k+:8] = {8{k < 32'(count)}};
  endfunction

  logic [BeatWidth-1:0] rotated;
  byte_rotate rotate (
      .data(s_data),
      .by(s_header_len[5:0]),
      .rotated
  );

  logic   in_valid;
  logic   in_taken;
  stage_t in;
  assign s_ready = !in_valid || in_taken;
  always_ff @(posedge clk) begin
    if (rst) in_valid <= 1'b0;
    else if (s_ready) in_valid <= s_valid;
    if (s_ready) in <= '{s_first, s_last, s_port, s_size, s_header_len, s_header, rotated};
  end

  // A packet is a beat of header alone, if it has as much; beats of what is left from before and what came; and, if what
  // came last is not all in them, what is left.
  logic                 headed;  // the header's beat left
  logic                 tail;    // what is left is to leave
  logic [         15:0] left;    // bytes, from the next beat on
  logic [BeatWidth-1:0] carry;   // what came before, rotated

  wire                  head = !tail && in.first && in.header_len[6] && !headed;
  wire                  begins = !tail && in.first && !headed;
  wire  [         15:0] remaining = begins ? in.size : left;
  wire                  ends = remaining <= 16'd64;
  wire                  free = !m_valid || m_ready;
  wire                  leaves = free && (tail || in_valid);
  assign in_taken = free && !tail && !head;

  logic [BeatWidth-1:0] ahead;
  logic [BeatWidth-1:0] joined;
  always_comb begin
    ahead = carry;
    if (in.first && !tail) begin
      ahead = in.header[BeatWidth-1:0];
      if (headed) ahead = BeatWidth'(in.header[8*HeaderBytes-1:BeatWidth]);
    end
    joined = ahead;
    if (!tail && !head) begin
      joined = (ahead & lowest(7'(in.header_len[5:0]))) | (in.data & ~lowest(7'(in.header_len[5:0])));
    end
    if (ends) joined = joined & lowest(remaining[6:0]);
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      m_valid <= 1'b0;
      headed <= 1'b0;
      tail <= 1'b0;
    end else begin
      if (free) m_valid <= leaves;
      if (leaves) begin
        headed <= head;
        tail <= !tail && !head && in.last && !ends;
      end
    end
  end

  always_ff @(posedge clk) begin
    if (leaves) begin
      left <= remaining - 16'd64;
      m_beat.last <= ends;
      m_beat.direct <= 1'b0;
      m_beat.data <= joined;
      if (!tail) begin
        carry <= in.data;
        m_beat.port <= in.port;
        m_beat.size <= in.size;
      end
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk) begin
    if (!rst && leaves && tail) begin
      assert (ends) else $error("more than a beat is left");
    end
  end
`endif

endmodule

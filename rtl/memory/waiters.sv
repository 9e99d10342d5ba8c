// SPDX-License-Identifier: Apache-2.0
//
// Requests that wait, in order, for reads that others began. The first in line is given as soon as its read is done.
// Latency from `wake` to `m_valid` 1 cycle; one in and one out per cycle.
module waiters #(
    parameter int unsigned Width   = 64,
    parameter int unsigned Depth   = 32,  // power of two
    parameter int unsigned IdWidth = 6
) (
    input  logic               clk,
    input  logic               rst,
    input  logic               s_valid,
    input  logic [  Width-1:0] s_data,
    input  logic [IdWidth-1:0] s_id,      // of the read
    output logic               room,      // for two
    input  logic               wake,      // the read `wake_id` is done
    input  logic [IdWidth-1:0] wake_id,
    output logic               m_valid,
    input  logic               m_ready,
    output logic [  Width-1:0] m_data
);
  localparam int unsigned PointerWidth = $clog2(Depth) + 1;

  logic [PointerWidth-1:0] write_pointer, read_pointer;
  logic [Depth-1:0] done;
  logic [IdWidth-1:0] ids[Depth];
  logic first_valid, unused_ready;
  logic [$clog2(Depth + 2)-1:0] unused_level;

  queue #(
      .Width(Width),
      .Depth(Depth)
  ) line (
      .clk,
      .rst,
      .s_valid,
      .s_ready(unused_ready),
      .s_data,
      .m_valid(first_valid),
      .m_ready(m_ready && m_valid),
      .m_data,
      .level  (unused_level)
  );

  assign m_valid = first_valid && done[read_pointer[PointerWidth-2:0]];
  assign room    = write_pointer - read_pointer <= PointerWidth'(Depth - 2);

  always_ff @(posedge clk) begin
    if (wake) for (int unsigned i = 0; i < Depth; i++) if (ids[i] == wake_id) done[i] <= 1'b1;
    if (s_valid) begin
      ids[write_pointer[PointerWidth-2:0]]  <= s_id;
      done[write_pointer[PointerWidth-2:0]] <= wake && wake_id == s_id;
      write_pointer <= write_pointer + 1'b1;
    end
    if (m_valid && m_ready) read_pointer <= read_pointer + 1'b1;
    if (rst) begin
      write_pointer <= '0;
      read_pointer  <= '0;
    end
  end
endmodule

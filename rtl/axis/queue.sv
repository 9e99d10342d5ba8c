// SPDX-License-Identifier: Apache-2.0
//
// Shallow first-word-fall-through FIFO for distributed RAM. Latency 1 cycle, throughput 1 word per cycle. Holds Depth
// words and one in the output register; `m_valid` is set whenever `level` is not 0.
module queue #(
    parameter  int unsigned Width      = 64,
    parameter  int unsigned Depth      = 8,                  // power of two, at least 2
    localparam int unsigned LevelWidth = $clog2(Depth + 2)
) (
    input  logic                  clk,
    input  logic                  rst,
    input  logic                  s_valid,
    output logic                  s_ready,
    input  logic [     Width-1:0] s_data,
    output logic                  m_valid,
    input  logic                  m_ready,
    output logic [     Width-1:0] m_data,
    output logic [LevelWidth-1:0] level     // words accepted and not yet given
);
  if (Depth < 2 || (Depth & (Depth - 1)) != 0) $error("queue: Depth must be a power of two, at least 2");
  localparam int unsigned PointerWidth = $clog2(Depth) + 1;

  logic [Width-1:0] ram[Depth];
  logic [PointerWidth-1:0] write_pointer, read_pointer;
  logic push, output_free, waiting, bypass;

  assign waiting     = write_pointer != read_pointer;
  assign s_ready     = write_pointer - read_pointer != PointerWidth'(Depth);
  assign push        = s_valid && s_ready;
  assign output_free = !m_valid || m_ready;
  assign bypass      = push && output_free && !waiting;

  always_ff @(posedge clk) begin
    if (push && !bypass) ram[write_pointer[PointerWidth-2:0]] <= s_data;
    if (output_free) m_data <= waiting ? ram[read_pointer[PointerWidth-2:0]] : s_data;
  end

  always_ff @(posedge clk) begin
    if (push && !bypass) write_pointer <= write_pointer + 1'b1;
    if (output_free) begin
      m_valid <= waiting || push;
      if (waiting) read_pointer <= read_pointer + 1'b1;
    end
    level <= level + LevelWidth'(push) - LevelWidth'(m_valid && m_ready);
    if (rst) begin
      write_pointer <= '0;
      read_pointer  <= '0;
      m_valid       <= 1'b0;
      level         <= '0;
    end
  end
endmodule

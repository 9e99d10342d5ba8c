// SPDX-License-Identifier: Apache-2.0
//
// First-word-fall-through FIFO for deep block RAM or UltraRAM: RAM with registered read, then an output register, to
// which a word goes past the RAM when that is empty. Latency 1 cycle when empty, throughput 1 word per cycle. Holds
// Depth words, those on their way out included. Never reads the address being written, so the RAM's collision behaviour
// doesn't matter.
module fifo #(
    parameter  int unsigned Width      = 512,
    parameter  int unsigned Depth      = 1024,         // words; power of two, at least 4
    parameter  int unsigned AlmostFull = Depth - 1,    // level from which `almost_full` is set, in words, 1 to Depth
    localparam int unsigned LevelWidth = $clog2(Depth) + 1
) (
    input  logic                  clk,
    input  logic                  rst,
    input  logic                  s_valid,
    output logic                  s_ready,
    input  logic [     Width-1:0] s_data,
    output logic                  m_valid,
    input  logic                  m_ready,
    output logic [     Width-1:0] m_data,
    output logic [LevelWidth-1:0] level,               // words accepted and not yet given
    output logic                  almost_full
);
  if (Depth < 4 || (Depth & (Depth - 1)) != 0) $error("fifo: Depth must be a power of two, at least 4");
  if (AlmostFull < 1 || AlmostFull > Depth) $error("fifo: AlmostFull must be in 1 to Depth");

  logic [Width-1:0] ram[Depth];
  logic [Width-1:0] ram_data;
  logic             ram_valid;
  // One bit more than the address tells a full RAM from an empty one.
  logic [LevelWidth-1:0] write_pointer, read_pointer, level_next;
  logic push, pop, output_free, read_enable, read_valid, past;

  assign push        = s_valid && s_ready;
  assign pop         = m_valid && m_ready;
  assign output_free = !m_valid || m_ready;
  assign read_enable = !ram_valid || output_free;
  assign read_valid  = write_pointer != read_pointer;
  assign past        = push && output_free && !ram_valid && !read_valid;
  assign level_next  = level + LevelWidth'(push) - LevelWidth'(pop);

  always_ff @(posedge clk) begin
    if (push) ram[write_pointer[LevelWidth-2:0]] <= s_data;
    if (read_enable) ram_data <= ram[read_pointer[LevelWidth-2:0]];
  end

  always_ff @(posedge clk) begin
    if (push && !past) write_pointer <= write_pointer + 1'b1;
    if (read_enable) begin
      ram_valid    <= read_valid;
      read_pointer <= read_pointer + LevelWidth'(read_valid);
    end
    if (output_free) begin
      m_valid <= ram_valid || past;
      m_data  <= ram_valid ? ram_data : s_data;
    end
    level       <= level_next;
    s_ready     <= level_next != LevelWidth'(Depth);
    almost_full <= level_next >= LevelWidth'(AlmostFull);
    if (rst) begin
      write_pointer <= '0;
      read_pointer  <= '0;
      ram_valid     <= 1'b0;
      m_valid       <= 1'b0;
      level         <= '0;
      s_ready       <= 1'b1;
      almost_full   <= 1'b0;
    end
  end
endmodule

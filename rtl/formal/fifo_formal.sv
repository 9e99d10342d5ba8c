// SPDX-License-Identifier: Apache-2.0
//
// Properties of `fifo`: nothing lost, doubled, changed or reordered; a word on offer stays; `level`, `s_ready` and
// `almost_full` tell the truth; a word is on offer within 2 cycles, and no bubble where 3 words or more are held.
module fifo_formal #(
    localparam int unsigned Width      = 2,
    localparam int unsigned Depth      = 4,
    localparam int unsigned AlmostFull = 3,
    localparam int unsigned LevelWidth = $clog2(Depth) + 1
) (
    input logic             clk,
    input logic             reset_again,
    input logic             s_valid,
    input logic [Width-1:0] s_data,
    input logic             m_ready,
    input logic             watch
);
  logic begun = 1'b0;
  always_ff @(posedge clk) begun <= 1'b1;
  logic rst;
  assign rst = !begun || reset_again;

  logic s_ready, m_valid, almost_full;
  logic [Width-1:0] m_data;
  logic [LevelWidth-1:0] level;
  fifo #(
      .Width     (Width),
      .Depth     (Depth),
      .AlmostFull(AlmostFull)
  ) dut (
      .*
  );

  logic push, pop;
  assign push = s_valid && s_ready;
  assign pop  = m_valid && m_ready;

  // A word picked at will, and how many are before it.
  logic watched;
  logic [LevelWidth-1:0] held, ahead, waited;
  logic [Width-1:0] word;
  always_ff @(posedge clk) begin
    held   <= held + LevelWidth'(push) - LevelWidth'(pop);
    waited <= held != 0 && !m_valid ? waited + 1'b1 : '0;
    if (!watched && watch && push) begin
      watched <= 1'b1;
      ahead   <= held - LevelWidth'(pop);
      word    <= s_data;
    end else if (watched && pop) begin
      watched <= ahead != 0;
      ahead   <= ahead - 1'b1;
    end
    if (rst) begin
      watched <= 1'b0;
      held    <= '0;
      waited  <= '0;
    end
  end

  always_comb
    if (!rst) begin
      assert (level == held);
      assert (held <= LevelWidth'(Depth));
      assert (s_ready == (held != LevelWidth'(Depth)));
      assert (almost_full == (held >= LevelWidth'(AlmostFull)));
      if (held >= 3) assert (m_valid);
      if (m_valid) assert (held != 0);
      assert (waited <= 1);
      if (watched) assert (ahead < held);
      if (watched && ahead == 0 && m_valid) assert (m_data == word);
    end

  // What holds inside, for the induction.
  logic [LevelWidth-1:0] in_ram, position;
  assign in_ram   = dut.write_pointer - dut.read_pointer;
  assign position = ahead - LevelWidth'(m_valid) - LevelWidth'(dut.ram_valid);
  always_comb
    if (!rst) begin
      assert (in_ram <= LevelWidth'(Depth));
      assert (held == in_ram + LevelWidth'(dut.ram_valid) + LevelWidth'(m_valid));
      if (!dut.ram_valid) assert (in_ram <= 1);
      if (held != 0 && !m_valid) assert (dut.ram_valid && in_ram <= 1 && waited == 0);
      if (watched && ahead == LevelWidth'(m_valid) && dut.ram_valid) assert (dut.ram_data == word);
      if (watched && ahead >= LevelWidth'(m_valid) + LevelWidth'(dut.ram_valid))
        assert (dut.ram[(LevelWidth-1)'(dut.read_pointer+position)] == word);
    end

  always_ff @(posedge clk)
    if (begun && !rst && !$past(rst) && $past(m_valid && !m_ready)) assert (m_valid && m_data == $past(m_data));

  logic was_full;
  always_ff @(posedge clk) was_full <= !rst && (was_full || held == LevelWidth'(Depth));
  always_comb
    if (!rst) begin
      cover (almost_full && s_ready);
      cover (was_full && held == 0);
      cover (was_full && watched && ahead == 0 && pop && push && dut.write_pointer[LevelWidth-1]);
      cover (waited == 1);
    end
endmodule

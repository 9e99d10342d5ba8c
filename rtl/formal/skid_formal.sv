// SPDX-License-Identifier: Apache-2.0
//
// Properties of `skid`: nothing lost, doubled, changed or reordered; a word on offer stays; never a bubble.
module skid_formal #(
    localparam int unsigned Width = 2
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

  logic s_ready, m_valid;
  logic [Width-1:0] m_data;
  skid #(.Width(Width)) dut (.*);

  logic push, pop;
  assign push = s_valid && s_ready;
  assign pop  = m_valid && m_ready;

  // A word picked at will, and how many are before it.
  logic watched;
  logic [1:0] held, ahead;
  logic [Width-1:0] word;
  always_ff @(posedge clk) begin
    held <= held + 2'(push) - 2'(pop);
    if (!watched && watch && push) begin
      watched <= 1'b1;
      ahead   <= held - 2'(pop);
      word    <= s_data;
    end else if (watched && pop) begin
      watched <= ahead != 0;
      ahead   <= ahead - 1'b1;
    end
    if (rst) begin
      watched <= 1'b0;
      held    <= '0;
    end
  end

  // The first cycle behind a reset: nothing is held, nor taken.
  logic fresh;
  always_ff @(posedge clk) fresh <= rst;

  always_comb
    if (!rst) begin
      assert (held == 2'(m_valid) + 2'(dut.spare_valid));
      assert (m_valid == (held != 0));
      assert (s_ready == (held != 2 && !fresh));
      if (fresh) assert (held == 0);
      if (watched) begin
        assert (ahead < held);
        assert (word == (ahead == 0 ? m_data : dut.spare_data));
      end
    end

  always_ff @(posedge clk)
    if (begun && !rst && !$past(rst)) begin
      if ($past(m_valid && !m_ready)) assert (m_valid && m_data == $past(m_data));
      if ($past(push)) assert (m_valid);
    end

  logic was_full;
  always_ff @(posedge clk) was_full <= !rst && (was_full || held == 2);
  always_comb
    if (!rst) begin
      cover (held == 2);
      cover (was_full && watched && ahead == 0 && pop && push);
      cover (was_full && held == 0);
    end
endmodule

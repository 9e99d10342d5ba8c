// SPDX-License-Identifier: Apache-2.0
//
// Properties of `packet_mux`: every beat comes out once, unchanged, in order per input; packets aren't mixed; a beat
// on offer stays; no bubble; who waits is passed over by Inputs - 1 packets at most. Beats carry their input's index,
// a number per input and `last`.
module packet_mux_formal #(
    localparam int unsigned Inputs = 3,
    localparam int unsigned Width  = 5
) (
    input logic              clk,
    input logic              reset_again,
    input logic [Inputs-1:0] s_valid,
    input logic [Inputs-1:0] s_last,
    input logic              m_ready,
    input logic [       1:0] pick
);
  logic begun = 1'b0;
  always_ff @(posedge clk) begun <= 1'b1;
  logic rst;
  assign rst = !begun || reset_again;

  logic [Inputs-1:0] s_ready;
  logic [Inputs-1:0][Width-1:0] s_data;
  logic m_valid, m_last;
  logic [Width-1:0] m_data;
  packet_mux #(
      .Inputs(Inputs),
      .Width (Width)
  ) dut (
      .*
  );

  logic [Inputs-1:0][1:0] sent, received;
  for (genvar i = 0; i < Inputs; i++) begin : g_data
    assign s_data[i] = {2'(i), sent[i], s_last[i]};
  end
  always_ff @(posedge clk)
    if (begun && !$past(rst)) begin
      for (int unsigned i = 0; i < Inputs; i++)
        if ($past(s_valid[i] && !s_ready[i])) assume (s_valid[i] && s_last[i] == $past(s_last[i]));
    end

  logic [Inputs-1:0] taken;
  logic [1:0] source;
  logic pop;
  assign taken  = s_valid & s_ready;
  assign source = m_data[4:3];
  assign pop    = m_valid && m_ready;

  // Which packet is open at the inputs, which at the output.
  logic [Inputs-1:0] open;
  logic open_out;
  logic [1:0] source_out;
  always_ff @(posedge clk) begin
    for (int unsigned i = 0; i < Inputs; i++)
      if (taken[i]) begin
        sent[i] <= sent[i] + 1'b1;
        open[i] <= !s_last[i];
      end
    if (pop) begin
      received[source] <= received[source] + 1'b1;
      open_out         <= !m_last;
      source_out       <= source;
    end
    if (rst) begin
      sent     <= '0;
      received <= '0;
      open     <= '0;
      open_out <= 1'b0;
    end
  end

  always_comb
    if (!rst) begin
      if (m_valid) begin
        assert (source < 2'(Inputs));
        assert (m_data[2:1] == received[source]);
        assert (m_data[0] == m_last);
        if (open_out) assert (source == source_out);
      end
      assert ((taken & (taken - 1'b1)) == '0);
      // No bubble: a beat that may go does.
      if ((!m_valid || m_ready) && (open == '0 ? |s_valid : |(s_valid & open))) assert (|taken);
      for (int unsigned i = 0; i < Inputs; i++)
        assert (sent[i] - received[i] == 2'(m_valid && source == 2'(i)));
      // For the induction.
      assert (dut.holder == open && (open & (open - 1'b1)) == '0);
      if (m_valid) assert (open == (m_last ? '0 : Inputs'(1) << source));
      else assert (open == (open_out ? Inputs'(1) << source_out : '0));
      if (open_out) assert (source_out < 2'(Inputs));
    end

  always_ff @(posedge clk)
    if (begun && !rst && !$past(rst)) begin
      if ($past(m_valid && !m_ready)) assert (m_valid && m_data == $past(m_data) && m_last == $past(m_last));
      if ($past(|taken)) assert (m_valid);
    end

  // An input picked at will, and how many packets began while it waited.
  logic [1:0] picked;
  always_ff @(posedge clk) if (!begun) picked <= pick;
  always_comb if (begun) assume (pick == picked);
  always_comb assume (pick < 2'(Inputs));
  logic waits;
  logic [2:0] passed, begins, distance;
  assign waits = s_valid[pick] && !open[pick];
  always_ff @(posedge clk) begin
    if (!waits || taken[pick]) passed <= '0;
    else if (|taken && open == '0) passed <= passed + 1'b1;
    if (rst) passed <= '0;
  end
  always_comb begin
    begins = '0;
    for (int unsigned i = 0; i < Inputs; i++) if (!dut.arbiter.turn[i]) begins += 1'b1;
    distance = dut.arbiter.turn[pick] ? pick - begins : 3'(Inputs) - begins + pick;
  end
  always_comb
    if (!rst) begin
      assert (passed <= 3'(Inputs - 1));
      // For the induction.
      assert ((dut.arbiter.turn | (dut.arbiter.turn << 1)) == dut.arbiter.turn);
      if (passed != 0) assert (waits && passed + distance <= 3'(Inputs - 1));
    end

  always_comb
    if (!rst) begin
      cover (passed == 3'(Inputs - 1) && taken[pick]);
      cover (open_out && m_last && pop && received[source] == 2 && |taken && !taken[source]);
      cover (open != '0 && |(s_valid & ~open) && (s_valid & open) == '0 && !m_valid);
    end
endmodule

// SPDX-License-Identifier: Apache-2.0
//
// Properties of `request_crossbar`: every request comes out once, unchanged, at the output that it named, with the
// index of its input, in order per (input, output); one on offer stays. Requests carry input, output and a number per
// (input, output).
module request_crossbar_formal #(
    localparam int unsigned Inputs  = 2,
    localparam int unsigned Outputs = 2,
    localparam int unsigned Width   = 4
) (
    input logic               clk,
    input logic               reset_again,
    input logic [ Inputs-1:0] s_valid,
    input logic [ Inputs-1:0][0:0] s_destination,
    input logic [Outputs-1:0] m_ready
);
  logic begun = 1'b0;
  always_ff @(posedge clk) begun <= 1'b1;
  logic rst;
  assign rst = !begun || reset_again;

  logic [Inputs-1:0] s_ready;
  logic [Inputs-1:0][Width-1:0] s_data;
  logic [Outputs-1:0] m_valid;
  logic [Outputs-1:0][Width-1:0] m_data;
  logic [Outputs-1:0][0:0] m_source;
  request_crossbar #(
      .Inputs (Inputs),
      .Outputs(Outputs),
      .Width  (Width)
  ) dut (
      .*
  );

  logic [Inputs-1:0][Outputs-1:0][1:0] sent, received;
  for (genvar i = 0; i < Inputs; i++) begin : g_input
    assign s_data[i] = {1'(i), s_destination[i], sent[i][s_destination[i]]};
    always_ff @(posedge clk)
      if (begun && !$past(rst) && $past(s_valid[i] && !s_ready[i]))
        assume (s_valid[i] && s_destination[i] == $past(s_destination[i]));
    always_ff @(posedge clk) begin
      if (s_valid[i] && s_ready[i]) sent[i][s_destination[i]] <= sent[i][s_destination[i]] + 1'b1;
      if (rst) sent[i] <= '0;
    end
  end

  for (genvar o = 0; o < Outputs; o++) begin : g_output
    for (genvar i = 0; i < Inputs; i++) begin : g_received
      always_ff @(posedge clk) begin
        if (m_valid[o] && m_ready[o] && m_data[o][3] == 1'(i)) received[i][o] <= received[i][o] + 1'b1;
        if (rst) received[i][o] <= '0;
      end
      // Where the output is free, a request for it goes at once.
      always_comb
        if (!rst && dut.valid[i] && dut.destination[i] == 1'(o) && (!m_valid[o] || m_ready[o]))
          assert (|dut.taken[o]);
    end
    always_comb
      if (!rst && m_valid[o]) begin
        assert (m_data[o][3] == m_source[o]);
        assert (m_data[o][2] == 1'(o));
        assert (m_data[o][1:0] == received[m_source[o]][o]);
      end
    always_ff @(posedge clk)
      if (begun && !rst && !$past(rst)) begin
        if ($past(m_valid[o] && !m_ready[o]))
          assert (m_valid[o] && m_data[o] == $past(m_data[o]) && m_source[o] == $past(m_source[o]));
        if ($past(|dut.taken[o])) assert (m_valid[o]);
      end
  end

  // What holds inside, for the induction: the numbers of the requests held follow those received.
  for (genvar i = 0; i < Inputs; i++) begin : g_inside
    logic spare_valid, spare_destination;
    logic [Width-1:0] spare_data;
    assign spare_valid = dut.g_input[i].head.spare_valid;
    assign {spare_destination, spare_data} = dut.g_input[i].head.spare_data;
    for (genvar o = 0; o < Outputs; o++) begin : g_inside
      logic out, first, second;
      assign out    = m_valid[o] && m_source[o] == 1'(i);
      assign first  = dut.valid[i] && dut.destination[i] == 1'(o);
      assign second = spare_valid && spare_destination == 1'(o);
      always_comb
        if (!rst) begin
          assert (sent[i][o] == received[i][o] + 2'(out) + 2'(first) + 2'(second));
          if (first) assert (dut.data[i] == {1'(i), 1'(o), 2'(received[i][o] + 2'(out))});
          if (second) assert (spare_data == {1'(i), 1'(o), 2'(received[i][o] + 2'(out) + 2'(first))});
        end
    end
    always_comb if (!rst && spare_valid) assert (dut.valid[i]);
  end

  always_comb
    if (!rst) begin
      cover (&m_valid && &m_ready && m_source[0] != m_source[1]);
      cover (m_valid[0] && received[0][0] == 2 && received[1][0] == 1);
      cover (s_valid == '1 && s_ready == '0);
    end
endmodule

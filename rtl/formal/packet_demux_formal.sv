// SPDX-License-Identifier: Apache-2.0
//
// Properties of `packet_demux`: a beat is offered to one output, the one that its packet's first beat named, and
// taken exactly if that one takes it, unchanged. Destinations of later beats are arbitrary.
module packet_demux_formal #(
    localparam int unsigned Outputs = 3,
    localparam int unsigned Width   = 2
) (
    input logic               clk,
    input logic               reset_again,
    input logic               s_valid,
    input logic [  Width-1:0] s_data,
    input logic               s_last,
    input logic [        1:0] s_destination,
    input logic [Outputs-1:0] m_ready
);
  logic begun = 1'b0;
  always_ff @(posedge clk) begun <= 1'b1;
  logic rst;
  assign rst = !begun || reset_again;

  logic s_ready, m_last;
  logic [Outputs-1:0] m_valid;
  logic [Width-1:0] m_data;
  packet_demux #(
      .Outputs(Outputs),
      .Width  (Width)
  ) dut (
      .*
  );

  always_comb assume (s_destination < 2'(Outputs));

  logic first;
  logic [1:0] named, expected;
  assign expected = first ? s_destination : named;
  always_ff @(posedge clk) begin
    if (s_valid && s_ready) begin
      first <= s_last;
      if (first) named <= s_destination;
    end
    if (rst) first <= 1'b1;
  end

  always_comb
    if (!rst) begin
      assert (m_valid == (s_valid ? Outputs'(1) << expected : '0));
      if (s_valid) assert (s_ready == m_ready[expected]);
      assert (m_data == s_data && m_last == s_last);
      // For the induction.
      assert (first == !dut.in_packet && (first || named == dut.held && named < 2'(Outputs)));
    end

  always_comb
    if (!rst) begin
      cover (!first && s_valid && s_ready && s_last && s_destination != named);
      cover (!first && s_valid && !s_ready && m_ready != '0);
    end
endmodule

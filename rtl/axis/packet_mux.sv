// SPDX-License-Identifier: Apache-2.0
//
// AXI-Stream packet multiplexer: round robin between inputs, an input keeps the output until its `last`.
// Latency 1 cycle (registered output), throughput 1 beat per cycle, no bubble inside or between packets.
// `s_ready` follows `m_ready` in the same cycle. An input that pauses inside a packet makes the output wait.
module packet_mux #(
    parameter int unsigned Inputs = 4,
    parameter int unsigned Width  = 512
) (
    input  logic                         clk,
    input  logic                         rst,
    input  logic [Inputs-1:0]            s_valid,
    output logic [Inputs-1:0]            s_ready,
    input  logic [Inputs-1:0][Width-1:0] s_data,
    input  logic [Inputs-1:0]            s_last,
    output logic                         m_valid,
    input  logic                         m_ready,
    output logic [Width-1:0]             m_data,
    output logic                         m_last
);
  // The input inside a packet, one-hot; zero between packets.
  logic [Inputs-1:0] holder, grant, choice, taken;
  logic [Width-1:0] data;
  logic last, output_free;

  assign output_free = !m_valid || m_ready;
  assign choice      = |holder ? holder : grant;
  assign s_ready     = output_free ? choice : '0;
  assign taken       = s_valid & s_ready;
  assign last        = |(choice & s_last);

  /* verilator lint_off PINCONNECTEMPTY */
  round_robin #(
      .Requesters(Inputs)
  ) arbiter (
      .clk,
      .rst,
      .request(s_valid),
      .advance(output_free && holder == '0),
      .grant,
      .index  ()
  );
  /* verilator lint_on PINCONNECTEMPTY */

  always_comb begin
    data = '0;
    for (int unsigned i = 0; i < Inputs; i++) if (choice[i]) data |= s_data[i];
  end

  always_ff @(posedge clk) begin
    if (output_free) begin
      m_valid <= |taken;
      m_data  <= data;
      m_last  <= last;
    end
    if (|taken) holder <= last ? '0 : choice;
    if (rst) begin
      m_valid <= 1'b0;
      holder  <= '0;
    end
  end
endmodule

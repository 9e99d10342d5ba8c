// SPDX-License-Identifier: Apache-2.0
//
// Skid buffer of two entries: breaks the valid, ready and data paths between two stages.
// Latency: 1 cycle. Throughput: 1 transfer a cycle. Every output is a register, so s_ready does not depend on m_ready
// of the same cycle. In reset nothing is taken.

module skid #(
    parameter int unsigned Width = 512
) (
    input  logic             clk,
    input  logic             rst,
    input  logic             s_valid,
    output logic             s_ready,
    input  logic [Width-1:0] s_data,
    output logic             m_valid,
    input  logic             m_ready,
    output logic [Width-1:0] m_data
);

  // What was taken in the cycle in which the output stalled.
  logic             spare_valid;
  logic [Width-1:0] spare_data;

  wire taken = s_valid && s_ready;
  wire stalled = m_valid && !m_ready;

  always_ff @(posedge clk) begin
    if (rst) begin
      s_ready     <= 1'b0;
      m_valid     <= 1'b0;
      spare_valid <= 1'b0;
    end else if (stalled) begin
      s_ready     <= !(taken || spare_valid);
      spare_valid <= taken || spare_valid;
    end else begin
      s_ready     <= 1'b1;
      m_valid     <= taken || spare_valid;
      spare_valid <= 1'b0;
    end
  end

  // Data needs no reset. s_ready is low while the spare is in use, so the two never compete.
  always_ff @(posedge clk) begin
    if (!stalled) m_data <= spare_valid ? spare_data : s_data;
    if (taken) spare_data <= s_data;
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk) begin
    if (!rst) assert (!(taken && spare_valid)) else $error("taken without room");
  end
`endif

endmodule

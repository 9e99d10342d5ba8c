// SPDX-License-Identifier: Apache-2.0
// The last stage: the traffic class after decapsulation (RFC 6040, 4.2).
//
// Latency: 1 clock. Throughput: one packet per clock.
module parse_ecn
  import registers_pkg::*;
  import viaduct_pkg::*;
(
    input  logic       clk,
    input  logic       rst,
    input  logic       s_valid,
    input  header_t    s_header,
    input  logic [1:0] outer_ecn,
    output logic       m_valid,
    output header_t    m_header
);

  localparam logic [1:0] NotEct = 2'd0;
  localparam logic [1:0] Ect1 = 2'd1;
  localparam logic [1:0] Ce = 2'd3;

  logic decapsulated;
  logic [1:0] inner_ecn;
  logic [1:0] ecn;
  logic lost;  // congestion that the packet's transport would not see

  always_comb begin
    decapsulated = s_header.tunnelled && s_header.ip;
    inner_ecn = s_header.tos[1:0];
    lost = decapsulated && inner_ecn == NotEct && outer_ecn == Ce;
    if (!decapsulated || inner_ecn == NotEct || inner_ecn == Ce) ecn = inner_ecn;
    else if (outer_ecn == Ce || outer_ecn == Ect1) ecn = outer_ecn;
    else ecn = inner_ecn;
  end

  always_ff @(posedge clk) begin
    m_header <= s_header;
    m_header.tos[1:0] <= ecn;
    m_header.new_tos <= ecn != inner_ecn;
    if (s_header.exception == PuntNone && lost) m_header.exception <= PuntEcn;
    m_valid <= s_valid && !rst;
  end

endmodule

// SPDX-License-Identifier: Apache-2.0
// For tests: both parsers, given the same beats.
module parser_top
  import viaduct_pkg::*;
(
    input  logic    clk,
    input  logic    rst,
    input  logic    s_valid,
    input  beat_t   s_beat,
    output logic    guest_valid,
    output header_t guest_header,
    output logic    wire_valid,
    output header_t wire_header
);

  parser #(
      .Wire(1'b0)
  ) guest (
      .clk,
      .rst,
      .s_valid,
      .s_beat,
      .header_valid(guest_valid),
      .header(guest_header)
  );
  parser #(
      .Wire(1'b1)
  ) uplink (
      .clk,
      .rst,
      .s_valid,
      .s_beat,
      .header_valid(wire_valid),
      .header(wire_header)
  );

endmodule

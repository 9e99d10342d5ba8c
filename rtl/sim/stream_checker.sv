// SPDX-License-Identifier: Apache-2.0
//
// Checks the rule of AXI-Stream at an edge of the engine: what is valid stays and doesn't change until it is taken. Every
// clock, no outputs.
module stream_checker #(
    parameter int unsigned Width = 512
) (
    input logic             clk,
    input logic             rst,
    input logic             valid,
    input logic             ready,
    input logic [Width-1:0] data
);
  logic kept;
  logic [Width-1:0] last;

  always_ff @(posedge clk) begin
    kept <= !rst && valid && !ready;
    last <= data;
    if (kept && !rst) assert (valid && data == last) else $error("a beat changed that was not taken");
  end
endmodule

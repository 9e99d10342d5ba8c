// SPDX-License-Identifier: Apache-2.0
// OpenNIC's reset of a module: `mod_rstn` is low for a clock, `mod_rst_done` is low until the reset is over. It lasts
// until memory is ready, too; and from power-up on until the shell asks for the first one. It is long enough for what
// memory was asked for before to be answered and dropped.
module reset_handshake #(
    parameter int unsigned Clocks = 256  // of the slow clock, power of two
) (
    input  logic slow_clk,
    input  logic mod_rstn,
    output logic mod_rst_done,
    input  logic memory_ready,  // of any clock
    output logic slow_rst,
    input  logic clk,           // phase aligned
    output logic rst
);

  localparam int unsigned Width = $clog2(Clocks) + 1;

  logic [Width-1:0] count;
  logic [1:0]       ready;

  initial {slow_rst, rst, mod_rst_done, count} = {2'b11, 1'b0, Width'(0)};

  always_ff @(posedge slow_clk) begin
    ready <= {ready[0], memory_ready};
    if (!mod_rstn) {slow_rst, mod_rst_done, count} <= {2'b10, Width'(1)};
    else if (slow_rst && count != '0) begin
      if (!count[Width-1]) count <= count + 1'b1;
      else if (ready[1]) {slow_rst, mod_rst_done, count} <= {2'b01, Width'(0)};
    end
  end

  always_ff @(posedge clk) rst <= slow_rst;

endmodule

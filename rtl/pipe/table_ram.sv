// SPDX-License-Identifier: Apache-2.0
// A table on chip: a RAM of one read and one write port.
//
// 2 clocks from `address` to `data`, one read per clock; both stand still without `step`. A read in the clock of a write
// to its address gives the old line.
module table_ram #(
    parameter  int unsigned Width        = 512,
    parameter  int unsigned Depth        = 1024,
    localparam int unsigned AddressWidth = $clog2(Depth)
) (
    input  logic                    clk,
    input  logic                    step,
    input  logic                    wr_valid,
    input  logic [AddressWidth-1:0] wr_address,
    input  logic [Width-1:0]        wr_data,
    input  logic [AddressWidth-1:0] address,
    output logic [Width-1:0]        data
);

  logic [Width-1:0] ram[Depth];
  logic [Width-1:0] read;

  initial for (int i = 0; i < Depth; i++) ram[i] = '0;

  always_ff @(posedge clk) begin
    if (wr_valid) ram[wr_address] <= wr_data;
    if (step) begin
      read <= ram[address];
      data <= read;
    end
  end

endmodule

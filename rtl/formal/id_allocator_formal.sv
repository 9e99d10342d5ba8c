// SPDX-License-Identifier: Apache-2.0
//
// Properties of `id_allocator`: an ID in use is never offered, an offer stays, none is lost whatever is released,
// `empty` exactly if all are in use, and a free ID is offered at once.
module id_allocator_formal #(
    localparam int unsigned Ids     = 5,
    localparam int unsigned IdWidth = $clog2(Ids)
) (
    input logic               clk,
    input logic               reset_again,
    input logic               allocate_ready,
    input logic               release_valid,
    input logic [IdWidth-1:0] release_id
);
  logic begun = 1'b0;
  always_ff @(posedge clk) begun <= 1'b1;
  logic rst;
  assign rst = !begun || reset_again;

  logic allocate_valid, empty;
  logic [IdWidth-1:0] allocate_id;
  id_allocator #(.Ids(Ids)) dut (.*);

  always_comb assume (release_id < IdWidth'(Ids));

  logic [Ids-1:0] used, offered;
  always_comb
    for (int unsigned i = 0; i < Ids; i++) offered[i] = allocate_valid && allocate_id == IdWidth'(i);
  always_ff @(posedge clk) begin
    if (release_valid) used[release_id] <= 1'b0;
    if (allocate_valid && allocate_ready) used[allocate_id] <= 1'b1;
    if (rst) used <= '0;
  end

  always_comb
    if (!rst) begin
      if (allocate_valid) assert (allocate_id < IdWidth'(Ids) && !used[allocate_id]);
      assert (empty == &used);
      // Each ID is in one place.
      assert ((used | offered | dut.free) == '1);
      assert ((used & offered) == '0 && (used & dut.free) == '0 && (offered & dut.free) == '0);
    end

  always_ff @(posedge clk)
    if (begun && !rst && !$past(rst)) begin
      if ($past(allocate_valid && !allocate_ready)) assert (allocate_valid && allocate_id == $past(allocate_id));
      if ($past(dut.free != '0)) assert (allocate_valid);
    end

  logic was_empty;
  always_ff @(posedge clk) was_empty <= !rst && (was_empty || empty);
  always_comb
    if (!rst) begin
      cover (was_empty && allocate_valid && allocate_ready && release_valid && used[release_id]);
      cover (was_empty && used == '0);
      cover (release_valid && allocate_valid && release_id == allocate_id);
    end
endmodule

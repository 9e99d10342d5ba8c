// SPDX-License-Identifier: Apache-2.0
//
// Hands out IDs that are not in use, for instance of AXI reads, and takes them back, in any order.
// One handed out and one taken back per cycle. Latency: an ID taken back is offered again after 2 cycles or later.
// Taking back an ID that is free is harmless.
module id_allocator #(
    parameter  int unsigned Ids     = 64,                        // at least 2
    localparam int unsigned IdWidth = $clog2(Ids)
) (
    input  logic               clk,
    input  logic               rst,             // all IDs are free afterwards
    output logic               allocate_valid,
    input  logic               allocate_ready,
    output logic [IdWidth-1:0] allocate_id,
    input  logic               release_valid,
    input  logic [IdWidth-1:0] release_id,
    output logic               empty            // every ID is in use
);
  if (Ids < 2) $error("id_allocator: Ids must be at least 2");

  // IDs neither in use nor on offer.
  logic [Ids-1:0] free, lowest, released;
  logic [IdWidth-1:0] lowest_id;
  logic offer_next;

  assign offer_next = !allocate_valid || allocate_ready;
  assign lowest     = free & (~free + 1'b1);
  assign empty      = !allocate_valid && free == '0;

  always_comb begin
    lowest_id = '0;
    released  = '0;
    for (int unsigned i = 0; i < Ids; i++) begin
      if (lowest[i]) lowest_id |= IdWidth'(i);
      released[i] = release_valid && release_id == IdWidth'(i) && !(allocate_valid && allocate_id == IdWidth'(i));
    end
  end

  always_ff @(posedge clk) begin
    free <= (offer_next ? free & ~lowest : free) | (released & ~lowest);
    if (offer_next) begin
      allocate_valid <= |free;
      allocate_id    <= lowest_id;
    end
    if (rst) begin
      free           <= '1;
      allocate_valid <= 1'b0;
    end
  end
endmodule

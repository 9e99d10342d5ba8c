// SPDX-License-Identifier: Apache-2.0
//
// Round robin arbiter. `grant` and `index` follow `request` in the same cycle (latency 0) and may change until
// `advance` is set, which makes the granted requester the last in turn. One grant per cycle. A requester that
// keeps requesting is granted within Requesters grants.
module round_robin #(
    parameter  int unsigned Requesters = 4,
    localparam int unsigned IndexWidth = Requesters > 1 ? $clog2(Requesters) : 1
) (
    input  logic                  clk,
    input  logic                  rst,
    input  logic [Requesters-1:0] request,
    input  logic                  advance,  // the grant is used in this cycle; ignored if nobody requests
    output logic [Requesters-1:0] grant,    // one-hot, or zero if nobody requests
    output logic [IndexWidth-1:0] index     // of the grant; zero if nobody requests
);
  // Requesters behind the last one granted: they come first.
  logic [Requesters-1:0] turn, first;

  assign first = |(request & turn) ? request & turn : request;
  assign grant = first & (~first + 1'b1);

  always_comb begin
    index = '0;
    for (int unsigned i = 0; i < Requesters; i++) if (grant[i]) index |= IndexWidth'(i);
  end

  always_ff @(posedge clk) begin
    if (advance && |request) turn <= ~(grant | (grant - 1'b1));
    if (rst) turn <= '0;
  end
endmodule

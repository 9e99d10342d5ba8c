// SPDX-License-Identifier: Apache-2.0
//
// Properties of `round_robin`: a grant exactly if there is a request, one-hot, to a requester, `index` agrees; who
// keeps requesting is passed over Requesters - 1 times at most.
module round_robin_formal #(
    localparam int unsigned Requesters = 5,
    localparam int unsigned IndexWidth = $clog2(Requesters)
) (
    input logic                  clk,
    input logic                  reset_again,
    input logic [Requesters-1:0] request,
    input logic                  advance,
    input logic [IndexWidth-1:0] pick
);
  logic begun = 1'b0;
  always_ff @(posedge clk) begun <= 1'b1;
  logic rst;
  assign rst = !begun || reset_again;

  logic [Requesters-1:0] grant;
  logic [IndexWidth-1:0] index;
  round_robin #(.Requesters(Requesters)) dut (.*);

  // A requester picked at will, and how often in a row it was passed over.
  logic [IndexWidth-1:0] picked;
  always_ff @(posedge clk) if (!begun) picked <= pick;
  always_comb if (begun) assume (pick == picked);
  always_comb assume (pick < IndexWidth'(Requesters));
  logic [IndexWidth:0] passed;
  always_ff @(posedge clk) begin
    if (!request[pick]) passed <= '0;
    else if (advance) passed <= grant[pick] ? '0 : passed + 1'b1;
    if (rst) passed <= '0;
  end

  // Where the turn begins, and how many requesters come before the picked one.
  logic [IndexWidth:0] begins, distance;
  always_comb begin
    begins = '0;
    for (int unsigned i = 0; i < Requesters; i++) if (!dut.turn[i]) begins += 1'b1;
    distance = dut.turn[pick] ? pick - begins : (IndexWidth + 1)'(Requesters) - begins + pick;
  end

  always_comb
    if (!rst) begin
      assert ((|grant) == (|request));
      assert ((grant & ~request) == '0);
      assert ((grant & (grant - 1'b1)) == '0);
      if (|request) assert (grant == Requesters'(1) << index);
      else assert (index == '0);
      assert (passed <= (IndexWidth + 1)'(Requesters - 1));
      // For the induction.
      assert ((dut.turn | (dut.turn << 1)) == dut.turn);
      if (passed != 0) assert (passed + distance <= (IndexWidth + 1)'(Requesters - 1));
    end

  always_comb
    if (!rst) begin
      cover (passed == (IndexWidth + 1)'(Requesters - 1) && grant[pick]);
      cover (&request && grant[Requesters-1]);
      cover (request == '0 && dut.turn != '0);
    end
endmodule

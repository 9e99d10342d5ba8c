// SPDX-License-Identifier: Apache-2.0
// The pipes' events of flows' counters, one at a time, as the host takes them.
module flow_events
  import viaduct_pkg::*;
#(
    parameter int unsigned Pipes = 4
) (
    input  logic                   clk,
    input  logic                   rst,
    input  logic                   take,      // for a clock: the next one into `flow_event`
    output logic [31:0]            flow_event,  // as the register of that name
    input  logic [Pipes-1:0]       valid,
    output logic [Pipes-1:0]       ready,
    input  logic [Pipes-1:0][23:0] number,
    input  logic [Pipes-1:0][1:0]  which,
    input  logic [Pipes-1:0]       lost
);

  logic [31:0] next;

  always_comb begin
    ready = '0;
    next  = '0;
    for (int i = Pipes - 1; i >= 0; i--) begin
      if (valid[i]) begin
        next  = {6'b100000, which[i], number[i]};
        ready = Pipes'(take) << i;
      end
    end
    next[30] = |lost;
  end

  always_ff @(posedge clk) begin
    if (rst) flow_event <= '0;
    else if (take) flow_event <= next;
  end

endmodule

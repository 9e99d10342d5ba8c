// SPDX-License-Identifier: Apache-2.0
// Drops what a port would have the host decide beyond its budget, so that a flood does not drown the host; and counts
// what goes there.
//
// 2 clocks from `s` to `m`, one packet per clock; stands still while `m` is not taken.
module punt_budget
  import viaduct_pkg::*;
  import pipe_pkg::*;
#(
    parameter int unsigned Ports = 1024
) (
    input  logic        clk,
    input  logic        rst,
    input  logic [31:0] budget,  // packets of a port in a window; 0: any number
    input  logic [7:0]  reason,  // of such a drop, as `model::DropReason` numbers it
    input  logic        s_valid,
    output logic        s_ready,
    input  decision_t   s,
    output logic        m_valid,
    input  logic        m_ready,
    output decision_t   m
);

  logic        step, over, held_valid;
  decision_t   held, bounded;
  logic [31:0] count;

  assign step    = !m_valid || m_ready;
  assign s_ready = step;

  window_budget #(.Entries(Ports)) budgets (
      .clk, .rst, .step, .budget, .valid(s_valid && s.edit.punt), .number(s.edit.meta.port[$clog2(Ports)-1:0]), .over
  );

  always_comb begin
    bounded                 = held;
    bounded.edit.meta.count = count;
    if (over) begin
      {bounded.edit.punt, bounded.edit.drop}                  = 2'b01;
      {bounded.conclusion.punted, bounded.conclusion.dropped} = 2'b01;
      bounded.conclusion.reason                              = reason;
    end
  end

  always_ff @(posedge clk) begin
    if (step) begin
      {m, held} <= {bounded, s};
      if (held_valid && bounded.edit.punt) count <= count + 32'd1;
    end
    if (rst) begin
      {held_valid, m_valid} <= '0;
      count                 <= '0;
    end else if (step) {held_valid, m_valid} <= {s_valid, held_valid};
  end

endmodule

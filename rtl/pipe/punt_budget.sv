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
    input  edit_t       s_edit,
    input  logic [3:0]  s_egress,
    input  hold_t       s_hold,
    input  conclusion_t s_conclusion,
    output logic        m_valid,
    input  logic        m_ready,
    output edit_t       m_edit,
    output logic [3:0]  m_egress,
    output hold_t       m_hold,
    output conclusion_t m_conclusion
);

  logic        step, over, held_valid;
  edit_t       held_edit, edit;
  logic [3:0]  held_egress;
  hold_t       held_hold;
  conclusion_t held_conclusion, conclusion;
  logic [31:0] count;

  assign step    = !m_valid || m_ready;
  assign s_ready = step;

  window_budget #(.Entries(Ports)) budgets (
      .clk, .rst, .step, .budget, .valid(s_valid && s_edit.punt), .number(s_edit.meta.port[$clog2(Ports)-1:0]), .over
  );

  always_comb begin
    edit            = held_edit;
    edit.meta.count = count;
    conclusion      = held_conclusion;
    if (over) begin
      {edit.punt, edit.drop}                  = 2'b01;
      {conclusion.punted, conclusion.dropped} = 2'b01;
      conclusion.reason                       = reason;
    end
  end

  always_ff @(posedge clk) begin
    if (step) begin
      {held_edit, held_egress, held_hold, held_conclusion} <= {s_edit, s_egress, s_hold, s_conclusion};
      {m_edit, m_egress, m_hold, m_conclusion}             <= {edit, held_egress, held_hold, conclusion};
      if (held_valid && edit.punt) count <= count + 32'd1;
    end
    if (rst) begin
      {held_valid, m_valid} <= '0;
      count                 <= '0;
    end else if (step) {held_valid, m_valid} <= {s_valid, held_valid};
  end

endmodule

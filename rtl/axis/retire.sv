// SPDX-License-Identifier: Apache-2.0
//
// Reorder buffer of tags: given out in order, marked complete out of order by independent ports, retired in order.
// A tag retires when every mark that its allocation required has come, or one that stands for it. One tag in and one out
// per cycle, one mark per port and cycle. Latency: 3 cycles from a mark, or 2 from an allocation that requires none, to
// `retire_valid`.
//
// A mark is complete where the bits `given` (written by allocation) and `done` (written by the mark's port) agree, so
// each RAM has one writer and nothing need be cleared, by reset neither: allocation makes them differ, a mark agree.
module retire #(
    parameter  int unsigned Tags     = 1024,           // power of two, at least 2
    parameter  int unsigned Marks    = 4,
    // Of each mark those that it stands for. One that does is never required itself, and comes only in place of a mark that
    // is.
    parameter  logic [Marks-1:0][Marks-1:0] StandsFor = '0,
    localparam int unsigned TagWidth = $clog2(Tags)
) (
    input  logic                           clk,
    input  logic                           rst,
    input  logic                           allocate_valid,
    output logic                           allocate_ready,     // doesn't depend on `allocate_valid`
    input  logic [Marks-1:0]               allocate_required,  // marks to wait for
    output logic [TagWidth-1:0]            allocate_tag,
    // From the cycle after the allocation on. A mark that isn't required, or comes twice, changes nothing as long as
    // the tag isn't retired.
    input  logic [Marks-1:0]               mark_valid,
    input  logic [Marks-1:0][TagWidth-1:0] mark_tag,
    output logic                           retire_valid,
    input  logic                           retire_ready,
    output logic [TagWidth-1:0]            retire_tag
);
  if (Tags < 2 || (Tags & (Tags - 1)) != 0) $error("retire: Tags must be a power of two, at least 2");

  // One bit more than a tag tells all tags in use from none.
  logic [TagWidth:0] head, head_next, tail, tail_next;
  logic allocated;  // the tag read for `complete` was in use then
  logic [Marks-1:0] complete, enough;
  logic allocate, pop;
  logic started;  // `done_at_tail` was read since reset

  assign allocate_ready = started && head != (tail ^ {1'b1, {TagWidth{1'b0}}});
  assign allocate_tag   = tail[TagWidth-1:0];
  assign allocate       = allocate_valid && allocate_ready;
  assign retire_valid   = allocated && &enough;
  assign retire_tag     = head[TagWidth-1:0];
  assign pop            = retire_valid && retire_ready;
  assign head_next      = head + (TagWidth + 1)'(pop);
  assign tail_next      = tail + (TagWidth + 1)'(allocate);

  always_ff @(posedge clk) begin
    head      <= head_next;
    tail      <= tail_next;
    allocated <= head_next != tail;
    started   <= !rst;
    if (rst) begin
      head      <= '0;
      tail      <= '0;
      allocated <= 1'b0;
    end
  end

  always_comb begin
    for (int unsigned m = 0; m < Marks; m++) begin
      enough[m] = complete[m] || StandsFor[m] != '0;
      for (int unsigned other = 0; other < Marks; other++) begin
        if (StandsFor[other][m] && complete[other]) enough[m] = 1'b1;
      end
    end
  end

  for (genvar m = 0; m < Marks; m++) begin : g_mark
    localparam bit Stands = StandsFor[m] != '0;
    logic given[Tags];
    logic done [Tags];
    logic given_at_head, done_at_head, done_at_tail, given_at_mark;
    logic marking;
    logic [TagWidth-1:0] marked_tag;

    assign complete[m] = given_at_head == done_at_head;

    // Both ends read again in every cycle what they will look at in the next one: marks may come meanwhile.
    always_ff @(posedge clk) begin
      if (allocate) given[allocate_tag] <= done_at_tail ^ (allocate_required[m] || Stands);
      given_at_head <= given[head_next[TagWidth-1:0]];
      given_at_mark <= given[mark_tag[m]];
    end

    always_ff @(posedge clk) begin
      if (marking) done[marked_tag] <= given_at_mark;
      done_at_head <= done[head_next[TagWidth-1:0]];
      done_at_tail <= done[tail_next[TagWidth-1:0]];
    end

    always_ff @(posedge clk) begin
      marking    <= mark_valid[m] && !rst;
      marked_tag <= mark_tag[m];
    end
  end
endmodule

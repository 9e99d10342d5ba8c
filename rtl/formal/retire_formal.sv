// SPDX-License-Identifier: Apache-2.0
//
// Properties of `retire`: tags given and retired in order, none given while in use, none retired before its required
// marks, and each on offer from 3 cycles after its last mark on. Marks that aren't required or come twice are allowed,
// and so is reset at any time. Mark 2 stands for mark 0.
module retire_formal #(
    localparam int unsigned Tags     = 4,
    localparam int unsigned Marks    = 3,
    localparam int unsigned TagWidth = $clog2(Tags)
) (
    input logic                           clk,
    input logic                           reset_again,
    input logic                           allocate_valid,
    input logic [Marks-1:0]               allocate_required,
    input logic [Marks-1:0]               mark_valid,
    input logic [Marks-1:0][TagWidth-1:0] mark_tag,
    input logic                           retire_ready
);
  logic begun = 1'b0;
  always_ff @(posedge clk) begun <= 1'b1;
  logic rst;
  assign rst = !begun || reset_again;

  logic allocate_ready, retire_valid;
  logic [TagWidth-1:0] allocate_tag, retire_tag;
  retire #(
      .Tags     (Tags),
      .Marks    (Marks),
      .StandsFor({3'b001, 3'b000, 3'b000})
  ) dut (
      .*
  );

  // What is owed: `age` is for how many cycles a tag in use has had all its marks, at most 2.
  logic [TagWidth:0] given, retired;
  logic [Tags-1:0] used;
  logic [Tags-1:0][Marks-1:0] owed;
  logic [Tags-1:0] due;  // for want of a mark that none stands for
  logic [Tags-1:0][1:0] age;
  logic allocate, pop;
  assign allocate = allocate_valid && allocate_ready;
  assign pop      = retire_valid && retire_ready;

  for (genvar t = 0; t < Tags; t++) begin : g_due
    assign due[t] = owed[t][1] || owed[t][0] && owed[t][2];
  end

  for (genvar m = 0; m < Marks; m++) begin : g_assume
    always_comb if (!rst) assume (!mark_valid[m] || used[mark_tag[m]]);
  end
  always_comb
    if (!rst) begin
      if (mark_valid[0]) assume (owed[mark_tag[0]][2]);
      if (mark_valid[2]) assume (owed[mark_tag[2]][0] && !(mark_valid[0] && mark_tag[0] == mark_tag[2]));
    end

  always_ff @(posedge clk) begin
    for (int unsigned t = 0; t < Tags; t++)
      if (!used[t] || due[t]) age[t] <= '0;
      else if (age[t] != 2) age[t] <= age[t] + 1'b1;
    for (int unsigned m = 0; m < Marks; m++) if (mark_valid[m]) owed[mark_tag[m]][m] <= 1'b0;
    if (pop) begin
      used[retire_tag] <= 1'b0;
      age[retire_tag]  <= '0;
      retired          <= retired + 1'b1;
    end
    if (allocate) begin
      used[allocate_tag] <= 1'b1;
      owed[allocate_tag] <= allocate_required | 3'b100;
      given              <= given + 1'b1;
    end
    if (rst) begin
      used    <= '0;
      age     <= '0;
      given   <= '0;
      retired <= '0;
    end
  end

  always_comb
    if (!rst) begin
      assert (allocate_tag == given[TagWidth-1:0]);
      assert (retire_tag == retired[TagWidth-1:0]);
      if (allocate) assert (!used[allocate_tag]);
      if (retire_valid) assert (used[retire_tag] && !due[retire_tag]);
      if (used[retire_tag] && age[retire_tag] == 2) assert (retire_valid);
      if (!allocate_ready) assert (&used || !dut.started);
    end

  always_ff @(posedge clk)
    if (begun && !rst && !$past(rst)) begin
      assert (dut.started);
      if ($past(retire_valid && !retire_ready)) assert (retire_valid);
    end

  // What holds inside, for the induction.
  logic [TagWidth:0] in_use;
  assign in_use = dut.tail - dut.head;
  always_comb
    if (!rst) begin
      assert (given == dut.tail && retired == dut.head && in_use <= (TagWidth + 1)'(Tags));
      if (!dut.started) assert (used == '0 && !dut.allocated);
      if (dut.allocated) assert (used[retire_tag]);
      if (used[retire_tag] && age[retire_tag] != 0) assert (dut.allocated);
    end
  for (genvar t = 0; t < Tags; t++) begin : g_tag
    logic [TagWidth-1:0] from_head;
    assign from_head = TagWidth'(t) - dut.head[TagWidth-1:0];
    always_comb if (!rst) assert (used[t] == ({1'b0, from_head} < in_use));
    always_comb if (!rst && age[t] != 0) assert (age[t] != 3 && used[t] && !due[t]);
  end
  for (genvar m = 0; m < Marks; m++) begin : g_inside
    logic [Tags-1:0] given_bits, done_bits;
    for (genvar t = 0; t < Tags; t++) begin : g_tag
      assign given_bits[t] = dut.g_mark[m].given[t];
      assign done_bits[t]  = dut.g_mark[m].done[t];
      logic marking;
      assign marking = dut.g_mark[m].marking && dut.g_mark[m].marked_tag == TagWidth'(t);
      always_comb
        if (!rst) begin
          if (used[t] && owed[t][m]) assert (given_bits[t] != done_bits[t] && !marking);
          if (used[t] && !owed[t][m]) assert (given_bits[t] == done_bits[t] || marking && age[t] == 0);
          if (marking) assert (dut.g_mark[m].given_at_mark == (used[t] ? given_bits[t] : done_bits[t]));
        end
    end
    always_comb
      if (!rst) begin
        if (dut.allocated) assert (dut.g_mark[m].given_at_head == given_bits[retire_tag]);
        if (dut.allocated && dut.complete[m]) assert (given_bits[retire_tag] == done_bits[retire_tag]);
        if (used[retire_tag] && age[retire_tag] == 2) assert (dut.enough[m]);
        if (allocate_ready) assert (dut.g_mark[m].done_at_tail == done_bits[allocate_tag]);
      end
  end

  logic was_full, overtaken;
  always_ff @(posedge clk) begin
    was_full  <= !rst && (was_full || &used);
    overtaken <= !rst && (overtaken || used[0] && owed[0] == '1 && used[1] && !due[1] && age[1] == 2);
  end
  always_comb
    if (!rst) begin
      cover (was_full && used == '0);
      cover (overtaken && pop && retire_tag == 1);
      cover (was_full && pop && allocate && dut.head[TagWidth]);
      cover (pop && age[retire_tag] == 1);
      cover (pop && owed[retire_tag] == 3'b001);
    end
endmodule

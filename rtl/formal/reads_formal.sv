// SPDX-License-Identifier: Apache-2.0
//
// Properties of `reads`: an ID in use is not given again, each read has one address out, and is done once, with what was
// kept of it and with the bytes that memory gave for its ID, in whatever order memory answers. Memory answers what it was
// asked; the user begins a read only where there was room, and none
// before all IDs are born (`bank` waits longer for its cache).
module reads_formal #(
    localparam int unsigned Ids          = 4,
    localparam int unsigned IdWidth      = $clog2(Ids),
    localparam int unsigned LineWidth    = 2,
    localparam int unsigned ContextWidth = 2
) (
    input logic                    clk,
    input logic                    start,
    input logic [LineWidth-1:0]    start_line,
    input logic [ContextWidth-1:0] start_context,
    input logic                    done_ready,
    input logic                    arready,
    input logic                    rvalid,
    input logic [IdWidth-1:0]      answer_id,
    input logic [255:0]            rdata,
    input logic [1:0]              rresp
);
  logic rst = 1'b1;
  always_ff @(posedge clk) rst <= 1'b0;

  logic room, done_valid, done_bad, error, arvalid, rready;
  logic [IdWidth-1:0] id, done_id;
  logic [ContextWidth-1:0] done_context;
  logic [255:0] done_data;
  logic [5:0] arid;
  logic [32:0] araddr;
  reads #(
      .LineBytes   (32),
      .LineWidth   (LineWidth),
      .ContextWidth(ContextWidth),
      .Ids         (Ids)
  ) dut (
      .*,
      .rid  (6'(answer_id)),
      .rlast(1'b1)
  );

  // What is owed: a read that began is `used` until done; its address is `unasked` until it left, then it is `asked` until
  // memory answered, then `arrived`.
  logic [Ids-1:0] used, unasked, asked, arrived;
  logic [Ids-1:0][ContextWidth-1:0] context_of;
  logic [Ids-1:0][LineWidth-1:0] line_of;
  logic [Ids-1:0][7:0] data_of;  // the lowest byte stands for all
  logic [Ids-1:0] bad_of;
  logic had_room, done;
  assign done = done_valid && done_ready;

  always_comb
    if (!rst) begin
      assume (!start || had_room && !dut.being_born);
      assume (!rvalid || asked[answer_id]);
    end

  always_ff @(posedge clk) begin
    had_room <= room;
    if (start) begin
      {used[id], unasked[id]} <= 2'b11;
      context_of[id] <= start_context;
      line_of[id]    <= start_line;
    end
    if (arvalid && arready) {unasked[arid[IdWidth-1:0]], asked[arid[IdWidth-1:0]]} <= 2'b01;
    if (rvalid && rready) begin
      {asked[answer_id], arrived[answer_id]} <= 2'b01;
      {bad_of[answer_id], data_of[answer_id]} <= |rresp ? '1 : {1'b0, rdata[7:0]};
    end
    if (done) {used[done_id], arrived[done_id]} <= 2'b00;
    if (rst) {had_room, used, unasked, asked, arrived} <= '0;
  end

  always_comb
    if (!rst) begin
      if (start) assert (!used[id] && dut.unused_valid && dut.unused_address_ready);
      if (arvalid) assert (arid < 6'(Ids) && unasked[arid[IdWidth-1:0]]);
      if (arvalid) assert (araddr == 33'(line_of[arid[IdWidth-1:0]]) << 5);
      if (done_valid) begin
        assert (arrived[done_id]);
        assert (done_context == context_of[done_id] && done_data[7:0] == data_of[done_id]);
        assert (done_bad == bad_of[done_id]);
      end
      if (dut.release_id) assert (dut.unused_ready && !dut.being_born);
    end

  // What holds inside, for the induction: each ID is in one place.
  logic [2:0] waits;
  assign waits = dut.ids.write_pointer - dut.ids.read_pointer;
  logic [2:0] addresses;
  assign addresses = dut.addresses.write_pointer - dut.addresses.read_pointer;
  for (genvar i = 0; i < Ids; i++) begin : g_id
    logic [Ids-1:0] here, queued;
    for (genvar k = 0; k < Ids; k++) begin : g_slot
      logic [1:0] from_read;
      assign from_read = 2'(k) - dut.ids.read_pointer[1:0];
      assign here[k] = 3'(from_read) < waits && dut.ids.ram[k] == IdWidth'(i);
    end
    for (genvar k = 0; k < 4; k++) begin : g_address
      logic [1:0] from_read;
      assign from_read = 2'(k) - dut.addresses.read_pointer[1:0];
      assign queued[k] = 3'(from_read) < addresses && dut.addresses.ram[k] == {IdWidth'(i), line_of[i]};
    end
    logic offered, unborn, leaving;
    assign offered = dut.ids.m_valid && dut.ids.m_data == IdWidth'(i);
    assign unborn  = dut.being_born && dut.born <= (IdWidth + 1)'(i);
    assign leaving = arvalid && {dut.ar_id, dut.ar_line} == {IdWidth'(i), line_of[i]};
    always_comb
      if (!rst) begin
        assert (3'($countones(here)) + 3'(offered) + 3'(unborn) + 3'(used[i]) == 3'd1);
        assert (3'($countones(queued)) + 3'(leaving) == 3'(unasked[i]));
        assert (2'(unasked[i]) + 2'(asked[i]) + 2'(arrived[i]) == 2'(used[i]));
        if (arrived[i]) assert (done_valid && done_id == IdWidth'(i));
        if (used[i]) assert (dut.contexts[i] == context_of[i] || arrived[i]);
      end
  end
  always_comb
    if (!rst) begin
      assert (waits <= 3'(Ids) && addresses <= 3'd4 && dut.born <= (IdWidth + 1)'(Ids));
      assert (dut.free_ids == 3'(waits) + 3'(dut.ids.m_valid) && (dut.ids.m_valid || waits == 0));
      assert (dut.waiting == addresses + 3'(arvalid) && (arvalid || addresses == 0));
      assert (3'($countones(used)) + dut.free_ids + (dut.being_born ? 3'(Ids) - dut.born : 3'd0) == 3'(Ids));
      assert (3'($countones(unasked)) == dut.waiting);
      if (had_room) assert (dut.free_ids >= 1 && dut.waiting <= 3);
      assert (!dut.being_born || used == '0);
    end

  logic all_used, overtaken;
  always_ff @(posedge clk) begin
    all_used  <= !rst && (all_used || $countones(used) >= 3);
    overtaken <= !rst && (overtaken || done && unasked != '0);
  end
  always_comb
    if (!rst) begin
      cover (all_used && used == '0);
      cover (overtaken && done && done_data[7:0] == 8'd5);
      cover (start && done);
      cover (error);
    end
endmodule

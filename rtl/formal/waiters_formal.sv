// SPDX-License-Identifier: Apache-2.0
//
// Properties of `waiters`: who waits is given once, in order, with what it brought, from the cycle after its read was done
// on if it is the first, and not before. Who comes was promised room the cycle before.
module waiters_formal #(
    localparam int unsigned Width   = 2,
    localparam int unsigned Depth   = 4,
    localparam int unsigned IdWidth = 2
) (
    input logic               clk,
    input logic               reset_again,
    input logic               s_valid,
    input logic [Width-1:0]   s_data,
    input logic [IdWidth-1:0] s_id,
    input logic               wake,
    input logic [IdWidth-1:0] wake_id,
    input logic               m_ready
);
  logic begun = 1'b0;
  always_ff @(posedge clk) begun <= 1'b1;
  logic rst;
  assign rst = !begun || reset_again;

  logic room, m_valid;
  logic [Width-1:0] m_data;
  waiters #(
      .Width  (Width),
      .Depth  (Depth),
      .IdWidth(IdWidth)
  ) dut (
      .*
  );

  logic had_room;
  always_comb if (!rst) assume (!s_valid || had_room);

  // Who waits, by the number of its coming; up to one more than Depth, as many as the queue holds.
  logic [2:0] first, next, count;
  logic [7:0][Width-1:0] data;
  logic [7:0][IdWidth-1:0] ids;
  logic [7:0] done;
  assign count = next - first;

  always_ff @(posedge clk) begin
    had_room <= room;
    for (int unsigned i = 0; i < 8; i++) if (wake && ids[i] == wake_id) done[i] <= 1'b1;
    if (s_valid) begin
      data[next] <= s_data;
      ids[next]  <= s_id;
      done[next] <= wake && wake_id == s_id;
      next       <= next + 1'b1;
    end
    if (m_valid && m_ready) first <= first + 1'b1;
    if (rst) {first, next, had_room} <= '0;
  end

  always_comb
    if (!rst) begin
      assert (m_valid == (count != 0 && done[first]));
      if (m_valid) assert (m_data == data[first]);
      if (s_valid) assert (dut.unused_ready && count < 3'(Depth));
    end

  // What holds inside, for the induction.
  logic [2:0] queued;
  assign queued = dut.line.write_pointer - dut.line.read_pointer;
  always_comb
    if (!rst) begin
      assert (first == dut.read_pointer && next == dut.write_pointer && count <= 3'(Depth));
      assert (dut.first_valid == (count != 0) && queued + 3'(dut.first_valid) == count);
      if (dut.first_valid) assert (dut.line.m_data == data[first]);
      if (had_room) assert (count < 3'(Depth));
    end
  for (genvar k = 0; k < Depth; k++) begin : g_slot
    // The k-th of those who wait.
    logic [2:0] number, behind;
    assign number = first + 3'(k);
    assign behind = dut.line.read_pointer + 3'(k);
    always_comb
      if (!rst) begin
        if (3'(k) < count) assert (dut.ids[number[1:0]] == ids[number] && dut.done[number[1:0]] == done[number]);
        if (3'(k) < queued) assert (dut.line.ram[behind[1:0]] == data[3'(number + 1)]);
      end
  end

  logic was_full;
  always_ff @(posedge clk) was_full <= !rst && (was_full || count >= 3);
  always_comb
    if (!rst) begin
      cover (was_full && count == 0);
      cover (m_valid && m_ready && s_valid && wake && count == 2);
      cover (count == 2 && done[first+1'b1] && !m_valid);
    end
endmodule

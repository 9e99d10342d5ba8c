// SPDX-License-Identifier: Apache-2.0
//
// Properties of `hold`: a packet of a group's turn that is not released does not leave before its release; rings never
// hold more than they have room for; every beat that is neither dropped nor a release comes out once; a beat that was
// kept comes out as it was; a beat on offer stays. Packets have as many beats as their size says.
module hold_formal
  import viaduct_pkg::*;
#(
    localparam int unsigned Releases = 2,
    localparam int unsigned Depth    = 4
) (
    input logic       clk,
    input logic       reset_again,
    input logic       s_valid,
    input hold_t      s_hold,
    input logic       s_last,
    input logic [8:0] s_size,
    input logic [7:0] s_data,
    input logic       m_ready,
    input logic       pick
);
  logic begun = 1'b0;
  always_ff @(posedge clk) begun <= 1'b1;
  logic rst;
  assign rst = !begun || reset_again;

  logic s_ready, m_valid;
  beat_t s_beat, m_beat;
  logic [HoldGroups-1:0] turns;
  logic [31:0] kept, full;
  assign s_beat = '{last: s_last, direct: 1'b0, port: '0, size: 16'(s_size), data: 512'(s_data)};
  hold #(
      .Releases(Releases),
      .Depth   (Depth)
  ) dut (
      .*
  );

  // What comes behind the skid, which has its own proof: whole packets, the same hold and size with each beat.
  logic [2:0] left, beats;
  hold_t held;
  logic [15:0] size;
  assign beats = dut.beats[2:0];
  always_ff @(posedge clk)
    if (dut.taken) begin
      left <= (dut.begun ? left : beats) - 1'b1;
      held <= dut.head_hold;
      size <= dut.head.size;
    end
  always_comb
    if (dut.head_valid) begin
      assume (dut.head.size != 0 && dut.head.size <= 16'(64 * (Depth + 1)));
      assume (dut.head.last == ((dut.begun ? left : beats) == 1));
      assume (dut.head_hold.kind != HoldRelease || beats == 1);
      if (dut.begun) assume (dut.head_hold == held && dut.head.size == size);
    end

  // Beats that are to come out and have not.
  logic [5:0] under_way, waiting;
  logic enters, pop;
  assign enters = dut.taken && (dut.way == 2'd0 || dut.way == 2'd1);
  assign pop    = m_valid && m_ready;
  always_ff @(posedge clk) begin
    under_way <= under_way + 6'(enters) - 6'(pop);
    if (rst) under_way <= '0;
  end
  always_comb begin
    waiting = 6'(m_valid) + 6'(dut.ram_valid) - (dut.draining ? 6'(dut.at) : 6'd0);
    for (int unsigned g = 0; g < HoldGroups; g++) waiting += 6'(dut.levels[g]);
  end

  // A beat that is kept, picked at will.
  logic watched;
  logic [1:0] group;
  logic [2:0] place;
  logic [7:0] word;  // a byte of it: the others go the same way
  always_ff @(posedge clk) begin
    if (dut.taken && dut.way == 2'd1 && !watched && pick) begin
      watched <= 1'b1;
      group   <= dut.head_hold.group;
      place   <= dut.levels[dut.head_hold.group];
      word    <= dut.head.data[7:0];
    end
    if (watched && dut.draining && dut.drained.group == group && dut.at == place && dut.read) watched <= 1'b0;
    if (rst) watched <= 1'b0;
  end

  beat_t watched_beat;
  assign watched_beat = dut.ram[{group, place[1:0]}];

  always_ff @(posedge clk)
    if (begun && !rst && !$past(rst)) begin
      if ($past(m_valid && !m_ready)) assert (m_valid && m_beat.data[7:0] == $past(m_beat.data[7:0]));
      if ($past(watched && !rst) && !watched) assert (dut.ram_valid && dut.ram_beat.data[7:0] == $past(word));
    end

  always_comb
    if (!rst) begin
      assert (under_way == waiting);
      for (int unsigned g = 0; g < HoldGroups; g++) assert (32'(dut.levels[g]) <= Depth);
      if (dut.taken && dut.head_hold.kind == HoldWait && dut.way == 2'd0 && !dut.begun)
        assert (dut.head_hold.turn == turns[dut.head_hold.group]);
      if (dut.draining) assert (!dut.taken && dut.stop == dut.levels[dut.drained.group] && dut.at <= dut.stop);
      else assert (!dut.ram_valid);
      if (watched) begin
        assert (place < dut.levels[group] && watched_beat.data[7:0] == word);
        if (dut.draining && dut.drained.group == group) assert (dut.at <= place);
      end
      // For the induction.
      if (dut.begun) begin
        assert (left != 0 && held.kind != HoldRelease && dut.begun_way != 2'd3);
        if (dut.begun_way == 2'd1) assert (32'(dut.levels[held.group]) + 32'(left) <= Depth);
        assert (!dut.draining);
      end
      for (int unsigned g = 0; g < HoldGroups; g++) assert (dut.releases[g] < Releases);
    end

  always_comb
    if (!rst) begin
      cover (dut.draining && dut.stop == 3'(Depth) && pop);
      cover (full == 1 && kept == 2 && under_way == 0);
      cover (dut.taken && dut.way == 2'd0 && dut.head_hold.kind == HoldWait && turns != 0);
    end
endmodule

// SPDX-License-Identifier: Apache-2.0
// Where packets of flows that change hands wait, in front of an output: those of a hold group go into the group's ring
// until it is released; all others pass. A packet that does not fit whole is dropped, and counted.
//
// A release comes in band, behind what the host sent here: one by each pipe, so that nothing which a pipe sent before is
// still under way. With the last of them the ring goes out (the input waits), and then packets of the group pass. A group
// has two turns, so that it may be used again: the turn released last passes, the other one waits for its release.
//
// Latency 2 clocks, throughput 1 beat per clock; `s_ready` and outputs are registered.
module hold
  import viaduct_pkg::*;
#(
    parameter int unsigned Releases = 4,   // that release a group: as many as there are pipes
    parameter int unsigned Depth    = 512  // beats of a group's ring; power of two
) (
    input  logic                  clk,
    input  logic                  rst,
    input  logic                  s_valid,
    output logic                  s_ready,
    input  hold_t                 s_hold,  // of the packet: the same with each of its beats
    input  beat_t                 s_beat,
    output logic                  m_valid,
    input  logic                  m_ready,
    output beat_t                 m_beat,
    output logic [HoldGroups-1:0] turns,   // released last
    output logic [31:0]           kept,    // packets that had to wait
    output logic [31:0]           full     // packets dropped
);
  if (Depth < 2 || (Depth & (Depth - 1)) != 0) $error("hold: Depth must be a power of two, at least 2");
  localparam int unsigned At = $clog2(Depth);
  localparam int unsigned CountWidth = Releases > 1 ? $clog2(Releases) : 1;

  typedef enum logic [1:0] {
    Pass,
    Keep,
    Discard,
    Swallow
  } way_e;

  hold_t head_hold;
  beat_t head;
  logic  head_valid, head_ready, taken;

  skid #(
      .Width($bits(hold_t) + $bits(beat_t))
  ) skid (
      .clk,
      .rst,
      .s_valid,
      .s_ready,
      .s_data ({s_hold, s_beat}),
      .m_valid(head_valid),
      .m_ready(head_ready),
      .m_data ({head_hold, head})
  );

  // ---- A packet's way, chosen with its first beat

  logic                               begun;  // the first beat was taken
  way_e                               way, begun_way;
  logic [HoldGroups-1:0][At:0]        levels;  // beats in the rings
  logic [HoldGroups-1:0][CountWidth-1:0] releases;
  logic                               fits, released;
  logic [10:0]                        beats;

  assign beats    = 11'((17'(head.size) + 17'(BeatBytes - 1)) >> $clog2(BeatBytes));
  assign fits     = 32'(levels[head_hold.group]) + 32'(beats) <= Depth;
  assign released = 32'(releases[head_hold.group]) == Releases - 1;

  always_comb begin
    way = Pass;
    if (begun) way = begun_way;
    else if (head_hold.kind == HoldRelease) way = Swallow;
    else if (head_hold.kind == HoldWait && head_hold.turn != turns[head_hold.group]) way = fits ? Keep : Discard;
  end

  // ---- Rings, each written from its beginning, and read as a whole

  logic          draining, output_free, read, ram_valid;
  hold_t         drained;
  logic [At:0]   at, stop;
  beat_t         ram[HoldGroups * Depth];
  beat_t         ram_beat;

  assign output_free = !m_valid || m_ready;
  assign head_ready  = !draining && (way != Pass || output_free);
  assign taken       = head_valid && head_ready;
  assign read        = draining && at != stop && (!ram_valid || output_free);

  always_ff @(posedge clk) begin
    if (taken && way == Keep) ram[{head_hold.group, levels[head_hold.group][At-1:0]}] <= head;
    if (read) ram_beat <= ram[{drained.group, at[At-1:0]}];
    if (output_free) m_beat <= draining ? ram_beat : head;
  end

  always_ff @(posedge clk) begin
    if (taken) begin
      begun     <= !head.last;
      begun_way <= way;
      if (way == Keep) levels[head_hold.group] <= levels[head_hold.group] + 1'b1;
      if (way == Keep && !begun) kept <= kept + 32'd1;
      if (way == Discard && !begun) full <= full + 32'd1;
      if (way == Swallow) releases[head_hold.group] <= released ? '0 : releases[head_hold.group] + 1'b1;
      if (way == Swallow && released) begin
        {draining, drained} <= {1'b1, head_hold};
        {at, stop}          <= {{At + 1{1'b0}}, levels[head_hold.group]};
      end
    end
    if (read) at <= at + 1'b1;
    if (read) ram_valid <= 1'b1;
    else if (output_free) ram_valid <= 1'b0;
    if (output_free) m_valid <= draining ? ram_valid : taken && way == Pass;
    if (draining && at == stop && !ram_valid) begin
      draining              <= 1'b0;
      turns[drained.group]  <= drained.turn;
      levels[drained.group] <= '0;
    end
    if (rst) begin
      {begun, draining, ram_valid, m_valid} <= '0;
      {levels, releases, turns}             <= '0;
      {kept, full}                          <= '0;
    end
  end
endmodule

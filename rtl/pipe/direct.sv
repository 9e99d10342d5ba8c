// SPDX-License-Identifier: Apache-2.0
// Packets that the host decided, and that are sent as they are: takes the `punt_meta_t` beat off their front. One that is
// nothing else is a release, or passes as it is.
//
// No clocks of its own: beats pass through; the first beat of a packet with more is taken and gives nothing.
module direct
  import registers_pkg::*;
  import viaduct_pkg::*;
(
    input  logic       clk,
    input  logic       rst,
    input  logic       s_valid,
    output logic       s_ready,
    input  beat_t      s_beat,
    output logic       m_valid,
    input  logic       m_ready,
    output beat_t      m_beat,
    output logic [3:0] m_egress,
    output hold_t      m_hold
);

  punt_meta_t meta, held;
  logic       begun;  // a packet's first beat was taken
  logic       alone;

  assign meta    = s_beat.data;
  assign alone   = !begun && s_beat.last;
  assign s_ready = !begun && !alone || m_ready;
  assign m_valid = s_valid && (begun || alone);

  always_comb begin
    m_beat        = s_beat;
    m_beat.direct = alone;
    m_beat.port   = alone ? meta.port : held.port;
    m_beat.size   = alone ? 16'(BeatBytes) : held.size;
    m_egress      = alone ? meta.egress : held.egress;
    m_hold        = '{alone && meta.release_hold ? HoldRelease : HoldNone, meta.hold[2], meta.hold[1:0]};
  end

  always_ff @(posedge clk) begin
    if (rst) begun <= 1'b0;
    else if (s_valid && s_ready) begin
      begun <= !s_beat.last;
      if (!begun) held <= meta;
    end
  end

endmodule

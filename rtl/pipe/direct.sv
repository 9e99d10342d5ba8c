// SPDX-License-Identifier: Apache-2.0
// Packets that the host decided, and that are sent as they are: takes the `punt_meta_t` beat off their front.
//
// No clocks of its own: beats pass through; the first beat of a packet is taken and gives nothing.
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
    output logic [3:0] m_egress
);

  punt_meta_t meta, held;
  logic       begun;  // a packet's first beat was taken

  assign meta    = s_beat.data;
  assign s_ready = !begun || m_ready;
  assign m_valid = begun && s_valid;

  always_comb begin
    m_beat        = s_beat;
    m_beat.direct = 1'b0;
    m_beat.port   = held.port;
    m_beat.size   = held.size;
    m_egress      = held.egress;
  end

  always_ff @(posedge clk) begin
    if (rst) begun <= 1'b0;
    else if (s_valid && s_ready) begin
      begun <= !s_beat.last;
      if (!begun) held <= meta;
    end
  end

endmodule

// SPDX-License-Identifier: Apache-2.0
// The first two beats of a packet side by side, its first byte highest.
//
// Packets of the host's that are sent as they are (`direct`) are not looked at.
// Latency: 1 clock from a packet's second beat, or its only one. Throughput: one beat per clock.
module parse_window
  import viaduct_pkg::*;
  import parse_pkg::*;
(
    input  logic   clk,
    input  logic   rst,
    input  logic   s_valid,
    input  beat_t  s_beat,
    output logic   m_valid,
    output parse_t m
);

  // Which beat of its packet is next; all behind the second are `Rest`.
  typedef enum logic [1:0] {
    First,
    Second,
    Rest
  } place_e;

  place_e place;
  logic [BeatWidth-1:0] first;
  logic [BeatWidth-1:0] now;

  always_comb for (int k = 0; k < BeatBytes; k++) now[BeatWidth-1-8*k-:8] = s_beat.data[8*k+:8];

  always_ff @(posedge clk) begin
    if (s_valid) begin
      if (s_beat.last) place <= First;
      else place <= place == First ? Second : Rest;
    end
    if (place == First) first <= now;
    m_valid <= s_valid && !s_beat.direct && (place == Second || (place == First && s_beat.last));
    if (rst) begin
      place   <= First;
      m_valid <= 1'b0;
    end
  end

  always_ff @(posedge clk) begin
    m <= '0;
    m.header.port <= s_beat.port;
    m.header.size <= s_beat.size;
    m.header.stop <= s_beat.size;
    m.header.has_ethernet <= 1'b1;
    m.left <= s_beat.size;
    m.window <= {place == First ? now : first, now};
  end

endmodule

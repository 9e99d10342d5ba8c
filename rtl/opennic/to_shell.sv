// SPDX-License-Identifier: Apache-2.0
// Beats of the engine, as packets for OpenNIC's shell. What goes to the host has a beat of `punt_meta_t` in front: that
// which the engine put there, or, before a packet for a guest, one that says the guest's port.
//
// `m_tkeep` is exact. Latency 1 clock. Throughput 1 beat per clock; the beat in front takes one of its own.
module to_shell
  import registers_pkg::*;
  import viaduct_pkg::*;
#(
    parameter bit Wire = 1'b0
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 s_valid,
    output logic                 s_ready,
    input  beat_t                s_beat,
    output logic                 m_tvalid,
    input  logic                 m_tready,
    output logic [BeatWidth-1:0] m_tdata,
    output logic [BeatBytes-1:0] m_tkeep,
    output logic                 m_tlast,
    output logic [15:0]          m_tuser_size  // bytes, that beat's too
);

  punt_meta_t           meta;
  logic                 begun;  // the packet's first beat left
  logic                 marks;  // such a beat is put in front of it
  logic                 head;   // and is what leaves now
  logic                 last, ready;
  logic [15:0]          size;
  logic [BeatBytes-1:0] keep;

  assign marks   = !Wire && !s_beat.direct;
  assign head    = marks && !begun;
  assign last    = s_beat.last && !head;
  assign size    = s_beat.size + (marks ? 16'(BeatBytes) : 16'd0);
  assign s_ready = ready && !head;

  always_comb begin
    meta      = '0;
    meta.port = s_beat.port;
    meta.size = s_beat.size;
    for (int unsigned k = 0; k < BeatBytes; k++) keep[k] = !last || size[5:0] == '0 || size[5:0] > 6'(k);
  end

  always_ff @(posedge clk) begin
    if (rst) begun <= 1'b0;
    else if (s_valid && ready) begun <= !last;
  end

  skid #(.Width(BeatWidth + BeatBytes + 17)) out (
      .clk, .rst,
      .s_valid, .s_ready(ready), .s_data({head ? meta : s_beat.data, keep, last, size}),
      .m_valid(m_tvalid), .m_ready(m_tready), .m_data({m_tdata, m_tkeep, m_tlast, m_tuser_size})
  );

endmodule

// SPDX-License-Identifier: Apache-2.0
// Packets of OpenNIC's shell, as beats of the engine. What the host sends has a beat of `punt_meta_t` in front, since
// the shell says of it only by which function it came: with `egress` 15 the frame behind is what the guest at `port`
// sent, and the beat is taken off; else the frame is to be sent as it is. What comes by a wire has none.
//
// Latency 1 clock. Throughput 1 beat per clock. After a reset in the midst of a packet its rest is thrown away.
module from_shell
  import registers_pkg::*;
  import viaduct_pkg::*;
#(
    parameter bit       Wire = 1'b0,
    parameter port_id_t Port = '0      // the wire's
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 s_tvalid,
    output logic                 s_tready,
    input  logic [BeatWidth-1:0] s_tdata,
    input  logic                 s_tlast,
    input  logic [15:0]          s_tuser_size,
    output logic                 m_valid,
    input  logic                 m_ready,
    output beat_t                m_beat
);

  localparam logic [3:0] ToPipe = 4'd15;

  punt_meta_t meta;
  logic       begun, begun_next;    // the packet's first beat was taken
  logic       cut;                  // reset came since
  logic       by_guest, was_by_guest;
  port_id_t   port;
  logic       ready;
  beat_t      beat;

  assign meta       = s_tdata;
  assign by_guest   = begun ? was_by_guest : meta.egress == ToPipe;
  assign s_tready   = ready || cut;
  assign begun_next = s_tvalid && s_tready ? !s_tlast : begun;

  always_comb begin
    beat = '{last: s_tlast, direct: 1'b0, port: Port, size: s_tuser_size, data: s_tdata};
    if (!Wire) begin
      beat.direct = !by_guest;
      beat.port   = port;
      beat.size   = s_tuser_size - 16'(BeatBytes);
    end
  end

  // Not in reset: the shell goes on where it was.
  initial {begun, cut} = '0;
  always_ff @(posedge clk) begin
    begun <= begun_next;
    cut   <= begun_next && (cut || rst);
    if (!begun) {port, was_by_guest} <= {meta.port, by_guest};
  end

  skid #(.Width($bits(beat_t))) out (
      .clk, .rst,
      .s_valid(s_tvalid && !cut && (Wire || begun || !by_guest)), .s_ready(ready), .s_data(beat),
      .m_valid, .m_ready, .m_data(m_beat)
  );

endmodule

// SPDX-License-Identifier: Apache-2.0
//
// AXI-Stream packet demultiplexer: all beats of a packet go to the output named by `s_destination` at its first beat.
// Latency 0 (combinational), throughput 1 beat per cycle. Put a `skid` before or behind it to cut its paths.
module packet_demux #(
    parameter  int unsigned Outputs          = 4,
    parameter  int unsigned Width            = 512,
    localparam int unsigned DestinationWidth = Outputs > 1 ? $clog2(Outputs) : 1
) (
    input  logic                        clk,
    input  logic                        rst,
    input  logic                        s_valid,
    output logic                        s_ready,
    input  logic [Width-1:0]            s_data,
    input  logic                        s_last,
    // Below Outputs, else the packet waits for ever; stable while valid; read at the first beat only.
    input  logic [DestinationWidth-1:0] s_destination,
    output logic [Outputs-1:0]          m_valid,
    input  logic [Outputs-1:0]          m_ready,
    output logic [Width-1:0]            m_data,         // the same for all outputs
    output logic                        m_last
);
  logic                        in_packet;
  logic [DestinationWidth-1:0] held, destination;

  assign destination = in_packet ? held : s_destination;
  assign s_ready     = |(m_valid & m_ready);
  assign m_data      = s_data;
  assign m_last      = s_last;

  always_comb begin
    for (int unsigned o = 0; o < Outputs; o++) m_valid[o] = s_valid && destination == DestinationWidth'(o);
  end

  always_ff @(posedge clk) begin
    if (s_valid && s_ready) begin
      in_packet <= !s_last;
      held   <= destination;
    end
    if (rst) in_packet <= 1'b0;
  end
endmodule

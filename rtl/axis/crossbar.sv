// SPDX-License-Identifier: Apache-2.0
//
// AXI-Stream packet crossbar: any input to any output, packets whole, in order per (input, output), round robin per
// output. Latency 2 cycles without conflicts; throughput 1 beat per cycle and output, and per input. `s_ready` and
// outputs are registered. A packet waits for its own output only and an output for the packet that it has begun only,
// so there is no circular wait; an input that pauses inside a packet blocks its output, so feed it whole packets.
module crossbar #(
    parameter  int unsigned Inputs           = 4,
    parameter  int unsigned Outputs          = 4,
    parameter  int unsigned Width            = 512,
    localparam int unsigned DestinationWidth = Outputs > 1 ? $clog2(Outputs) : 1
) (
    input  logic                                    clk,
    input  logic                                    rst,
    input  logic [ Inputs-1:0]                      s_valid,
    output logic [ Inputs-1:0]                      s_ready,
    input  logic [ Inputs-1:0][          Width-1:0] s_data,
    input  logic [ Inputs-1:0]                      s_last,
    // Below Outputs; read at the first beat of a packet only.
    input  logic [ Inputs-1:0][DestinationWidth-1:0] s_destination,
    output logic [Outputs-1:0]                      m_valid,
    input  logic [Outputs-1:0]                      m_ready,
    output logic [Outputs-1:0][          Width-1:0] m_data,
    output logic [Outputs-1:0]                      m_last
);
  logic [ Inputs-1:0]              last;
  logic [ Inputs-1:0][  Width-1:0] data;
  logic [ Inputs-1:0][Outputs-1:0] valid, ready;
  logic [Outputs-1:0][ Inputs-1:0] valid_of, ready_of;

  for (genvar i = 0; i < Inputs; i++) begin : g_input
    logic held_valid, held_ready, held_last;
    logic [Width-1:0] held_data;
    logic [DestinationWidth-1:0] held_destination;

    skid #(
        .Width(DestinationWidth + 1 + Width)
    ) head (
        .clk,
        .rst,
        .s_valid(s_valid[i]),
        .s_ready(s_ready[i]),
        .s_data ({s_destination[i], s_last[i], s_data[i]}),
        .m_valid(held_valid),
        .m_ready(held_ready),
        .m_data ({held_destination, held_last, held_data})
    );

    packet_demux #(
        .Outputs(Outputs),
        .Width  (Width)
    ) demux (
        .clk,
        .rst,
        .s_valid      (held_valid),
        .s_ready      (held_ready),
        .s_data       (held_data),
        .s_last       (held_last),
        .s_destination(held_destination),
        .m_valid      (valid[i]),
        .m_ready      (ready[i]),
        .m_data       (data[i]),
        .m_last       (last[i])
    );
  end

  for (genvar o = 0; o < Outputs; o++) begin : g_output
    for (genvar i = 0; i < Inputs; i++) begin : g_transpose
      assign valid_of[o][i] = valid[i][o];
      assign ready[i][o]    = ready_of[o][i];
    end

    packet_mux #(
        .Inputs(Inputs),
        .Width (Width)
    ) mux (
        .clk,
        .rst,
        .s_valid(valid_of[o]),
        .s_ready(ready_of[o]),
        .s_data (data),
        .s_last (last),
        .m_valid(m_valid[o]),
        .m_ready(m_ready[o]),
        .m_data (m_data[o]),
        .m_last (m_last[o])
    );
  end
endmodule

// SPDX-License-Identifier: Apache-2.0
//
// AXI-Stream packet crossbar: any input to any output, packets whole, in order per (input, output), round robin per
// output. Each input has a queue for each output, so that a packet for a busy output keeps none from a free one, but
// when that queue is full. Latency 3 cycles without conflicts; throughput 1 beat per cycle and output, and per input.
// `s_ready` and outputs are registered. An output waits only for the packet that it has begun, so there is no circular
// wait; an input that pauses inside a packet blocks its output, so feed it whole packets.
module crossbar #(
    parameter  int unsigned Inputs           = 4,
    parameter  int unsigned Outputs          = 4,
    parameter  int unsigned Width            = 512,
    parameter  int unsigned Queue            = 512, // beats of an input that wait for an output; as `fifo`'s Depth
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
  logic [Outputs-1:0][Inputs-1:0]            valid, ready, last;
  logic [Outputs-1:0][Inputs-1:0][Width-1:0] data;

  for (genvar i = 0; i < Inputs; i++) begin : g_input
    logic held_valid, held_ready, held_last, last_in;
    logic [Width-1:0] held_data, data_in;
    logic [DestinationWidth-1:0] held_destination;
    logic [Outputs-1:0] valid_in, ready_in;

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
        .m_valid      (valid_in),
        .m_ready      (ready_in),
        .m_data       (data_in),
        .m_last       (last_in)
    );

    for (genvar o = 0; o < Outputs; o++) begin : g_queue
      /* verilator lint_off PINCONNECTEMPTY */
      fifo #(
          .Width(1 + Width),
          .Depth(Queue)
      ) queue (
          .clk,
          .rst,
          .s_valid    (valid_in[o]),
          .s_ready    (ready_in[o]),
          .s_data     ({last_in, data_in}),
          .m_valid    (valid[o][i]),
          .m_ready    (ready[o][i]),
          .m_data     ({last[o][i], data[o][i]}),
          .level      (),
          .almost_full()
      );
      /* verilator lint_on PINCONNECTEMPTY */
    end
  end

  for (genvar o = 0; o < Outputs; o++) begin : g_output
    packet_mux #(
        .Inputs(Inputs),
        .Width (Width)
    ) mux (
        .clk,
        .rst,
        .s_valid(valid[o]),
        .s_ready(ready[o]),
        .s_data (data[o]),
        .s_last (last[o]),
        .m_valid(m_valid[o]),
        .m_ready(m_ready[o]),
        .m_data (m_data[o]),
        .m_last (m_last[o])
    );
  end
endmodule

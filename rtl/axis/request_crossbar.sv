// SPDX-License-Identifier: Apache-2.0
//
// Crossbar of single-beat requests: each goes to the output it names and carries the index of its input along, for
// the answer's way back. In order per (input, output), round robin per output. Latency 2 cycles without conflicts;
// throughput 1 request per cycle and output, and per input. `s_ready` and outputs are registered. Two requests wait
// at each input; the first in line holds up the second, whatever their outputs.
module request_crossbar #(
    parameter  int unsigned Inputs           = 4,
    parameter  int unsigned Outputs          = 16,
    parameter  int unsigned Width            = 64,
    localparam int unsigned DestinationWidth = Outputs > 1 ? $clog2(Outputs) : 1,
    localparam int unsigned SourceWidth      = Inputs > 1 ? $clog2(Inputs) : 1
) (
    input  logic                                     clk,
    input  logic                                     rst,
    input  logic [ Inputs-1:0]                       s_valid,
    output logic [ Inputs-1:0]                       s_ready,
    input  logic [ Inputs-1:0][           Width-1:0] s_data,
    input  logic [ Inputs-1:0][DestinationWidth-1:0] s_destination,  // below Outputs
    output logic [Outputs-1:0]                       m_valid,
    input  logic [Outputs-1:0]                       m_ready,
    output logic [Outputs-1:0][           Width-1:0] m_data,
    output logic [Outputs-1:0][     SourceWidth-1:0] m_source
);
  logic [ Inputs-1:0]                       valid, ready;
  logic [ Inputs-1:0][           Width-1:0] data;
  logic [ Inputs-1:0][DestinationWidth-1:0] destination;
  logic [Outputs-1:0][          Inputs-1:0] taken;

  for (genvar i = 0; i < Inputs; i++) begin : g_input
    logic [Outputs-1:0] taken_by;

    skid #(
        .Width(DestinationWidth + Width)
    ) head (
        .clk,
        .rst,
        .s_valid(s_valid[i]),
        .s_ready(s_ready[i]),
        .s_data ({s_destination[i], s_data[i]}),
        .m_valid(valid[i]),
        .m_ready(ready[i]),
        .m_data ({destination[i], data[i]})
    );

    for (genvar o = 0; o < Outputs; o++) begin : g_taken
      assign taken_by[o] = taken[o][i];
    end
    assign ready[i] = |taken_by;
  end

  for (genvar o = 0; o < Outputs; o++) begin : g_output
    logic [Inputs-1:0] request, grant;
    logic [SourceWidth-1:0] source;
    logic [Width-1:0] chosen;
    logic output_free;

    assign output_free = !m_valid[o] || m_ready[o];
    assign taken[o]    = output_free ? grant : '0;

    for (genvar i = 0; i < Inputs; i++) begin : g_request
      assign request[i] = valid[i] && destination[i] == DestinationWidth'(o);
    end

    round_robin #(
        .Requesters(Inputs)
    ) arbiter (
        .clk,
        .rst,
        .request,
        .advance(output_free),
        .grant,
        .index  (source)
    );

    always_comb begin
      chosen = '0;
      for (int unsigned i = 0; i < Inputs; i++) if (grant[i]) chosen |= data[i];
    end

    always_ff @(posedge clk) begin
      if (output_free) begin
        m_valid[o]  <= |grant;
        m_data[o]   <= chosen;
        m_source[o] <= source;
      end
      if (rst) m_valid[o] <= 1'b0;
    end
  end
endmodule

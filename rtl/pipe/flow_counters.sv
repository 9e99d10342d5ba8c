// SPDX-License-Identifier: Apache-2.0
// Counters of flows, and events of those that passed another eighth of their range: a host that reads a counter at each
// of its events knows how often it began anew, also of the sum over up to seven pipes.
//
// Where events come faster than they are taken, `lost` stays set until `clear_lost`: then all counters are to be read.
module flow_counters #(
    parameter  int unsigned Flows        = 262144,
    parameter  int unsigned PacketsWidth = 36,
    parameter  int unsigned BytesWidth   = 44,
    parameter  int unsigned Events       = 512,
    localparam int unsigned NumberWidth  = $clog2(Flows)
) (
    input  logic                    clk,
    input  logic                    rst,
    input  logic                    valid,
    input  logic [NumberWidth-1:0]  number,
    input  logic [15:0]             size,     // bytes
    input  logic [NumberWidth-1:0]  rd_number,
    output logic [PacketsWidth-1:0] rd_packets,
    output logic [BytesWidth-1:0]   rd_bytes,
    output logic                    event_valid,
    input  logic                    event_ready,
    output logic [NumberWidth-1:0]  event_number,
    output logic [1:0]              event_which,  // packets, bytes
    output logic                    lost,
    input  logic                    clear_lost
);

  logic [1:0]             passed;
  logic [NumberWidth-1:0] passed_number;
  logic                   room;

  counter_ram #(.Entries(Flows), .PacketsWidth(PacketsWidth), .BytesWidth(BytesWidth)) counters (
      .clk, .rst, .valid, .number, .size, .rd_number, .rd_packets, .rd_bytes, .passed, .passed_number
  );

  fifo #(.Width(2 + NumberWidth), .Depth(Events)) events (
      .clk, .rst,
      .s_valid(|passed), .s_ready(room), .s_data({passed, passed_number}),
      .m_valid(event_valid), .m_ready(event_ready), .m_data({event_which, event_number}),
      .level(), .almost_full()
  );

  always_ff @(posedge clk) begin
    if (rst) lost <= 1'b0;
    else if (|passed && !room) lost <= 1'b1;
    else if (clear_lost) lost <= 1'b0;
  end

endmodule

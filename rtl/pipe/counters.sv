// SPDX-License-Identifier: Apache-2.0
// A pipe's counters: by port, by reason and by flow.
//
// `select` (as in the counters block's register) to `value`: 3 clocks.
module counters
  import registers_pkg::*;
  import viaduct_pkg::*;
  import pipe_pkg::*;
#(
    parameter int unsigned Ports = 1024,
    parameter int unsigned Flows = 262144
) (
    input  logic        clk,
    input  logic        rst,
    input  logic        valid,
    input  conclusion_t conclusion,
    input  logic [31:0] select,
    output logic [63:0] value
);

  localparam int unsigned PortWidthBits = $clog2(Ports);
  localparam int unsigned FlowWidthBits = $clog2(Flows);

  logic [39:0] received, sent, punted, dropped, flow;
  logic [47:0] received_bytes, sent_bytes, punted_bytes, dropped_bytes, flow_bytes;
  logic        forwarded;

  assign forwarded = valid && !conclusion.punted && !conclusion.dropped;

  counter_ram #(.Entries(Ports)) by_ingress (
      .clk, .rst, .valid, .number(conclusion.ingress[PortWidthBits-1:0]), .size(conclusion.size),
      .rd_number(select[PortWidthBits-1:0]), .rd_packets(received), .rd_bytes(received_bytes)
  );
  counter_ram #(.Entries(Ports)) by_egress (
      .clk, .rst, .valid(forwarded), .number(conclusion.egress[PortWidthBits-1:0]), .size(conclusion.sent_size),
      .rd_number(select[PortWidthBits-1:0]), .rd_packets(sent), .rd_bytes(sent_bytes)
  );
  counter_ram #(.Entries(64)) by_punt (
      .clk, .rst, .valid(valid && conclusion.punted), .number(conclusion.reason[5:0]), .size(conclusion.size),
      .rd_number(select[5:0]), .rd_packets(punted), .rd_bytes(punted_bytes)
  );
  counter_ram #(.Entries(64)) by_drop (
      .clk, .rst, .valid(valid && conclusion.dropped), .number(conclusion.reason[5:0]), .size(conclusion.size),
      .rd_number(select[5:0]), .rd_packets(dropped), .rd_bytes(dropped_bytes)
  );
  counter_ram #(.Entries(Flows), .PacketsWidth(36), .BytesWidth(44)) by_flow (
      .clk, .rst, .valid(valid && conclusion.flow && conclusion.index < 24'(Flows)),
      .number(conclusion.index[FlowWidthBits-1:0]), .size(conclusion.size),
      .rd_number(select[FlowWidthBits-1:0]), .rd_packets(flow[35:0]), .rd_bytes(flow_bytes[43:0])
  );
  assign flow[39:36]       = '0;
  assign flow_bytes[47:44] = '0;

  always_ff @(posedge clk) begin
    case (select[31:24])
      8'd0:    value <= 64'(received);
      8'd1:    value <= 64'(received_bytes);
      8'd2:    value <= 64'(sent);
      8'd3:    value <= 64'(sent_bytes);
      8'd4:    value <= 64'(punted);
      8'd5:    value <= 64'(dropped);
      8'd6:    value <= 64'(flow);
      8'd7:    value <= 64'(flow_bytes);
      8'd8:    value <= 64'(punted_bytes);
      8'd9:    value <= 64'(dropped_bytes);
      default: value <= '0;
    endcase
  end

endmodule

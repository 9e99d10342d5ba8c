// SPDX-License-Identifier: Apache-2.0
// A pipe's counters: by port, by reason and by flow; and which flows it has seen.
//
// `select` (as in the counters block's register) to `value`: 4 clocks, where nothing is counted in the first.
module counters
  import registers_pkg::*;
  import viaduct_pkg::*;
  import pipe_pkg::*;
#(
    parameter int unsigned Ports = 1024,
    parameter int unsigned Flows = 262144,   // with counters of their own
    parameter int unsigned Seen  = 8388608   // with a bit that says whether packets came
) (
    input  logic        clk,
    input  logic        rst,
    input  logic        valid,
    input  conclusion_t conclusion,
    input  logic [31:0] select,
    output logic [63:0] value,
    // Bits of flows seen: `seen` is ready 3 clocks after `seen_take`, in whose clock nothing is counted.
    input  logic                       seen_take,
    input  logic [$clog2(Seen)-7:0]    seen_word,
    output logic [63:0]                seen,
    output logic                       event_valid,
    input  logic                       event_ready,
    output logic [23:0]                event_number,
    output logic [1:0]                 event_which,
    output logic                       event_lost,
    input  logic                       clear_lost
);

  localparam int unsigned PortWidthBits = $clog2(Ports);
  localparam int unsigned FlowWidthBits = $clog2(Flows);

  logic [39:0] received, sent, punted, dropped, flow;
  logic [47:0] received_bytes, sent_bytes, punted_bytes, dropped_bytes, flow_bytes;
  logic        forwarded;

  assign forwarded = valid && !conclusion.punted && !conclusion.dropped;

  counter_ram #(.Entries(Ports)) by_ingress (
      .clk, .rst, .valid, .number(conclusion.ingress[PortWidthBits-1:0]), .size(conclusion.size),
      .rd_number(select[PortWidthBits-1:0]), .rd_packets(received), .rd_bytes(received_bytes),
      .passed(), .passed_number()
  );
  counter_ram #(.Entries(Ports)) by_egress (
      .clk, .rst, .valid(forwarded), .number(conclusion.egress[PortWidthBits-1:0]), .size(conclusion.sent_size),
      .rd_number(select[PortWidthBits-1:0]), .rd_packets(sent), .rd_bytes(sent_bytes),
      .passed(), .passed_number()
  );
  counter_ram #(.Entries(64)) by_punt (
      .clk, .rst, .valid(valid && conclusion.punted), .number(conclusion.reason[5:0]), .size(conclusion.size),
      .rd_number(select[5:0]), .rd_packets(punted), .rd_bytes(punted_bytes),
      .passed(), .passed_number()
  );
  counter_ram #(.Entries(64)) by_drop (
      .clk, .rst, .valid(valid && conclusion.dropped), .number(conclusion.reason[5:0]), .size(conclusion.size),
      .rd_number(select[5:0]), .rd_packets(dropped), .rd_bytes(dropped_bytes),
      .passed(), .passed_number()
  );
  flow_counters #(.Flows(Flows)) by_flow (
      .clk, .rst, .valid(valid && conclusion.flow && conclusion.index < 24'(Flows)),
      .number(conclusion.index[FlowWidthBits-1:0]), .size(conclusion.size),
      .rd_number(select[FlowWidthBits-1:0]), .rd_packets(flow[35:0]), .rd_bytes(flow_bytes[43:0]),
      .event_valid, .event_ready, .event_number(event_number[FlowWidthBits-1:0]), .event_which,
      .lost(event_lost), .clear_lost
  );
  assign event_number[23:FlowWidthBits] = '0;

  seen_bits #(.Flows(Seen)) seen_bits (
      .clk, .rst, .valid(valid && conclusion.flow && conclusion.index < 24'(Seen)),
      .flow(conclusion.index[$clog2(Seen)-1:0]), .take(seen_take), .word(seen_word), .taken(seen)
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

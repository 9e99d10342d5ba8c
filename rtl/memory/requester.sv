// SPDX-License-Identifier: Apache-2.0
//
// A requester's side of a memory: the request whose turn it is, and the answers from the banks. Requests for the line of
// the one whose turn it is join it while it waits for the bank, and get their answers one after the other from its: so
// one hot line is as quick for one requester as the requester asks, however many want lines of the bank.
//
// Latency 2 cycles for a request, 1 for an answer. Throughput 1 request and 1 answer per cycle.
module requester
  import viaduct_pkg::*;
#(
    parameter int unsigned Banks        = 8,
    parameter int unsigned ContextWidth = 10,
    parameter int unsigned DataWidth    = 512
) (
    input  logic                               clk,
    input  logic                               rst,
    input  logic                               req_valid,
    output logic                               req_ready,
    input  line_t                              req_line,
    input  logic  [ContextWidth-1:0]           req_context,   // no other is the same until it is answered
    output logic                               resp_valid,
    input  logic                               resp_ready,
    output logic  [ContextWidth-1:0]           resp_context,
    output logic  [DataWidth-1:0]              resp_data,
    // To the banks: the request may change its context while it is not taken.
    output logic                               head_valid,
    input  logic                               head_taken,
    output line_t                              head_line,
    output logic  [ContextWidth-1:0]           head_context,
    // From the banks: an answer that is offered stays until it is taken.
    input  logic  [Banks-1:0]                  offers,
    output logic  [Banks-1:0]                  takes,
    input  logic  [Banks-1:0][ContextWidth-1:0] bank_context,
    input  logic  [Banks-1:0][DataWidth-1:0]   bank_data
);

  // ---- Requests. Of those that are one for the bank, each knows the one before it.

  logic  next_valid, next_ready, joins;
  line_t next_line;
  logic  [ContextWidth-1:0] next_context;

  skid #(
      .Width($bits(line_t) + ContextWidth)
  ) arrived (
      .clk,
      .rst,
      .s_valid(req_valid),
      .s_ready(req_ready),
      .s_data ({req_line, req_context}),
      .m_valid(next_valid),
      .m_ready(next_ready),
      .m_data ({next_line, next_context})
  );

  assign joins      = head_valid && !head_taken && next_line == head_line;
  assign next_ready = !head_valid || head_taken || joins;

  always_ff @(posedge clk) begin
    if (!head_valid || head_taken) {head_valid, head_line, head_context} <= {next_valid, next_line, next_context};
    else if (next_valid && joins) head_context <= next_context;
    if (rst) head_valid <= 1'b0;
  end

  logic [ContextWidth:0] predecessor[2**ContextWidth];  // whether it joined another, and that one's context

  always_ff @(posedge clk) if (next_valid && next_ready) predecessor[next_context] <= {joins, head_context};

  // ---- Answers: of the banks in turn, each first to the last one of those that joined.

  localparam int unsigned BankWidth = $clog2(Banks);

  logic [Banks-1:0] grant;
  logic [BankWidth-1:0] from;
  logic [ContextWidth-1:0] earlier, given_context;
  logic joined, output_free, again;

  assign again         = resp_valid && joined;
  assign output_free   = !resp_valid || resp_ready;
  assign takes         = output_free && !again ? grant : '0;
  assign given_context = again ? earlier : bank_context[from];

  round_robin #(
      .Requesters(Banks)
  ) arbiter (
      .clk,
      .rst,
      .request(offers),
      .advance(output_free && !again),
      .grant,
      .index  (from)
  );

  always_ff @(posedge clk) begin
    if (output_free) begin
      resp_valid        <= again || |offers;
      resp_context      <= given_context;
      {joined, earlier} <= predecessor[given_context];
      if (!again) resp_data <= bank_data[from];
    end
    if (rst) resp_valid <= 1'b0;
  end
endmodule

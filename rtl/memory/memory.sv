// SPDX-License-Identifier: Apache-2.0
//
// Lines of memory for several requesters, over several banks; which bank a line is in, all of its bits say, so that tables
// laid out alike don't meet in one. Requesters that want one line at the same time get it from its bank at the same time,
// and so do requests of one requester that wait. Answers come in any order. Latency of a cached line 8 cycles, of another 8
// besides memory's. Throughput 1 request per cycle and requester, and per bank 1 line per cycle, of those read 32 bytes per
// cycle.
//
// A requester must in the end take its answers whatever else happens, above all whether or not its further requests are
// taken: the answer that it leaves lying holds up its bank, and so in the end everybody. It need not take them at once.
//
// Writes are of 32 bytes; each bank does one at a time. `wr_done` pulses once for each, in any order between banks, when it
// is in memory and every request made from then on will get the new bytes. A line's 32 bytes are always all old or all new.
module memory
  import viaduct_pkg::*;
#(
    parameter  int unsigned Requesters   = 4,
    parameter  int unsigned Banks        = 8,             // power of two, at least 2
    parameter  int unsigned LineBytes    = 64,            // 32 or 64
    parameter  int unsigned ContextWidth = 10,            // of what comes back with an answer, for the requester's use
    parameter  int unsigned CacheLines   = 512,           // per bank; power of two
    parameter  int unsigned Ids          = 64,            // reads at once per bank; power of two, 2 to 64
    localparam int unsigned DataWidth    = 8 * LineBytes
) (
    input  logic                                    clk,
    input  logic                                    rst,
    input  logic  [Requesters-1:0]                  req_valid,
    output logic  [Requesters-1:0]                  req_ready,
    input  line_t [Requesters-1:0]                  req_line,
    input  logic  [Requesters-1:0][ContextWidth-1:0] req_context,  // a requester's differ until answered
    output logic  [Requesters-1:0]                  resp_valid,
    input  logic  [Requesters-1:0]                  resp_ready,
    output logic  [Requesters-1:0][ContextWidth-1:0] resp_context,
    output logic  [Requesters-1:0][DataWidth-1:0]   resp_data,
    input  logic                                    wr_valid,
    output logic                                    wr_ready,
    input  line_t                                   wr_line,
    input  logic                                    wr_half,       // which 32 bytes of a line of 64
    input  logic  [255:0]                           wr_data,
    output logic                                    wr_done,
    output logic                                    wr_error,      // pulse, before `wr_done`: a write failed
    output logic  [Banks-1:0]                       error,         // pulses: a bank's memory answered with an error
    // AXI3: 256 bits, addresses in bytes within the channel, bursts INCR. Writes have ID 0.
    output logic  [Banks-1:0]                       arvalid,
    input  logic  [Banks-1:0]                       arready,
    output logic  [Banks-1:0][5:0]                  arid,
    output logic  [Banks-1:0][32:0]                 araddr,
    output logic  [Banks-1:0][3:0]                  arlen,
    input  logic  [Banks-1:0]                       rvalid,
    output logic  [Banks-1:0]                       rready,
    input  logic  [Banks-1:0][5:0]                  rid,
    input  logic  [Banks-1:0][255:0]                rdata,
    input  logic  [Banks-1:0][1:0]                  rresp,
    input  logic  [Banks-1:0]                       rlast,
    output logic  [Banks-1:0]                       awvalid,
    input  logic  [Banks-1:0]                       awready,
    output logic  [Banks-1:0][32:0]                 awaddr,
    output logic  [Banks-1:0]                       wvalid,
    input  logic  [Banks-1:0]                       wready,
    output logic  [Banks-1:0][255:0]                wdata,
    input  logic  [Banks-1:0]                       bvalid,
    output logic  [Banks-1:0]                       bready,
    input  logic  [Banks-1:0][1:0]                  bresp
);
  if (Banks < 2 || (Banks & (Banks - 1)) != 0) $error("memory: Banks must be a power of two, at least 2");
  if (LineBytes != 32 && LineBytes != 64) $error("memory: LineBytes must be 32 or 64");
  localparam int unsigned BankWidth = $clog2(Banks);
  localparam int unsigned LineWidth = $bits(line_t) - BankWidth;

  // The exclusive or of all groups of BankWidth bits: with the bits above the lowest group it says which line it is.
  function automatic logic [BankWidth-1:0] bank_of(line_t line);
    bank_of = '0;
    for (int unsigned i = 0; i < $bits(line_t); i += BankWidth) bank_of = bank_of ^ BankWidth'(line >> i);
  endfunction
  localparam int unsigned SourceWidth = Requesters > 1 ? $clog2(Requesters) : 1;

  assign arlen = {Banks{4'(LineBytes / 32 - 1)}};

  // ---- The first request of each requester, and who wants the same line.

  logic [Requesters-1:0] head_valid, head_taken;
  line_t head_line[Requesters];
  logic [Requesters-1:0][ContextWidth-1:0] head_context;
  logic [Requesters-1:0] same[Requesters];
  logic [Requesters-1:0] taken_by[Banks];
  logic [Requesters-1:0][Banks-1:0] offers, gives;

  logic [Banks-1:0] bank_wr_ready, bank_wr_done, bank_wr_error, bank_error;
  logic [Requesters-1:0] bank_mask[Banks];
  logic [Requesters-1:0] given[Banks];
  logic [Requesters-1:0][ContextWidth-1:0] bank_context[Banks];
  logic [Banks-1:0][DataWidth-1:0] bank_data;

  for (genvar r = 0; r < Requesters; r++) begin : g_requester
    logic [Banks-1:0] taken;
    logic [Banks-1:0][ContextWidth-1:0] contexts;
    requester #(
        .Banks       (Banks),
        .ContextWidth(ContextWidth),
        .DataWidth   (DataWidth)
    ) requester (
        .clk,
        .rst,
        .req_valid   (req_valid[r]),
        .req_ready   (req_ready[r]),
        .req_line    (req_line[r]),
        .req_context (req_context[r]),
        .resp_valid  (resp_valid[r]),
        .resp_ready  (resp_ready[r]),
        .resp_context(resp_context[r]),
        .resp_data   (resp_data[r]),
        .head_valid  (head_valid[r]),
        .head_taken  (head_taken[r]),
        .head_line   (head_line[r]),
        .head_context(head_context[r]),
        .offers      (offers[r]),
        .takes       (gives[r]),
        .bank_context(contexts),
        .bank_data   (bank_data)
    );
    for (genvar o = 0; o < Requesters; o++) begin : g_same
      assign same[r][o] = head_line[r] == head_line[o];
    end
    for (genvar b = 0; b < Banks; b++) begin : g_bank
      assign taken[b]     = taken_by[b][r];
      assign contexts[b]  = bank_context[b][r];
      assign offers[r][b] = bank_mask[b][r];
      assign given[b][r]  = gives[r][b];
    end
    assign head_taken[r] = |taken;
  end

  // ---- Banks

  for (genvar b = 0; b < Banks; b++) begin : g_bank
    logic [Requesters-1:0] candidates, grant, mask;
    logic [SourceWidth-1:0] leader;
    logic ready;

    for (genvar r = 0; r < Requesters; r++) begin : g_candidate
      assign candidates[r] = head_valid[r] && bank_of(head_line[r]) == BankWidth'(b);
    end
    round_robin #(
        .Requesters(Requesters)
    ) arbiter (
        .clk,
        .rst,
        .request(candidates),
        .advance(ready),
        .grant,
        .index  (leader)
    );
    assign mask        = candidates & same[leader];
    assign taken_by[b] = ready ? mask : '0;

    bank #(
        .Requesters  (Requesters),
        .LineBytes   (LineBytes),
        .LineWidth   (LineWidth),
        .ContextWidth(ContextWidth),
        .CacheLines  (CacheLines),
        .Ids         (Ids)
    ) channel (
        .clk,
        .rst,
        .req_valid    (|grant),
        .req_ready    (ready),
        .req_line     (head_line[leader][$bits(line_t)-1:BankWidth]),
        .req_mask     (mask),
        .req_context  (head_context),
        .resp_mask    (bank_mask[b]),
        .resp_taken   (given[b]),
        .resp_context (bank_context[b]),
        .resp_data    (bank_data[b]),
        .wr_valid     (wr_valid && bank_of(wr_line) == BankWidth'(b)),
        .wr_ready     (bank_wr_ready[b]),
        .wr_line      (wr_line[$bits(line_t)-1:BankWidth]),
        .wr_half,
        .wr_data,
        .wr_done      (bank_wr_done[b]),
        .wr_error     (bank_wr_error[b]),
        .error        (bank_error[b]),
        .arvalid(arvalid[b]),
        .arready(arready[b]),
        .arid   (arid[b]),
        .araddr (araddr[b]),
        .rvalid (rvalid[b]),
        .rready (rready[b]),
        .rid    (rid[b]),
        .rdata  (rdata[b]),
        .rresp  (rresp[b]),
        .rlast  (rlast[b]),
        .awvalid(awvalid[b]),
        .awready(awready[b]),
        .awaddr (awaddr[b]),
        .wvalid (wvalid[b]),
        .wready (wready[b]),
        .wdata  (wdata[b]),
        .bvalid (bvalid[b]),
        .bready (bready[b]),
        .bresp  (bresp[b])
    );
  end

  // ---- Writes: several banks may be done in one cycle, each is told of.

  logic [BankWidth:0] done, done_now;

  assign wr_ready = bank_wr_ready[bank_of(wr_line)];
  assign wr_done  = done != '0;
  always_comb begin
    done_now = '0;
    for (int unsigned b = 0; b < Banks; b++) done_now += (BankWidth + 1)'(bank_wr_done[b]);
  end
  always_ff @(posedge clk) begin
    done  <= rst ? '0 : done + done_now - (BankWidth + 1)'(wr_done);
    error <= rst ? '0 : bank_error;
    wr_error <= !rst && |bank_wr_error;
  end
endmodule

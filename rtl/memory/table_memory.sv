// SPDX-License-Identifier: Apache-2.0
//
// `memory` for the look-ups of pipes, which all ask and are answered in one way. Latency and throughput as there.
module table_memory
  import viaduct_pkg::*;
#(
    parameter int unsigned Requesters = 4,
    parameter int unsigned Banks      = 8,    // power of two, at least 2
    parameter int unsigned LineBytes  = 64,   // 32 or 64
    parameter int unsigned CacheLines = 512   // per bank; power of two
) (
    input  logic                                    clk,
    input  logic                                    rst,
    input  memory_req_t  [Requesters-1:0]           reqs,
    output memory_resp_t [Requesters-1:0]           resps,
    // As of `memory`.
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
  logic  [Requesters-1:0] req_valid, req_ready, resp_valid, resp_ready;
  line_t [Requesters-1:0] req_line;
  tag_t  [Requesters-1:0] req_context, resp_context;
  logic  [Requesters-1:0][8*LineBytes-1:0] resp_data;

  for (genvar r = 0; r < Requesters; r++) begin : g_requester
    assign {req_valid[r], req_line[r], req_context[r], resp_ready[r]} = reqs[r];
    assign resps[r] = '{
        req_ready: req_ready[r], valid: resp_valid[r], tag: resp_context[r], data: 512'(resp_data[r])
    };
  end

  memory #(
      .Requesters  (Requesters),
      .Banks       (Banks),
      .LineBytes   (LineBytes),
      .ContextWidth(TagWidth),
      .CacheLines  (CacheLines)
  ) memory (
      .clk,
      .rst,
      .req_valid,
      .req_ready,
      .req_line,
      .req_context,
      .resp_valid,
      .resp_ready,
      .resp_context,
      .resp_data,
      .wr_valid,
      .wr_ready,
      .wr_line,
      .wr_half,
      .wr_data,
      .wr_done,
      .wr_error,
      .error,
      .arvalid,
      .arready,
      .arid,
      .araddr,
      .arlen,
      .rvalid,
      .rready,
      .rid,
      .rdata,
      .rresp,
      .rlast,
      .awvalid,
      .awready,
      .awaddr,
      .wvalid,
      .wready,
      .wdata,
      .bvalid,
      .bready,
      .bresp
  );
endmodule

// SPDX-License-Identifier: Apache-2.0
//
// A memory small enough that everything happens: four requesters, four banks of 16 cached lines. Checks AXI, and that
// answers stay until they are taken. Latency and throughput as `memory`.
module memory_sim
  import viaduct_pkg::*;
#(
    parameter  int unsigned LineBytes    = 64,
    parameter  int unsigned CacheLines   = 16,
    localparam int unsigned Requesters   = 4,
    localparam int unsigned Banks        = 4,
    localparam int unsigned ContextWidth = 16,
    localparam int unsigned Ids          = 8,
    localparam int unsigned DataWidth    = 8 * LineBytes
) (
    input  logic                                      clk,
    input  logic                                      rst,
    input  logic  [Requesters-1:0]                    req_valid,
    output logic  [Requesters-1:0]                    req_ready,
    input  line_t [Requesters-1:0]                    req_line,
    input  logic  [Requesters-1:0][ContextWidth-1:0]  req_context,
    output logic  [Requesters-1:0]                    resp_valid,
    input  logic  [Requesters-1:0]                    resp_ready,
    output logic  [Requesters-1:0][ContextWidth-1:0]  resp_context,
    output logic  [Requesters-1:0][DataWidth-1:0]     resp_data,
    input  logic                                      wr_valid,
    output logic                                      wr_ready,
    input  line_t                                     wr_line,
    input  logic                                      wr_half,
    input  logic  [255:0]                             wr_data,
    output logic                                      wr_done,
    output logic                                      wr_error,
    output logic  [Banks-1:0]                         error,
    output logic  [Banks-1:0]                         arvalid,
    input  logic  [Banks-1:0]                         arready,
    output logic  [Banks-1:0][5:0]                    arid,
    output logic  [Banks-1:0][32:0]                   araddr,
    input  logic  [Banks-1:0]                         rvalid,
    output logic  [Banks-1:0]                         rready,
    input  logic  [Banks-1:0][5:0]                    rid,
    input  logic  [Banks-1:0][255:0]                  rdata,
    input  logic  [Banks-1:0][1:0]                    rresp,
    input  logic  [Banks-1:0]                         rlast,
    output logic  [Banks-1:0]                         awvalid,
    input  logic  [Banks-1:0]                         awready,
    output logic  [Banks-1:0][32:0]                   awaddr,
    output logic  [Banks-1:0]                         wvalid,
    input  logic  [Banks-1:0]                         wready,
    output logic  [Banks-1:0][255:0]                  wdata,
    input  logic  [Banks-1:0]                         bvalid,
    output logic  [Banks-1:0]                         bready,
    input  logic  [Banks-1:0][1:0]                    bresp
);
  logic [Banks-1:0][3:0] arlen;

  memory #(
      .Requesters,
      .Banks,
      .LineBytes,
      .ContextWidth,
      .CacheLines,
      .Ids
  ) dut (
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

  for (genvar b = 0; b < Banks; b++) begin : g_checker
    axi_checker #(
        .LineBytes
    ) rules (
        .clk,
        .rst,
        .arvalid(arvalid[b]),
        .arready(arready[b]),
        .arid   (arid[b]),
        .araddr (araddr[b]),
        .arlen  (arlen[b]),
        .rvalid (rvalid[b]),
        .rready (rready[b]),
        .rid    (rid[b]),
        .rdata  (rdata[b]),
        .rlast  (rlast[b]),
        .awvalid(awvalid[b]),
        .awready(awready[b]),
        .awaddr (awaddr[b]),
        .wvalid (wvalid[b]),
        .wready (wready[b]),
        .wdata  (wdata[b]),
        .bvalid (bvalid[b]),
        .bready (bready[b])
    );
  end

  logic [Requesters-1:0] kept;
  logic [Requesters-1:0][ContextWidth+DataWidth-1:0] last;
  for (genvar r = 0; r < Requesters; r++) begin : g_answers
    always_ff @(posedge clk) begin
      kept[r] <= !rst && resp_valid[r] && !resp_ready[r];
      last[r] <= {resp_context[r], resp_data[r]};
      if (kept[r])
        assert (resp_valid[r] && last[r] == {resp_context[r], resp_data[r]})
        else $error("the answer to requester %0d changed", r);
    end
  end
endmodule

// SPDX-License-Identifier: Apache-2.0
//
// `memory_sim` with lines of 32 bytes. Latency and throughput as `memory`.
module memory32_sim
  import viaduct_pkg::*;
#(
    localparam int unsigned Requesters   = 4,
    localparam int unsigned Banks        = 4,
    localparam int unsigned ContextWidth = 16,
    localparam int unsigned DataWidth    = 256
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
  memory_sim #(
      .LineBytes(32)
  ) narrow (
      .*
  );
endmodule

// SPDX-License-Identifier: Apache-2.0
//
// Four pipes' look-ups in the flow table, over the two memories that they share. Checks AXI. Latency and throughput as
// `flow_lookup` and `memory`.
module flow_unit_sim
  import viaduct_pkg::*;
#(
    localparam int unsigned Pipes      = 4,
    localparam int unsigned Banks      = 8,          // of a half
    localparam int unsigned Channels   = 2 * Banks,
    localparam int unsigned BucketBits = 18
) (
    input  logic                                clk,
    input  logic                                rst,
    input  logic         [SecretWidth-1:0]      secret,
    input  logic         [Pipes-1:0]            s_valid,
    output logic         [Pipes-1:0]            s_ready,
    input  tag_t         [Pipes-1:0]            s_tag,
    input  flow_key_t    [Pipes-1:0]            s_key,
    output logic         [Pipes-1:0]            m_valid,
    output tag_t         [Pipes-1:0]            m_tag,
    output flow_result_t [Pipes-1:0]            m_result,
    // A write to all stashes.
    input  logic                                stash_valid,
    input  logic         [$clog2(StashFlows)-1:0] stash_number,
    input  logic         [511:0]                stash_data,
    // A write for each half.
    input  logic         [1:0]                  wr_valid,
    output logic         [1:0]                  wr_ready,
    input  line_t        [1:0]                  wr_line,
    input  logic         [1:0]                  wr_half,
    input  logic         [1:0][255:0]           wr_data,
    output logic         [1:0]                  wr_done,
    output logic         [Channels-1:0]         arvalid,
    input  logic         [Channels-1:0]         arready,
    output logic         [Channels-1:0][5:0]    arid,
    output logic         [Channels-1:0][32:0]   araddr,
    input  logic         [Channels-1:0]         rvalid,
    output logic         [Channels-1:0]         rready,
    input  logic         [Channels-1:0][5:0]    rid,
    input  logic         [Channels-1:0][255:0]  rdata,
    input  logic         [Channels-1:0][1:0]    rresp,
    input  logic         [Channels-1:0]         rlast,
    output logic         [Channels-1:0]         awvalid,
    input  logic         [Channels-1:0]         awready,
    output logic         [Channels-1:0][32:0]   awaddr,
    output logic         [Channels-1:0]         wvalid,
    input  logic         [Channels-1:0]         wready,
    output logic         [Channels-1:0][255:0]  wdata,
    input  logic         [Channels-1:0]         bvalid,
    output logic         [Channels-1:0]         bready,
    input  logic         [Channels-1:0][1:0]    bresp
);
  logic [Channels-1:0][3:0] arlen;
  logic [1:0][Pipes-1:0] req_valid, req_ready, resp_valid, resp_ready;
  line_t [1:0][Pipes-1:0] req_line;
  tag_t [1:0][Pipes-1:0] req_context, resp_context;
  logic [1:0][Pipes-1:0][511:0] resp_data;

  for (genvar p = 0; p < Pipes; p++) begin : g_pipe
    logic [1:0] pipe_req_valid, pipe_resp_ready;
    line_t [1:0] pipe_req_line;
    tag_t [1:0] pipe_req_context;

    flow_lookup #(
        .BucketBits(BucketBits)
    ) flow (
        .clk,
        .rst,
        .secret,
        .wr_valid    (stash_valid),
        .wr_number   (stash_number),
        .wr_data     (stash_data),
        .s_valid     (s_valid[p]),
        .s_ready     (s_ready[p]),
        .s_tag       (s_tag[p]),
        .s_key       (s_key[p]),
        .m_valid     (m_valid[p]),
        .m_tag       (m_tag[p]),
        .m_result    (m_result[p]),
        .req_valid   (pipe_req_valid),
        .req_ready   ({req_ready[1][p], req_ready[0][p]}),
        .req_line    (pipe_req_line),
        .req_context (pipe_req_context),
        .resp_valid  ({resp_valid[1][p], resp_valid[0][p]}),
        .resp_ready  (pipe_resp_ready),
        .resp_context({resp_context[1][p], resp_context[0][p]}),
        .resp_data   ({resp_data[1][p], resp_data[0][p]})
    );
    for (genvar h = 0; h < 2; h++) begin : g_half
      assign req_valid[h][p]   = pipe_req_valid[h];
      assign req_line[h][p]    = pipe_req_line[h];
      assign req_context[h][p] = pipe_req_context[h];
      assign resp_ready[h][p]  = pipe_resp_ready[h];
    end
  end

  for (genvar h = 0; h < 2; h++) begin : g_memory
    memory #(
        .Requesters  (Pipes),
        .Banks       (Banks),
        .LineBytes   (64),
        .ContextWidth(TagWidth)
    ) half (
        .clk,
        .rst,
        .req_valid   (req_valid[h]),
        .req_ready   (req_ready[h]),
        .req_line    (req_line[h]),
        .req_context (req_context[h]),
        .resp_valid  (resp_valid[h]),
        .resp_ready  (resp_ready[h]),
        .resp_context(resp_context[h]),
        .resp_data   (resp_data[h]),
        .wr_valid    (wr_valid[h]),
        .wr_ready    (wr_ready[h]),
        .wr_line     (wr_line[h]),
        .wr_half     (wr_half[h]),
        .wr_data     (wr_data[h]),
        .wr_done     (wr_done[h]),
        .wr_error    (),
        .error       (),
        .arvalid(arvalid[h*Banks+:Banks]),
        .arready(arready[h*Banks+:Banks]),
        .arid   (arid[h*Banks+:Banks]),
        .araddr (araddr[h*Banks+:Banks]),
        .arlen  (arlen[h*Banks+:Banks]),
        .rvalid (rvalid[h*Banks+:Banks]),
        .rready (rready[h*Banks+:Banks]),
        .rid    (rid[h*Banks+:Banks]),
        .rdata  (rdata[h*Banks+:Banks]),
        .rresp  (rresp[h*Banks+:Banks]),
        .rlast  (rlast[h*Banks+:Banks]),
        .awvalid(awvalid[h*Banks+:Banks]),
        .awready(awready[h*Banks+:Banks]),
        .awaddr (awaddr[h*Banks+:Banks]),
        .wvalid (wvalid[h*Banks+:Banks]),
        .wready (wready[h*Banks+:Banks]),
        .wdata  (wdata[h*Banks+:Banks]),
        .bvalid (bvalid[h*Banks+:Banks]),
        .bready (bready[h*Banks+:Banks]),
        .bresp  (bresp[h*Banks+:Banks])
    );
  end

  for (genvar b = 0; b < Channels; b++) begin : g_checker
    axi_checker #(
        .LineBytes(64)
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
endmodule

// SPDX-License-Identifier: Apache-2.0
//
// Four pipes' look-ups in the flow table, over the two memories that they share. Checks AXI. Latency and throughput as
// `flow_lookup` and `memory`.
module flow_unit_sim
  import registers_pkg::*;
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
  memory_req_t [1:0][Pipes-1:0] reqs;
  memory_resp_t [1:0][Pipes-1:0] resps;
  write_t write;

  assign write = '{valid: stash_valid, into: TableStash, address: 20'(stash_number), data: stash_data};

  for (genvar p = 0; p < Pipes; p++) begin : g_pipe
    lookup_t asked;
    flow_found_t found;

    always_comb begin
      asked = '0;
      {asked.tag, asked.key} = {s_tag[p], s_key[p]};
    end
    assign {m_valid[p], m_tag[p], m_result[p]} = found;

    flow_lookup #(
        .BucketBits(BucketBits)
    ) flow (
        .clk,
        .rst,
        .secret,
        .write,
        .s_valid(s_valid[p]),
        .s_ready(s_ready[p]),
        .s      (asked),
        .found,
        .reqs   ({reqs[1][p], reqs[0][p]}),
        .resps  ({resps[1][p], resps[0][p]})
    );
  end

  for (genvar h = 0; h < 2; h++) begin : g_memory
    table_memory #(
        .Requesters(Pipes),
        .Banks     (Banks),
        .LineBytes (64)
    ) half (
        .clk,
        .rst,
        .reqs        (reqs[h]),
        .resps       (resps[h]),
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

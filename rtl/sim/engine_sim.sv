// SPDX-License-Identifier: Apache-2.0
// The engine for simulation: streams and AXI as fields that lie in whole 32-bit words, and the rules of both checked at
// every clock.
module engine_sim
  import viaduct_pkg::*;
#(
    parameter  int unsigned Pipes          = 1,
    parameter  int unsigned FlowChannels   = 8,
    parameter  int unsigned BridgeChannels = 2,
    parameter  int unsigned RouteChannels  = 4,
    parameter  int unsigned NexthopChannels = 2,
    parameter  int unsigned FlowBits       = 20,
    parameter  int unsigned BridgeBits     = 12,
    parameter  int unsigned Route6Bits     = 12,
    localparam int unsigned Streams        = 2 * Pipes,
    localparam int unsigned Channels       = FlowChannels + BridgeChannels + RouteChannels + NexthopChannels
) (
    input  logic                       clk,
    input  logic                       rst,
    input  logic [Streams-1:0]         s_valid,
    output logic [Streams-1:0]         s_ready,
    input  logic [Streams-1:0]         s_last,
    input  logic [Streams-1:0]         s_direct,
    input  logic [Streams-1:0][543:0]  s_beats,  // port in bits 543:528, size in bits 527:512, data below
    output logic [Streams-1:0]         m_valid,
    input  logic [Streams-1:0]         m_ready,
    output logic [Streams-1:0]         m_last,
    output logic [Streams-1:0]         m_direct,
    output logic [Streams-1:0][543:0]  m_beats,
    output logic [Channels-1:0]        arvalid,
    input  logic [Channels-1:0]        arready,
    output logic [Channels-1:0][63:0]  ar,       // length in bits 51:48, ID in bits 45:40, address below
    input  logic [Channels-1:0]        rvalid,
    output logic [Channels-1:0]        rready,
    input  logic [Channels-1:0][31:0]  r,        // response in bits 10:9, last in bit 8, ID in bits 5:0
    input  logic [Channels-1:0][255:0] rdata,
    output logic [Channels-1:0]        awvalid,
    input  logic [Channels-1:0]        awready,
    output logic [Channels-1:0][63:0]  aw,       // address
    output logic [Channels-1:0]        wvalid,
    input  logic [Channels-1:0]        wready,
    output logic [Channels-1:0][255:0] wdata,
    input  logic [Channels-1:0]        bvalid,
    output logic [Channels-1:0]        bready,
    input  logic [Channels-1:0]        b_error,
    input  logic                       axil_awvalid,
    output logic                       axil_awready,
    input  logic [19:0]                axil_awaddr,
    input  logic                       axil_wvalid,
    output logic                       axil_wready,
    input  logic [31:0]                axil_wdata,
    output logic                       axil_bvalid,
    input  logic                       axil_bready,
    output logic [1:0]                 axil_bresp,
    input  logic                       axil_arvalid,
    output logic                       axil_arready,
    input  logic [19:0]                axil_araddr,
    output logic                       axil_rvalid,
    input  logic                       axil_rready,
    output logic [31:0]                axil_rdata,
    output logic [1:0]                 axil_rresp
);

  beat_t [Streams-1:0]             s_beat, m_beat;
  logic  [Channels-1:0][5:0]       arid, rid;
  logic  [Channels-1:0][32:0]      araddr, awaddr;
  logic  [Channels-1:0][3:0]       arlen;
  logic  [Channels-1:0]            rlast;
  logic  [Channels-1:0][1:0]       rresp, bresp;

  for (genvar i = 0; i < Streams; i++) begin : g_stream
    assign s_beat[i]   = '{
        last: s_last[i], direct: s_direct[i],
        port: s_beats[i][537:528], size: s_beats[i][527:512], data: s_beats[i][511:0]
    };
    assign m_last[i]   = m_beat[i].last;
    assign m_direct[i] = m_beat[i].direct;
    assign m_beats[i]  = {6'd0, m_beat[i].port, m_beat[i].size, m_beat[i].data};
  end

  for (genvar i = 0; i < Channels; i++) begin : g_channel
    assign ar[i]    = {12'd0, arlen[i], 2'd0, arid[i], 7'd0, araddr[i]};
    assign aw[i]    = {31'd0, awaddr[i]};
    assign rid[i]   = r[i][5:0];
    assign rlast[i] = r[i][8];
    assign rresp[i] = r[i][10:9];
    assign bresp[i] = {b_error[i], 1'b0};
  end

  engine #(
      .Pipes(Pipes), .FlowChannels(FlowChannels), .BridgeChannels(BridgeChannels), .RouteChannels(RouteChannels),
      .NexthopChannels(NexthopChannels), .FlowBits(FlowBits), .BridgeBits(BridgeBits), .Route6Bits(Route6Bits)
  ) engine (
      .clk, .rst, .s_valid, .s_ready, .s_beat, .m_valid, .m_ready, .m_beat,
      .m_axi_arvalid(arvalid), .m_axi_arready(arready), .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen),
      .m_axi_rvalid(rvalid), .m_axi_rready(rready), .m_axi_rid(rid), .m_axi_rdata(rdata), .m_axi_rresp(rresp),
      .m_axi_rlast(rlast),
      .m_axi_awvalid(awvalid), .m_axi_awready(awready), .m_axi_awaddr(awaddr),
      .m_axi_wvalid(wvalid), .m_axi_wready(wready), .m_axi_wdata(wdata),
      .m_axi_bvalid(bvalid), .m_axi_bready(bready), .m_axi_bresp(bresp),
      .axil_awvalid, .axil_awready, .axil_awaddr, .axil_wvalid, .axil_wready, .axil_wdata,
      .axil_bvalid, .axil_bready, .axil_bresp,
      .axil_arvalid, .axil_arready, .axil_araddr, .axil_rvalid, .axil_rready, .axil_rdata, .axil_rresp
  );

  // ---- The rules

  for (genvar i = 0; i < Streams; i++) begin : g_stream_rules
    stream_checker #(.Width($bits(beat_t))) in (
        .clk, .rst, .valid(s_valid[i]), .ready(s_ready[i]), .data(s_beat[i])
    );
    stream_checker #(.Width($bits(beat_t))) out (
        .clk, .rst, .valid(m_valid[i]), .ready(m_ready[i]), .data(m_beat[i])
    );
  end

  for (genvar i = 0; i < Channels; i++) begin : g_channel_rules
    localparam bit Wide = i < FlowChannels || i >= Channels - NexthopChannels;
    axi_checker #(.LineBytes(Wide ? 64 : 32)) rules (
        .clk, .rst,
        .arvalid(arvalid[i]), .arready(arready[i]), .arid(arid[i]), .araddr(araddr[i]), .arlen(arlen[i]),
        .rvalid(rvalid[i]), .rready(rready[i]), .rid(rid[i]), .rdata(rdata[i]), .rlast(rlast[i]),
        .awvalid(awvalid[i]), .awready(awready[i]), .awaddr(awaddr[i]),
        .wvalid(wvalid[i]), .wready(wready[i]), .wdata(wdata[i]), .bvalid(bvalid[i]), .bready(bready[i])
    );
  end

endmodule

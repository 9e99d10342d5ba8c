// SPDX-License-Identifier: Apache-2.0
// The engine as a plug-in of OpenNIC's 250 MHz user box: its streams at the shell's, its registers behind the shell's
// AXI4-Lite, its reset by the shell's handshake. docs/card.md says how it is put into a shell.
//
// Pipe i downstream takes what function i sends, pipe i upstream what comes by MAC port i; likewise out. HBM is
// outside: `m_axi_*` are masters for AMD's HBM controller, a pseudo channel each.
module opennic_box
  import registers_pkg::*;
  import viaduct_pkg::*;
#(
    parameter  int unsigned Pipes          = 2,       // functions, and MAC ports
    parameter  int unsigned WirePort       = 0,       // the port that MAC port 0 is; the others follow
    parameter  int unsigned FlowChannels   = 16,
    parameter  int unsigned BridgeChannels = 4,
    parameter  int unsigned RouteChannels  = 8,
    parameter  int unsigned NexthopChannels = 4,
    parameter  int unsigned Nexthops       = 16384,   // on chip
    parameter  int unsigned Labels         = 65536,
    parameter  int unsigned Flows          = 262144,
    parameter  int unsigned FlowBits       = 23,
    parameter  int unsigned BridgeBits     = 16,
    parameter  int unsigned Route6Bits     = 18,
    localparam int unsigned Channels       = FlowChannels + BridgeChannels + RouteChannels + NexthopChannels
) (
    input  logic                       axis_aclk,     // 250 MHz
    input  logic                       axil_aclk,     // 125 MHz, phase aligned
    input  logic                       mod_rstn,
    output logic                       mod_rst_done,
    input  logic                       s_axil_awvalid,
    input  logic [31:0]                s_axil_awaddr,
    output logic                       s_axil_awready,
    input  logic                       s_axil_wvalid,
    input  logic [31:0]                s_axil_wdata,
    output logic                       s_axil_wready,
    output logic                       s_axil_bvalid,
    output logic [1:0]                 s_axil_bresp,
    input  logic                       s_axil_bready,
    input  logic                       s_axil_arvalid,
    input  logic [31:0]                s_axil_araddr,
    output logic                       s_axil_arready,
    output logic                       s_axil_rvalid,
    output logic [31:0]                s_axil_rdata,
    output logic [1:0]                 s_axil_rresp,
    input  logic                       s_axil_rready,
    input  logic [Pipes-1:0]           s_axis_qdma_h2c_tvalid,
    input  logic [Pipes-1:0][511:0]    s_axis_qdma_h2c_tdata,
    input  logic [Pipes-1:0][63:0]     s_axis_qdma_h2c_tkeep,
    input  logic [Pipes-1:0]           s_axis_qdma_h2c_tlast,
    input  logic [Pipes-1:0][15:0]     s_axis_qdma_h2c_tuser_size,
    input  logic [Pipes-1:0][15:0]     s_axis_qdma_h2c_tuser_src,
    input  logic [Pipes-1:0][15:0]     s_axis_qdma_h2c_tuser_dst,
    output logic [Pipes-1:0]           s_axis_qdma_h2c_tready,
    output logic [Pipes-1:0]           m_axis_qdma_c2h_tvalid,
    output logic [Pipes-1:0][511:0]    m_axis_qdma_c2h_tdata,
    output logic [Pipes-1:0][63:0]     m_axis_qdma_c2h_tkeep,
    output logic [Pipes-1:0]           m_axis_qdma_c2h_tlast,
    output logic [Pipes-1:0][15:0]     m_axis_qdma_c2h_tuser_size,
    output logic [Pipes-1:0][15:0]     m_axis_qdma_c2h_tuser_src,
    output logic [Pipes-1:0][15:0]     m_axis_qdma_c2h_tuser_dst,
    input  logic [Pipes-1:0]           m_axis_qdma_c2h_tready,
    input  logic [Pipes-1:0]           s_axis_adap_rx_250mhz_tvalid,
    input  logic [Pipes-1:0][511:0]    s_axis_adap_rx_250mhz_tdata,
    input  logic [Pipes-1:0][63:0]     s_axis_adap_rx_250mhz_tkeep,
    input  logic [Pipes-1:0]           s_axis_adap_rx_250mhz_tlast,
    input  logic [Pipes-1:0][15:0]     s_axis_adap_rx_250mhz_tuser_size,
    input  logic [Pipes-1:0][15:0]     s_axis_adap_rx_250mhz_tuser_src,
    input  logic [Pipes-1:0][15:0]     s_axis_adap_rx_250mhz_tuser_dst,
    output logic [Pipes-1:0]           s_axis_adap_rx_250mhz_tready,
    output logic [Pipes-1:0]           m_axis_adap_tx_250mhz_tvalid,
    output logic [Pipes-1:0][511:0]    m_axis_adap_tx_250mhz_tdata,
    output logic [Pipes-1:0][63:0]     m_axis_adap_tx_250mhz_tkeep,
    output logic [Pipes-1:0]           m_axis_adap_tx_250mhz_tlast,
    output logic [Pipes-1:0][15:0]     m_axis_adap_tx_250mhz_tuser_size,
    output logic [Pipes-1:0][15:0]     m_axis_adap_tx_250mhz_tuser_src,
    output logic [Pipes-1:0][15:0]     m_axis_adap_tx_250mhz_tuser_dst,
    input  logic [Pipes-1:0]           m_axis_adap_tx_250mhz_tready,
    // To the HBM controller, by axis_aclk; addresses within the channel.
    input  logic                       memory_ready,  // it came out of its reset
    output logic [Channels-1:0]        m_axi_arvalid,
    input  logic [Channels-1:0]        m_axi_arready,
    output logic [Channels-1:0][5:0]   m_axi_arid,
    output logic [Channels-1:0][32:0]  m_axi_araddr,
    output logic [Channels-1:0][3:0]   m_axi_arlen,
    input  logic [Channels-1:0]        m_axi_rvalid,
    output logic [Channels-1:0]        m_axi_rready,
    input  logic [Channels-1:0][5:0]   m_axi_rid,
    input  logic [Channels-1:0][255:0] m_axi_rdata,
    input  logic [Channels-1:0][1:0]   m_axi_rresp,
    input  logic [Channels-1:0]        m_axi_rlast,
    output logic [Channels-1:0]        m_axi_awvalid,
    input  logic [Channels-1:0]        m_axi_awready,
    output logic [Channels-1:0][32:0]  m_axi_awaddr,
    output logic [Channels-1:0]        m_axi_wvalid,
    input  logic [Channels-1:0]        m_axi_wready,
    output logic [Channels-1:0][255:0] m_axi_wdata,
    input  logic [Channels-1:0]        m_axi_bvalid,
    output logic [Channels-1:0]        m_axi_bready,
    input  logic [Channels-1:0][1:0]   m_axi_bresp
);

  localparam int unsigned Streams = 2 * Pipes;

  logic axil_rst, rst;

  reset_handshake reset (
      .slow_clk(axil_aclk), .mod_rstn, .mod_rst_done, .memory_ready, .slow_rst(axil_rst), .clk(axis_aclk), .rst
  );

  // ---- Packets

  logic  [Streams-1:0] s_valid, s_ready, m_valid, m_ready;
  beat_t [Streams-1:0] s_beat, m_beat;

  for (genvar i = 0; i < Pipes; i++) begin : g_host
    from_shell from_host (
        .clk(axis_aclk), .rst,
        .s_tvalid(s_axis_qdma_h2c_tvalid[i]), .s_tready(s_axis_qdma_h2c_tready[i]),
        .s_tdata(s_axis_qdma_h2c_tdata[i]), .s_tlast(s_axis_qdma_h2c_tlast[i]),
        .s_tuser_size(s_axis_qdma_h2c_tuser_size[i]),
        .m_valid(s_valid[i]), .m_ready(s_ready[i]), .m_beat(s_beat[i])
    );
    to_shell to_host (
        .clk(axis_aclk), .rst, .s_valid(m_valid[i]), .s_ready(m_ready[i]), .s_beat(m_beat[i]),
        .m_tvalid(m_axis_qdma_c2h_tvalid[i]), .m_tready(m_axis_qdma_c2h_tready[i]),
        .m_tdata(m_axis_qdma_c2h_tdata[i]), .m_tkeep(m_axis_qdma_c2h_tkeep[i]), .m_tlast(m_axis_qdma_c2h_tlast[i]),
        .m_tuser_size(m_axis_qdma_c2h_tuser_size[i])
    );
    // The shell's bits for functions, and for MAC ports.
    assign m_axis_qdma_c2h_tuser_src[i] = '0;
    assign m_axis_qdma_c2h_tuser_dst[i] = 16'd1 << i;
  end

  for (genvar i = 0; i < Pipes; i++) begin : g_wire
    from_shell #(.Wire(1'b1), .Port(port_id_t'(WirePort + i))) from_wire (
        .clk(axis_aclk), .rst,
        .s_tvalid(s_axis_adap_rx_250mhz_tvalid[i]), .s_tready(s_axis_adap_rx_250mhz_tready[i]),
        .s_tdata(s_axis_adap_rx_250mhz_tdata[i]), .s_tlast(s_axis_adap_rx_250mhz_tlast[i]),
        .s_tuser_size(s_axis_adap_rx_250mhz_tuser_size[i]),
        .m_valid(s_valid[Pipes+i]), .m_ready(s_ready[Pipes+i]), .m_beat(s_beat[Pipes+i])
    );
    to_shell #(.Wire(1'b1)) to_wire (
        .clk(axis_aclk), .rst, .s_valid(m_valid[Pipes+i]), .s_ready(m_ready[Pipes+i]), .s_beat(m_beat[Pipes+i]),
        .m_tvalid(m_axis_adap_tx_250mhz_tvalid[i]), .m_tready(m_axis_adap_tx_250mhz_tready[i]),
        .m_tdata(m_axis_adap_tx_250mhz_tdata[i]), .m_tkeep(m_axis_adap_tx_250mhz_tkeep[i]),
        .m_tlast(m_axis_adap_tx_250mhz_tlast[i]), .m_tuser_size(m_axis_adap_tx_250mhz_tuser_size[i])
    );
    assign m_axis_adap_tx_250mhz_tuser_src[i] = '0;
    assign m_axis_adap_tx_250mhz_tuser_dst[i] = 16'd1 << (6 + i);
  end

  // Sizes say what `tkeep` does; where a packet is from, its stream says.
  wire unused = &{s_axis_qdma_h2c_tkeep, s_axis_qdma_h2c_tuser_src, s_axis_qdma_h2c_tuser_dst,
                  s_axis_adap_rx_250mhz_tkeep, s_axis_adap_rx_250mhz_tuser_src, s_axis_adap_rx_250mhz_tuser_dst};

  // ---- Registers

  logic        awvalid, awready, wvalid, wready, bvalid, bready, arvalid, arready, rvalid, rready;
  logic [19:0] awaddr, araddr;
  logic [31:0] wdata, rdata;
  logic [1:0]  bresp, rresp;

  axil_bridge bridge (
      .slow_clk(axil_aclk), .slow_rst(axil_rst),
      .s_awvalid(s_axil_awvalid), .s_awready(s_axil_awready), .s_awaddr(s_axil_awaddr[19:0]),
      .s_wvalid(s_axil_wvalid), .s_wready(s_axil_wready), .s_wdata(s_axil_wdata),
      .s_bvalid(s_axil_bvalid), .s_bready(s_axil_bready), .s_bresp(s_axil_bresp),
      .s_arvalid(s_axil_arvalid), .s_arready(s_axil_arready), .s_araddr(s_axil_araddr[19:0]),
      .s_rvalid(s_axil_rvalid), .s_rready(s_axil_rready), .s_rdata(s_axil_rdata), .s_rresp(s_axil_rresp),
      .clk(axis_aclk), .rst,
      .m_awvalid(awvalid), .m_awready(awready), .m_awaddr(awaddr),
      .m_wvalid(wvalid), .m_wready(wready), .m_wdata(wdata),
      .m_bvalid(bvalid), .m_bready(bready), .m_bresp(bresp),
      .m_arvalid(arvalid), .m_arready(arready), .m_araddr(araddr),
      .m_rvalid(rvalid), .m_rready(rready), .m_rdata(rdata), .m_rresp(rresp)
  );

  engine #(
      .Pipes(Pipes), .FlowChannels(FlowChannels), .BridgeChannels(BridgeChannels), .RouteChannels(RouteChannels),
      .NexthopChannels(NexthopChannels), .Labels(Labels), .Nexthops(Nexthops), .Flows(Flows),
      .FlowBits(FlowBits), .BridgeBits(BridgeBits), .Route6Bits(Route6Bits)
  ) engine (
      .clk(axis_aclk), .rst, .s_valid, .s_ready, .s_beat, .m_valid, .m_ready, .m_beat,
      .m_axi_arvalid, .m_axi_arready, .m_axi_arid, .m_axi_araddr, .m_axi_arlen,
      .m_axi_rvalid, .m_axi_rready, .m_axi_rid, .m_axi_rdata, .m_axi_rresp, .m_axi_rlast,
      .m_axi_awvalid, .m_axi_awready, .m_axi_awaddr, .m_axi_wvalid, .m_axi_wready, .m_axi_wdata,
      .m_axi_bvalid, .m_axi_bready, .m_axi_bresp,
      .axil_awvalid(awvalid), .axil_awready(awready), .axil_awaddr(awaddr),
      .axil_wvalid(wvalid), .axil_wready(wready), .axil_wdata(wdata),
      .axil_bvalid(bvalid), .axil_bready(bready), .axil_bresp(bresp),
      .axil_arvalid(arvalid), .axil_arready(arready), .axil_araddr(araddr),
      .axil_rvalid(rvalid), .axil_rready(rready), .axil_rdata(rdata), .axil_rresp(rresp)
  );

endmodule

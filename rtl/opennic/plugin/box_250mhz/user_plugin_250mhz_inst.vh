// SPDX-License-Identifier: Apache-2.0
// In the body of OpenNIC's box_250mhz: the engine at the shell's ports, and HBM at the engine's. `hbm_channels` has
// AMD's HBM controller in it.

initial begin
  if (USE_PHYS_FUNC == 0 || NUM_QDMA != 1 || NUM_PHYS_FUNC != NUM_CMAC_PORT) begin
    $fatal(1, "viaduct: as many functions as MAC ports, and one QDMA");
  end
end

assign mod_rst_done[15:1] = '1;

localparam int HbmChannels = 32;

wire hbm_ready;
wire [HbmChannels-1:0] hbm_arvalid;
wire [HbmChannels-1:0] hbm_arready;
wire [HbmChannels-1:0][5:0] hbm_arid;
wire [HbmChannels-1:0][32:0] hbm_araddr;
wire [HbmChannels-1:0][3:0] hbm_arlen;
wire [HbmChannels-1:0] hbm_rvalid;
wire [HbmChannels-1:0] hbm_rready;
wire [HbmChannels-1:0][5:0] hbm_rid;
wire [HbmChannels-1:0][255:0] hbm_rdata;
wire [HbmChannels-1:0][1:0] hbm_rresp;
wire [HbmChannels-1:0] hbm_rlast;
wire [HbmChannels-1:0] hbm_awvalid;
wire [HbmChannels-1:0] hbm_awready;
wire [HbmChannels-1:0][32:0] hbm_awaddr;
wire [HbmChannels-1:0] hbm_wvalid;
wire [HbmChannels-1:0] hbm_wready;
wire [HbmChannels-1:0][255:0] hbm_wdata;
wire [HbmChannels-1:0] hbm_bvalid;
wire [HbmChannels-1:0] hbm_bready;
wire [HbmChannels-1:0][1:0] hbm_bresp;

opennic_box #(.Pipes(NUM_CMAC_PORT)) viaduct (
  .axis_aclk, .axil_aclk, .mod_rstn(mod_rstn[0]), .mod_rst_done(mod_rst_done[0]),
  .s_axil_awvalid, .s_axil_awaddr, .s_axil_awready, .s_axil_wvalid,
  .s_axil_wdata, .s_axil_wready, .s_axil_bvalid, .s_axil_bresp,
  .s_axil_bready, .s_axil_arvalid, .s_axil_araddr, .s_axil_arready,
  .s_axil_rvalid, .s_axil_rdata, .s_axil_rresp, .s_axil_rready,
  .s_axis_qdma_h2c_tvalid, .s_axis_qdma_h2c_tdata, .s_axis_qdma_h2c_tkeep, .s_axis_qdma_h2c_tlast,
  .s_axis_qdma_h2c_tuser_size, .s_axis_qdma_h2c_tuser_src, .s_axis_qdma_h2c_tuser_dst, .s_axis_qdma_h2c_tready,
  .m_axis_qdma_c2h_tvalid, .m_axis_qdma_c2h_tdata, .m_axis_qdma_c2h_tkeep, .m_axis_qdma_c2h_tlast,
  .m_axis_qdma_c2h_tuser_size, .m_axis_qdma_c2h_tuser_src, .m_axis_qdma_c2h_tuser_dst, .m_axis_qdma_c2h_tready,
  .s_axis_adap_rx_250mhz_tvalid, .s_axis_adap_rx_250mhz_tdata, .s_axis_adap_rx_250mhz_tkeep, .s_axis_adap_rx_250mhz_tlast,
  .s_axis_adap_rx_250mhz_tuser_size, .s_axis_adap_rx_250mhz_tuser_src, .s_axis_adap_rx_250mhz_tuser_dst, .s_axis_adap_rx_250mhz_tready,
  .m_axis_adap_tx_250mhz_tvalid, .m_axis_adap_tx_250mhz_tdata, .m_axis_adap_tx_250mhz_tkeep, .m_axis_adap_tx_250mhz_tlast,
  .m_axis_adap_tx_250mhz_tuser_size, .m_axis_adap_tx_250mhz_tuser_src, .m_axis_adap_tx_250mhz_tuser_dst, .m_axis_adap_tx_250mhz_tready,
  .memory_ready(hbm_ready),
  .m_axi_arvalid(hbm_arvalid), .m_axi_arready(hbm_arready), .m_axi_arid(hbm_arid), .m_axi_araddr(hbm_araddr),
  .m_axi_arlen(hbm_arlen), .m_axi_rvalid(hbm_rvalid), .m_axi_rready(hbm_rready), .m_axi_rid(hbm_rid),
  .m_axi_rdata(hbm_rdata), .m_axi_rresp(hbm_rresp), .m_axi_rlast(hbm_rlast), .m_axi_awvalid(hbm_awvalid),
  .m_axi_awready(hbm_awready), .m_axi_awaddr(hbm_awaddr), .m_axi_wvalid(hbm_wvalid), .m_axi_wready(hbm_wready),
  .m_axi_wdata(hbm_wdata), .m_axi_bvalid(hbm_bvalid), .m_axi_bready(hbm_bready), .m_axi_bresp(hbm_bresp)
);

hbm_channels hbm (
  .clk(axis_aclk), .ref_clk_100mhz, .ready(hbm_ready),
  .arvalid(hbm_arvalid), .arready(hbm_arready), .arid(hbm_arid), .araddr(hbm_araddr),
  .arlen(hbm_arlen), .rvalid(hbm_rvalid), .rready(hbm_rready), .rid(hbm_rid),
  .rdata(hbm_rdata), .rresp(hbm_rresp), .rlast(hbm_rlast), .awvalid(hbm_awvalid),
  .awready(hbm_awready), .awaddr(hbm_awaddr), .wvalid(hbm_wvalid), .wready(hbm_wready),
  .wdata(hbm_wdata), .bvalid(hbm_bvalid), .bready(hbm_bready), .bresp(hbm_bresp)
);

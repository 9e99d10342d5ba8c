// SPDX-License-Identifier: Apache-2.0
// AMD's HBM controller (the IP core that hbm_ip.tcl makes) as 32 channels: port n of its AXI3 is pseudo channel n, as
// its switch is off. Nobody has built this with Vivado yet.
//
// Addresses count within a channel: with 16 GB of HBM, 512 MB each, which is 29 bits; the controller wants the channel
// above them. The controller comes up by itself after configuration; a reset of the engine leaves it alone.
module hbm_channels #(
    localparam int unsigned Channels = 32
) (
    input  logic                       clk,             // of the ports
    input  logic                       ref_clk_100mhz,  // out of a clock buffer
    output logic                       ready,           // memory was set up; of the reference clock
    input  logic [Channels-1:0]        arvalid,
    output logic [Channels-1:0]        arready,
    input  logic [Channels-1:0][5:0]   arid,
    input  logic [Channels-1:0][32:0]  araddr,
    input  logic [Channels-1:0][3:0]   arlen,
    output logic [Channels-1:0]        rvalid,
    input  logic [Channels-1:0]        rready,
    output logic [Channels-1:0][5:0]   rid,
    output logic [Channels-1:0][255:0] rdata,
    output logic [Channels-1:0][1:0]   rresp,
    output logic [Channels-1:0]        rlast,
    input  logic [Channels-1:0]        awvalid,
    output logic [Channels-1:0]        awready,
    input  logic [Channels-1:0][32:0]  awaddr,
    input  logic [Channels-1:0]        wvalid,
    output logic [Channels-1:0]        wready,
    input  logic [Channels-1:0][255:0] wdata,
    output logic [Channels-1:0]        bvalid,
    input  logic [Channels-1:0]        bready,
    output logic [Channels-1:0][1:0]   bresp
);

  localparam int unsigned ChannelWidth = 29;  // of an address within a channel

  // A channel's address in the 16 GB of all.
  function automatic logic [33:0] place(int unsigned channel, logic [ChannelWidth-1:0] address);
    return {5'(channel), address};
  endfunction

  // ---- Resets, from configuration on, long enough for either side.

  logic [7:0] apb_up, axi_up;
  logic [1:0] complete;
  initial {apb_up, axi_up} = '0;
  always_ff @(posedge ref_clk_100mhz) apb_up <= {apb_up[6:0], 1'b1};
  always_ff @(posedge clk) axi_up <= {axi_up[6:0], apb_up[7]};
  always_ff @(posedge ref_clk_100mhz) ready <= &complete;

  // A port of the controller. Reads are INCR of 32 bytes a beat, writes one beat with all bytes.
`define VIADUCT_PORT(NN, N) \
      .AXI_``NN``_ACLK(clk), .AXI_``NN``_ARESET_N(axi_up[7]), \
      .AXI_``NN``_ARVALID(arvalid[N]), .AXI_``NN``_ARREADY(arready[N]), .AXI_``NN``_ARID(arid[N]), \
      .AXI_``NN``_ARADDR(place(N, araddr[N][ChannelWidth-1:0])), .AXI_``NN``_ARLEN(arlen[N]), \
      .AXI_``NN``_ARSIZE(3'd5), .AXI_``NN``_ARBURST(2'd1), \
      .AXI_``NN``_RVALID(rvalid[N]), .AXI_``NN``_RREADY(rready[N]), .AXI_``NN``_RID(rid[N]), \
      .AXI_``NN``_RDATA(rdata[N]), .AXI_``NN``_RRESP(rresp[N]), .AXI_``NN``_RLAST(rlast[N]), \
      .AXI_``NN``_RDATA_PARITY(), \
      .AXI_``NN``_AWVALID(awvalid[N]), .AXI_``NN``_AWREADY(awready[N]), .AXI_``NN``_AWID(6'd0), \
      .AXI_``NN``_AWADDR(place(N, awaddr[N][ChannelWidth-1:0])), .AXI_``NN``_AWLEN(4'd0), \
      .AXI_``NN``_AWSIZE(3'd5), .AXI_``NN``_AWBURST(2'd1), \
      .AXI_``NN``_WVALID(wvalid[N]), .AXI_``NN``_WREADY(wready[N]), .AXI_``NN``_WDATA(wdata[N]), \
      .AXI_``NN``_WSTRB('1), .AXI_``NN``_WLAST(1'b1), .AXI_``NN``_WDATA_PARITY('0), \
      .AXI_``NN``_BVALID(bvalid[N]), .AXI_``NN``_BREADY(bready[N]), .AXI_``NN``_BID(), .AXI_``NN``_BRESP(bresp[N])

  // verilog_lint: waive-start module-port
  viaduct_hbm controller (
      .HBM_REF_CLK_0(ref_clk_100mhz), .HBM_REF_CLK_1(ref_clk_100mhz),
      .APB_0_PCLK(ref_clk_100mhz), .APB_0_PRESET_N(apb_up[7]), .apb_complete_0(complete[0]),
      .APB_1_PCLK(ref_clk_100mhz), .APB_1_PRESET_N(apb_up[7]), .apb_complete_1(complete[1]),
      .DRAM_0_STAT_CATTRIP(), .DRAM_0_STAT_TEMP(), .DRAM_1_STAT_CATTRIP(), .DRAM_1_STAT_TEMP(),
      `VIADUCT_PORT(00, 0), `VIADUCT_PORT(01, 1), `VIADUCT_PORT(02, 2), `VIADUCT_PORT(03, 3),
      `VIADUCT_PORT(04, 4), `VIADUCT_PORT(05, 5), `VIADUCT_PORT(06, 6), `VIADUCT_PORT(07, 7),
      `VIADUCT_PORT(08, 8), `VIADUCT_PORT(09, 9), `VIADUCT_PORT(10, 10), `VIADUCT_PORT(11, 11),
      `VIADUCT_PORT(12, 12), `VIADUCT_PORT(13, 13), `VIADUCT_PORT(14, 14), `VIADUCT_PORT(15, 15),
      `VIADUCT_PORT(16, 16), `VIADUCT_PORT(17, 17), `VIADUCT_PORT(18, 18), `VIADUCT_PORT(19, 19),
      `VIADUCT_PORT(20, 20), `VIADUCT_PORT(21, 21), `VIADUCT_PORT(22, 22), `VIADUCT_PORT(23, 23),
      `VIADUCT_PORT(24, 24), `VIADUCT_PORT(25, 25), `VIADUCT_PORT(26, 26), `VIADUCT_PORT(27, 27),
      `VIADUCT_PORT(28, 28), `VIADUCT_PORT(29, 29), `VIADUCT_PORT(30, 30), `VIADUCT_PORT(31, 31)
  );
  // verilog_lint: waive-stop module-port
`undef VIADUCT_PORT

  // An address ends within its channel.
  logic [Channels-1:0] unused;
  for (genvar n = 0; n < Channels; n++) begin : g_unused
    assign unused[n] = &{araddr[n][32:ChannelWidth], awaddr[n][32:ChannelWidth]};
  end
  wire unused_above = &unused;

endmodule

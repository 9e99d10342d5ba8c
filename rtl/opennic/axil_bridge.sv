// SPDX-License-Identifier: Apache-2.0
// AXI4-Lite from the shell's clock of 125 MHz to the engine's of 250. Edges of the slow clock are edges of the fast
// one, so that whatever stands for a slow clock may be sampled by either; what could be seen twice or missed are
// events, so those are told by changes of a bit: `asked` by the slow side, `answered` by the fast one.
//
// A write and a read at a time; 4 slow clocks besides the engine's own.
module axil_bridge (
    input  logic        slow_clk,
    input  logic        slow_rst,
    input  logic        s_awvalid,
    output logic        s_awready,
    input  logic [19:0] s_awaddr,
    input  logic        s_wvalid,
    output logic        s_wready,
    input  logic [31:0] s_wdata,
    output logic        s_bvalid,
    input  logic        s_bready,
    output logic [1:0]  s_bresp,
    input  logic        s_arvalid,
    output logic        s_arready,
    input  logic [19:0] s_araddr,
    output logic        s_rvalid,
    input  logic        s_rready,
    output logic [31:0] s_rdata,
    output logic [1:0]  s_rresp,
    input  logic        clk,
    input  logic        rst,
    output logic        m_awvalid,
    input  logic        m_awready,
    output logic [19:0] m_awaddr,
    output logic        m_wvalid,
    input  logic        m_wready,
    output logic [31:0] m_wdata,
    input  logic        m_bvalid,
    output logic        m_bready,
    input  logic [1:0]  m_bresp,
    output logic        m_arvalid,
    input  logic        m_arready,
    output logic [19:0] m_araddr,
    input  logic        m_rvalid,
    output logic        m_rready,
    input  logic [31:0] m_rdata,
    input  logic [1:0]  m_rresp
);

  // ---- The slow side: takes what comes, waits for the answer, gives it

  logic write_asked, write_answered, write_begun, write_open;
  logic read_asked, read_answered, read_begun, read_open;
  logic take_write, take_read;

  assign take_write = s_awvalid && s_wvalid && !s_awready && !s_bvalid && !write_open;
  assign take_read  = s_arvalid && !s_arready && !s_rvalid && !read_open;

  always_ff @(posedge slow_clk) begin
    {s_awready, s_wready, s_arready} <= {take_write, take_write, take_read};
    if (take_write) {write_asked, m_awaddr, m_wdata} <= {!write_asked, s_awaddr, s_wdata};
    if (take_read) {read_asked, m_araddr} <= {!read_asked, s_araddr};
    write_open <= take_write || write_open && write_asked != write_answered;
    read_open  <= take_read || read_open && read_asked != read_answered;
    if (write_open && write_asked == write_answered) s_bvalid <= 1'b1;
    else if (s_bready) s_bvalid <= 1'b0;
    if (read_open && read_asked == read_answered) s_rvalid <= 1'b1;
    else if (s_rready) s_rvalid <= 1'b0;
    if (slow_rst) begin
      {s_awready, s_wready, s_arready, s_bvalid, s_rvalid} <= '0;
      {write_asked, read_asked, write_open, read_open} <= '0;
    end
  end

  // ---- The fast side

  assign m_bready = !m_awvalid && !m_wvalid;
  assign m_rready = !m_arvalid;

  always_ff @(posedge clk) begin
    if (m_awready) m_awvalid <= 1'b0;
    if (m_wready) m_wvalid <= 1'b0;
    if (m_arready) m_arvalid <= 1'b0;
    if (write_begun != write_asked) {write_begun, m_awvalid, m_wvalid} <= {write_asked, 2'b11};
    if (read_begun != read_asked) {read_begun, m_arvalid} <= {read_asked, 1'b1};
    if (m_bvalid && m_bready) {write_answered, s_bresp} <= {write_begun, m_bresp};
    if (m_rvalid && m_rready) {read_answered, s_rdata, s_rresp} <= {read_begun, m_rdata, m_rresp};
    if (rst) {m_awvalid, m_wvalid, m_arvalid, write_begun, read_begun, write_answered, read_answered} <= '0;
  end

endmodule

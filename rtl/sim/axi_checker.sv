// SPDX-License-Identifier: Apache-2.0
//
// Checks the rules of AXI3 on a channel as `memory` uses it: what is valid stays and doesn't change until it is taken; a
// read's ID is not in use by another; bursts have the length of a line and lie in one; answers are to what was asked. Every
// clock, no outputs.
module axi_checker #(
    parameter int unsigned LineBytes = 64
) (
    input logic         clk,
    input logic         rst,
    input logic         arvalid,
    input logic         arready,
    input logic [  5:0] arid,
    input logic [ 32:0] araddr,
    input logic [  3:0] arlen,
    input logic         rvalid,
    input logic         rready,
    input logic [  5:0] rid,
    input logic [255:0] rdata,
    input logic         rlast,
    input logic         awvalid,
    input logic         awready,
    input logic [ 32:0] awaddr,
    input logic         wvalid,
    input logic         wready,
    input logic [255:0] wdata,
    input logic         bvalid,
    input logic         bready
);
  localparam int unsigned Beats = LineBytes / 32;

  logic [63:0] reading;
  logic [3:0] beats[64];
  // Writes whose address, or data, was given, and that are not answered.
  int addresses, words;

  always_ff @(posedge clk) begin
    if (rst) reading <= '0;
    else begin
      if (arvalid && arready) begin
        assert (!reading[arid]) else $error("read ID %0d is in use", arid);
        assert (arlen == 4'(Beats - 1)) else $error("a burst of %0d", 32'(arlen) + 1);
        assert (araddr % 33'(LineBytes) == 0) else $error("a read of no line: %h", araddr);
        reading[arid] <= 1'b1;
        beats[arid]   <= 4'd0;
      end
      if (rvalid && rready) begin
        assert (reading[rid]) else $error("an answer to no read: ID %0d", rid);
        assert (rlast == (beats[rid] == arlen)) else $error("the wrong beat is the last one of ID %0d", rid);
        beats[rid] <= beats[rid] + 1'b1;
        if (rlast) reading[rid] <= 1'b0;
      end
    end
  end

  always_ff @(posedge clk) begin
    addresses <= rst ? 0 : addresses + 32'(awvalid && awready) - 32'(bvalid && bready);
    words     <= rst ? 0 : words + 32'(wvalid && wready) - 32'(bvalid && bready);
    if (!rst) begin
      if (awvalid) assert (awaddr % 32 == 0) else $error("a write across a boundary of 32 bytes: %h", awaddr);
      if (bvalid) assert (addresses > 0 && words > 0) else $error("an answer to no write");
    end
  end

  // ---- What was offered and not taken.

  logic ar_kept, r_kept, aw_kept, w_kept, b_kept;
  logic [32:0] last_araddr, last_awaddr;
  logic [5:0] last_arid, last_rid;
  logic [255:0] last_rdata, last_wdata;
  logic last_rlast;

  always_ff @(posedge clk) begin
    ar_kept     <= arvalid && !arready;
    r_kept      <= rvalid && !rready;
    aw_kept     <= awvalid && !awready;
    w_kept      <= wvalid && !wready;
    b_kept      <= bvalid && !bready;
    last_araddr <= araddr;
    last_awaddr <= awaddr;
    last_arid   <= arid;
    last_rid    <= rid;
    last_rdata  <= rdata;
    last_wdata  <= wdata;
    last_rlast  <= rlast;
    if (!rst) begin
      if (ar_kept) assert (arvalid && araddr == last_araddr && arid == last_arid) else $error("AR changed");
      if (r_kept)
        assert (rvalid && {rdata, rid, rlast} == {last_rdata, last_rid, last_rlast}) else $error("R changed");
      if (aw_kept) assert (awvalid && awaddr == last_awaddr) else $error("AW changed");
      if (w_kept) assert (wvalid && wdata == last_wdata) else $error("W changed");
      if (b_kept) assert (bvalid) else $error("B changed");
    end
  end
endmodule

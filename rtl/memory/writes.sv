// SPDX-License-Identifier: Apache-2.0
//
// Writes of 32 bytes through AXI3, one after the other. Once memory has answered, the line is to be forgotten by the cache;
// `wr_done` pulses 2 cycles after that was granted, when every later look-up finds it forgotten.
module writes #(
    parameter int unsigned LineBytes = 64,
    parameter int unsigned LineWidth = 24
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 wr_valid,
    output logic                 wr_ready,
    input  logic [LineWidth-1:0] wr_line,
    input  logic                 wr_half,         // which 32 bytes of a line of 64
    input  logic [        255:0] wr_data,
    output logic                 wr_done,
    output logic                 forget_valid,
    input  logic                 forget_ready,
    output logic [LineWidth-1:0] forget_line,
    output logic                 error,           // pulse: memory answered with an error
    output logic                 awvalid,
    input  logic                 awready,
    output logic [         32:0] awaddr,
    output logic                 wvalid,
    input  logic                 wready,
    output logic [        255:0] wdata,
    input  logic                 bvalid,
    output logic                 bready,
    input  logic [          1:0] bresp
);
  localparam int unsigned Shift = $clog2(LineBytes);

  typedef enum logic [1:0] {
    Idle,
    Answer,
    Forget
  } state_e;

  state_e state;
  logic forgetting;

  assign wr_ready     = state == Idle;
  // In reset too: the answer to a write from before it.
  assign bready       = state == Answer || rst;
  assign forget_valid = state == Forget;

  always_ff @(posedge clk) begin
    if (awready) awvalid <= 1'b0;
    if (wready) wvalid <= 1'b0;
    unique case (state)
      Idle:
      if (wr_valid) begin
        state         <= Answer;
        awvalid <= 1'b1;
        wvalid  <= 1'b1;
        forget_line   <= wr_line;
        awaddr  <= 33'(wr_line) << Shift | 33'(wr_half && LineBytes == 64) << 5;
        wdata   <= wr_data;
      end
      Answer: if (bvalid) state <= Forget;
      default: if (forget_ready) state <= Idle;
    endcase
    forgetting <= forget_valid && forget_ready;
    wr_done    <= forgetting;
    error      <= bready && bvalid && |bresp;
    if (rst) begin
      state         <= Idle;
      awvalid <= 1'b0;
      wvalid  <= 1'b0;
      forgetting    <= 1'b0;
    end
  end
endmodule

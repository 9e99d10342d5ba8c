// SPDX-License-Identifier: Apache-2.0
// Lets so many events of each number pass in a window of time: a RAM of counts, and of the windows that they are of.
//
// `over` is said of an event in the step behind it, one event per step; nothing but time moves without `step`.
module window_budget #(
    parameter  int unsigned Entries      = 1024,
    parameter  int unsigned WindowBits   = 18,   // clocks of a window, binary logarithm
    localparam int unsigned AddressWidth = $clog2(Entries)
) (
    input  logic                    clk,
    input  logic                    rst,
    input  logic                    step,
    input  logic [31:0]             budget,  // 0: none
    input  logic                    valid,
    input  logic [AddressWidth-1:0] number,
    output logic                    over
);

  typedef struct packed {
    logic [31:0]         window;
    logic [WindowBits:0] count;
  } count_t;

  count_t ram[Entries];
  initial for (int i = 0; i < Entries; i++) ram[i] = '0;

  // Never reset, as the RAM isn't: a window's number does not come again for 2^32 windows.
  logic [WindowBits+31:0] clock;
  initial clock = '0;
  always_ff @(posedge clk) clock <= clock + 1'b1;

  logic [31:0] window;
  assign window = clock[WindowBits+:32];

  logic                    judged, repeated;
  logic [AddressWidth-1:0] judged_number;
  count_t                  read, written, base, sum;

  always_comb begin
    // What the event before wrote isn't in what was read.
    base = repeated ? written : read;
    if (base.window != window) base = '{window: window, count: '0};
    over = judged && budget != '0 && 32'(base.count) >= budget;
    sum  = base;
    if (!over) sum.count = base.count + 1'b1;
  end

  always_ff @(posedge clk) begin
    if (step) begin
      read          <= ram[number];
      judged_number <= number;
      repeated      <= judged && number == judged_number;
      if (judged) begin
        ram[judged_number] <= sum;
        written            <= sum;
      end
    end
    if (rst) judged <= 1'b0;
    else if (step) judged <= valid;
  end

endmodule

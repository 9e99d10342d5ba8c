// SPDX-License-Identifier: Apache-2.0
// A bit per flow: set by each of its packets, taken by the host 64 at a time.
//
// A packet each clock. A `take` clears what it takes, and nothing that is set by a later packet; it needs a clock without
// a packet. `taken` follows 3 clocks behind it.
module seen_bits #(
    parameter  int unsigned Flows        = 8388608,
    localparam int unsigned WordWidth    = $clog2(Flows) - 6
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 valid,
    input  logic [WordWidth+5:0] flow,
    input  logic                 take,
    input  logic [WordWidth-1:0] word,
    output logic [63:0]          taken
);

  logic [63:0] ram[2**WordWidth];
`ifndef SYNTHESIS
  // As UltraRAM begins.
  initial for (int i = 0; i < 2 ** WordWidth; i++) ram[i] = '0;
`endif

  typedef struct packed {
    logic                 valid;
    logic                 take;
    logic [WordWidth-1:0] word;
    logic [5:0]           bit_number;
  } access_t;

  access_t access0, access1, access2, written, written_before;
  logic [63:0] read1, read2, base, next, next_written, next_before;

  always_comb begin
    access0 = '{
        valid: (valid || take) && !rst, take: take, word: take ? word : flow[6+:WordWidth], bit_number: flow[5:0]
    };
    // What the two before wrote isn't in what was read.
    base = read2;
    if (written_before.valid && written_before.word == access2.word) base = next_before;
    if (written.valid && written.word == access2.word) base = next_written;
    next = access2.take ? '0 : base | 64'd1 << access2.bit_number;
  end

  always_ff @(posedge clk) begin
    {access1, access2} <= {access0, access1};
    {read1, read2}     <= {ram[access0.word], read1};
    if (access2.valid) ram[access2.word] <= next;
    if (access2.valid && access2.take) taken <= base;
    {written, next_written}       <= {access2, next};
    {written_before, next_before} <= {written, next_written};
    if (rst) {access2.valid, written.valid, written_before.valid} <= '0;
    if (!rst) assert (!(valid && take)) else $error("seen_bits: a packet in the clock of a take");
  end

endmodule

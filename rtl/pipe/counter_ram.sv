// SPDX-License-Identifier: Apache-2.0
// Packets and bytes by number, exact: an event each clock, of the same number too.
//
// An event counts 3 clocks after it came. `rd_number` is read in each clock without an event, since a port of its own
// would take a second copy of the RAM; what is said of it comes 3 clocks behind. `passed` says in the clock behind an
// event that the packets (bit 0), the bytes (bit 1) have passed another eighth of what can be counted.
module counter_ram #(
    parameter  int unsigned Entries      = 1024,
    parameter  int unsigned PacketsWidth = 40,
    parameter  int unsigned BytesWidth   = 48,
    localparam int unsigned AddressWidth = $clog2(Entries)
) (
    input  logic                    clk,
    input  logic                    rst,
    input  logic                    valid,
    input  logic [AddressWidth-1:0] number,
    input  logic [15:0]             size,     // bytes
    input  logic [AddressWidth-1:0] rd_number,
    output logic [PacketsWidth-1:0] rd_packets,
    output logic [BytesWidth-1:0]   rd_bytes,
    output logic [1:0]              passed,
    output logic [AddressWidth-1:0] passed_number
);

  typedef struct packed {
    logic [PacketsWidth-1:0] packets;
    logic [BytesWidth-1:0]   bytes;
  } count_t;

  count_t ram[Entries];
  initial for (int i = 0; i < Entries; i++) ram[i] = '0;

  typedef struct packed {
    logic                    valid;
    logic [AddressWidth-1:0] number;
    logic [15:0]             size;
  } event_t;

  event_t event1, event2, written, written_before;
  count_t count1, count2, base, sum, sum_written, sum_before;
  logic   idle1, idle2;

  // What the two events before wrote isn't in what was read.
  always_comb begin
    base = count2;
    if (written_before.valid && written_before.number == event2.number) base = sum_before;
    if (written.valid && written.number == event2.number) base = sum_written;
    sum.packets = base.packets + PacketsWidth'(1);
    sum.bytes   = base.bytes + BytesWidth'(event2.size);
  end

  assign passed_number = written.number;

  always_ff @(posedge clk) begin
    event1 <= '{valid: valid && !rst, number: number, size: size};
    count1 <= ram[valid ? number : rd_number];
    {idle1, idle2} <= {!valid, idle1};
    event2 <= event1;
    count2 <= count1;
    if (event2.valid) ram[event2.number] <= sum;
    {written, sum_written}       <= {event2, sum};
    {written_before, sum_before} <= {written, sum_written};
    passed <= {2{event2.valid && !rst}} & {
        sum.bytes[BytesWidth-1-:3] != base.bytes[BytesWidth-1-:3],
        sum.packets[PacketsWidth-1-:3] != base.packets[PacketsWidth-1-:3]
    };
    if (idle2) {rd_packets, rd_bytes} <= count2;
    if (rst) {event2.valid, written.valid, written_before.valid} <= '0;
  end

endmodule

// SPDX-License-Identifier: Apache-2.0
//
// Reads the two lines of 32 bytes where an entry of this key may be (a table of two choices), both at once; answers
// come in the order of the keys. Latency 10 cycles besides memory's, throughput 1 key per cycle. Answers of the memory
// are always taken.
module two_choices
  import viaduct_pkg::*;
#(
    parameter  int unsigned Bits         = 15,    // lines of a way, binary logarithm
    parameter  line_t       Way0         = '0,    // first line of each way
    parameter  line_t       Way1         = '0,
    parameter  int unsigned ContextWidth = 64,    // of what comes back beside the lines
    parameter  int unsigned Slots        = 512,   // reads at once; power of two, at most 2^TagWidth
    localparam int unsigned SlotWidth    = $clog2(Slots)
) (
    input  logic                    clk,
    input  logic                    rst,
    input  logic [319:0]            secret,
    input  logic                    s_valid,
    output logic                    s_ready,
    input  logic [319:0]            s_key,
    input  logic [ContextWidth-1:0] s_context,
    output logic                    m_valid,
    input  logic                    m_ready,
    output logic [ContextWidth-1:0] m_context,
    output logic [1:0][255:0]       m_line,
    output logic  [1:0]             req_valid,
    input  logic  [1:0]             req_ready,
    output line_t [1:0]             req_line,
    output tag_t  [1:0]             req_context,
    input  logic  [1:0]             resp_valid,
    output logic  [1:0]             resp_ready,
    input  tag_t  [1:0]             resp_context,
    input  logic  [1:0][255:0]      resp_data
);
  if (Slots > 2 ** TagWidth) $error("two_choices: Slots must be at most 2^TagWidth");

  logic allocate_ready, taken, hashed, retire_valid, reading, step;
  logic [1:0] full;
  logic [1:0][31:0] choice;
  logic [SlotWidth-1:0] slot, hashed_slot, retired_slot;

  assign s_ready = allocate_ready && full == '0;
  assign taken   = s_valid && s_ready;
  assign step    = !m_valid || m_ready;

  retire #(.Tags(Slots), .Marks(2)) order (
      .clk, .rst,
      .allocate_valid(s_valid && full == '0), .allocate_ready, .allocate_required('1), .allocate_tag(slot),
      .mark_valid(resp_valid), .mark_tag({resp_context[1][SlotWidth-1:0], resp_context[0][SlotWidth-1:0]}),
      .retire_valid, .retire_ready(step), .retire_tag(retired_slot)
  );

  hash #(.ContextWidth(SlotWidth)) hash (
      .clk, .rst, .secret,
      .s_valid(taken), .s_key, .s_context(slot),
      .m_valid(hashed), .m_a(choice[0]), .m_b(choice[1]), .m_context(hashed_slot)
  );

  table_ram #(.Width(ContextWidth), .Depth(Slots)) contexts (
      .clk, .step, .wr_valid(taken), .wr_address(slot), .wr_data(s_context), .address(retired_slot), .data(m_context)
  );

  for (genvar way = 0; way < 2; way++) begin : g_way
    logic [Bits-1:0] bits;
    logic [SlotWidth-1:0] req_slot;

    // Behind `full` there is room for what is being hashed.
    fifo #(.Width(Bits + SlotWidth), .Depth(32), .AlmostFull(16)) requests (
        .clk, .rst,
        .s_valid(hashed), .s_ready(), .s_data({choice[way][Bits-1:0], hashed_slot}),
        .m_valid(req_valid[way]), .m_ready(req_ready[way]), .m_data({bits, req_slot}),
        .level(), .almost_full(full[way])
    );

    assign req_line[way]    = (way == 0 ? Way0 : Way1) | line_t'(bits);
    assign req_context[way] = tag_t'(req_slot);
    assign resp_ready[way]  = 1'b1;

    table_ram #(.Width(256), .Depth(Slots)) lines (
        .clk, .step, .wr_valid(resp_valid[way]), .wr_address(resp_context[way][SlotWidth-1:0]),
        .wr_data(resp_data[way]), .address(retired_slot), .data(m_line[way])
    );
  end

  always_ff @(posedge clk) begin
    if (step) {m_valid, reading} <= {reading, retire_valid};
    if (rst) {m_valid, reading} <= '0;
  end
endmodule

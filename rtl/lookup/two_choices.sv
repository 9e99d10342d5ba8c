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
    output memory_req_t  [1:0]      reqs,
    input  memory_resp_t [1:0]      resps
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
      .mark_valid({resps[1].valid, resps[0].valid}),
      .mark_tag({resps[1].tag[SlotWidth-1:0], resps[0].tag[SlotWidth-1:0]}),
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
    logic req_valid;

    // Behind `full` there is room for what is being hashed.
    fifo #(.Width(Bits + SlotWidth), .Depth(32), .AlmostFull(16)) requests (
        .clk, .rst,
        .s_valid(hashed), .s_ready(), .s_data({choice[way][Bits-1:0], hashed_slot}),
        .m_valid(req_valid), .m_ready(resps[way].req_ready), .m_data({bits, req_slot}),
        .level(), .almost_full(full[way])
    );

    assign reqs[way] = '{
        valid: req_valid, line: (way == 0 ? Way0 : Way1) | line_t'(bits), tag: tag_t'(req_slot), resp_ready: 1'b1
    };

    table_ram #(.Width(256), .Depth(Slots)) lines (
        .clk, .step, .wr_valid(resps[way].valid), .wr_address(resps[way].tag[SlotWidth-1:0]),
        .wr_data(resps[way].data[255:0]), .address(retired_slot), .data(m_line[way])
    );
  end

  always_ff @(posedge clk) begin
    if (step) {m_valid, reading} <= {reading, retire_valid};
    if (rst) {m_valid, reading} <= '0;
  end
endmodule

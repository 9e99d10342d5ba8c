// SPDX-License-Identifier: Apache-2.0
//
// Looks an IPv6 address up by the network's prefix lengths, the longest first, one after the other, both ways of the
// table at once; results in any order. Latency 15 cycles for each length that it takes, memory's included that often.
// Throughput 1 length per cycle over all look-ups. Answers of the memory are always taken.
module route6_lookup
  import registers_pkg::*;
  import viaduct_pkg::*;
#(
    parameter int unsigned Route6Bits = 18,  // lines of a way, binary logarithm
    parameter int unsigned Slots      = 512  // reads at once
) (
    input  logic               clk,
    input  logic               rst,
    input  logic [319:0]       secret,
    input  logic               s_valid,
    output logic               s_ready,
    input  tag_t               s_tag,
    input  vrf_id_t            s_vrf,
    input  logic [127:0]       s_dst,
    input  logic [127:0]       s_lengths6,   // longest first, a byte each; 255 ends them
    output logic               m_valid,
    input  logic               m_ready,
    output tag_t               m_tag,
    output forward_result_t    m_result,
    output memory_req_t  [1:0] reqs,
    input  memory_resp_t [1:0] resps
);
  localparam logic [7:0] End = 8'd255;

  // A length of a look-up, its turn come.
  typedef struct packed {
    tag_t       tag;
    logic [3:0] index;
  } turn_t;

  typedef struct packed {
    turn_t        turn;
    logic         last;
    logic [7:0]   length;
    vrf_id_t      vrf;
    logic [127:0] prefix;
  } wanted_t;

  logic  again;          // the look-up `concluded` goes on with its next length
  logic  concluded_valid;
  turn_t concluded;
  forward_result_t result;

  // ---- Whose turn it is: those that go on come first. A tag is in here once, so there is always room.

  turn_t turn;
  logic  turn_valid, step;

  assign s_ready = !again;

  fifo #(.Width($bits(turn_t)), .Depth(2 ** TagWidth)) turns (
      .clk, .rst,
      .s_valid(again || s_valid), .s_ready(), .s_data(again ? {concluded.tag, concluded.index + 4'd1} : {s_tag, 4'd0}),
      .m_valid(turn_valid), .m_ready(step), .m_data(turn),
      .level(), .almost_full()
  );

  // ---- The prefix of that length

  logic [1:0]       reading;
  turn_t [1:0]      turns_read;
  vrf_id_t          vrf;
  logic [127:0]     dst;
  logic [15:0][7:0] lengths;
  logic [7:0]       length;
  logic             wanted_valid, wanted_ready;
  wanted_t          wanted;

  assign step   = !wanted_valid || wanted_ready;
  assign length = lengths[turns_read[1].index];

  table_ram #(.Width($bits(vrf_id_t) + 256), .Depth(2 ** TagWidth)) look_ups (
      .clk, .step, .wr_valid(s_valid && s_ready), .wr_address(s_tag), .wr_data({s_vrf, s_dst, s_lengths6}),
      .address(turn.tag), .data({vrf, dst, lengths})
  );

  always_ff @(posedge clk) begin
    if (step) begin
      {wanted_valid, reading} <= {reading, turn_valid};
      turns_read              <= {turns_read[0], turn};
      wanted <= '{
          turn: turns_read[1],
          // No prefix has the length 255: where there is none at all, it is looked for in vain.
          last: length == End || turns_read[1].index == 4'd15 || lengths[turns_read[1].index+4'd1] == End,
          length: length,
          vrf: vrf,
          prefix: dst & ~({128{1'b1}} >> length)
      };
    end
    if (rst) {wanted_valid, reading} <= '0;
  end

  // ---- Both places where it may be

  wanted_t           read;
  logic              read_valid, read_ready;
  logic [1:0][255:0] line;
  route6_t [1:0]     entries;
  logic [1:0]        hit, bad;

  two_choices #(
      .Bits(Route6Bits), .Way0(27'h4000000), .Way1(27'h6000000), .ContextWidth($bits(wanted_t)), .Slots(Slots)
  ) two_choices (
      .clk, .rst, .secret,
      .s_valid(wanted_valid), .s_ready(wanted_ready),
      .s_key({172'd0, wanted.length, wanted.vrf, wanted.prefix}), .s_context(wanted),
      .m_valid(read_valid), .m_ready(read_ready), .m_context(read), .m_line(line),
      .reqs, .resps
  );

  assign entries = line;

  always_comb begin
    for (int unsigned i = 0; i < 2; i++) begin
      bad[i] = bad_route6(entries[i]);
      hit[i] = entries[i].valid && entries[i].prefix == read.prefix && entries[i].vrf == read.vrf &&
               entries[i].length == read.length;
    end
  end

  // ---- What that comes to

  logic more;

  assign again      = concluded_valid && more;
  assign m_valid    = concluded_valid && !more;
  assign m_tag      = concluded.tag;
  assign m_result   = result;
  assign read_ready = !m_valid || m_ready;

  always_ff @(posedge clk) begin
    if (read_ready) begin
      concluded_valid <= read_valid;
      concluded       <= read.turn;
      // A shorter prefix must not replace one that could not be read.
      more            <= hit == '0 && bad == '0 && !read.last;
      result          <= '{
          bad: hit == '0 && |bad,
          found: |hit,
          nexthop: hit[0] ? entries[0].nexthop : hit[1] ? entries[1].nexthop : '0
      };
    end
    if (rst) concluded_valid <= 1'b0;
  end
endmodule

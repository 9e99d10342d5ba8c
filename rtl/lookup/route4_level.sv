// SPDX-License-Identifier: Apache-2.0
//
// A level of the IPv4 trie: reads a line and gives the wanted one of its eight entries, in any order. Latency 4 cycles
// besides memory's, throughput 1 entry per cycle.
//
// With a queue as deep as there are tags `s_ready` is always set; then answers wait for `m_ready` alone.
module route4_level
  import registers_pkg::*;
  import viaduct_pkg::*;
#(
    parameter int unsigned RestWidth = 16,  // of the address behind the bits that lead to the entry; kept
    parameter int unsigned Queue     = 1024 // requests that wait for memory
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 s_valid,
    output logic                 s_ready,
    input  tag_t                 s_tag,
    input  line_t                s_line,
    input  logic [2:0]           s_entry,
    input  logic [RestWidth-1:0] s_rest,
    output logic                 m_valid,
    input  logic                 m_ready,
    output tag_t                 m_tag,
    output route4_t              m_entry,
    output logic [RestWidth-1:0] m_rest,
    output memory_req_t          req,
    input  memory_resp_t         resp
);
  logic step, req_valid;
  line_t req_line;
  tag_t req_tag;
  logic [1:0] valid;
  tag_t [1:0] tag;
  logic [7:0][31:0] arrived, entries;
  logic [2:0] entry;
  logic [RestWidth-1:0] rest;

  fifo #(.Width($bits(line_t) + TagWidth), .Depth(Queue)) requests (
      .clk, .rst,
      .s_valid, .s_ready, .s_data({s_line, s_tag}),
      .m_valid(req_valid), .m_ready(resp.req_ready), .m_data({req_line, req_tag}),
      .level(), .almost_full()
  );

  table_ram #(.Width(3 + RestWidth), .Depth(2 ** TagWidth)) wanted (
      .clk, .step, .wr_valid(s_valid && s_ready), .wr_address(s_tag), .wr_data({s_entry, s_rest}),
      .address(resp.tag), .data({entry, rest})
  );

  assign step = !m_valid || m_ready;
  assign req  = '{valid: req_valid, line: req_line, tag: req_tag, resp_ready: step};

  always_ff @(posedge clk) begin
    if (step) begin
      {m_valid, valid}   <= {valid, resp.valid};
      tag                <= {tag[0], resp.tag};
      {entries, arrived} <= {arrived, resp.data[255:0]};
      m_tag              <= tag[1];
      m_entry            <= entries[entry];
      m_rest             <= rest;
    end
    if (rst) {m_valid, valid} <= '0;
  end
endmodule

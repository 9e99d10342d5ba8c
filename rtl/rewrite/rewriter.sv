// SPDX-License-Identifier: Apache-2.0
//
// Makes of a packet and its edit what leaves, as `model::rewrite::rewrite` does:
//
//   beats, edits -> stripper -> editor         -> joiner -> beats
//                            -> header builder ->
//
// An edit comes before or with its packet, in order. A packet for the host leaves as it came behind a beat of metadata, and
// `size` counts both; a dropped one doesn't leave.
// Latency: 11 cycles from a packet's first beat to its first one out, where nothing stalls and less than a beat is stripped.
// Throughput: 1 beat a cycle in or out, whichever are more, without gaps between packets.

module rewriter
  import viaduct_pkg::*;
(
    input  logic  clk,
    input  logic  rst,
    input  logic  s_valid,
    output logic  s_ready,
    input  beat_t s_beat,
    input  logic  edit_valid,
    output logic  edit_ready,
    input  edit_t edit,
    output logic  m_valid,
    input  logic  m_ready,
    output beat_t m_beat
);

  localparam int unsigned HeaderBytes = 84;
  // Of the editor and of the header builder.
  localparam int unsigned Latency = 5;

  wire unused = &{s_beat.port, s_beat.direct};

  logic taken_valid;
  logic taken_ready;
  logic taken_last;
  logic [15:0] taken_size;
  logic [BeatWidth-1:0] taken_data;
  skid #(
      .Width(1 + 16 + BeatWidth)
  ) skid_in (
      .clk,
      .rst,
      .s_valid,
      .s_ready,
      .s_data ({s_beat.last, s_beat.size, s_beat.data}),
      .m_valid(taken_valid),
      .m_ready(taken_ready),
      .m_data ({taken_last, taken_size, taken_data})
  );

  logic stripped_valid;
  logic enable;
  logic stripped_first;
  logic stripped_last;
  logic [BeatWidth-1:0] stripped_data;
  edit_t stripped_edit;
  stripper stripper (
      .clk,
      .rst,
      .s_valid(taken_valid),
      .s_ready(taken_ready),
      .s_last (taken_last),
      .s_size (taken_size),
      .s_data (taken_data),
      .edit_valid,
      .edit_ready,
      .edit,
      .m_valid(stripped_valid),
      .m_ready(enable),
      .m_first(stripped_first),
      .m_last (stripped_last),
      .m_data (stripped_data),
      .m_edit (stripped_edit)
  );

  // Editor and header builder move together, unless what they have ready is not taken.
  logic [Latency:1] valid;
  logic [Latency:1] first;
  logic [Latency:1] last;
  logic join_ready;
  assign enable = !valid[Latency] || join_ready;
  always_ff @(posedge clk) begin
    if (rst) valid <= '0;
    else if (enable) valid <= {valid[Latency-1:1], stripped_valid};
    if (enable) begin
      first <= {first[Latency-1:1], stripped_first};
      last  <= {last[Latency-1:1], stripped_last};
    end
  end

  logic [19:0] added;
  logic [BeatWidth-1:0] edited;
  editor editor (
      .clk,
      .enable,
      .first(stripped_valid && stripped_first),
      .data (stripped_data),
      .edit (stripped_edit),
      .added,
      .edited
  );

  port_id_t port;
  logic [15:0] size;
  logic [6:0] header_len;
  logic [8*HeaderBytes-1:0] header;
  header_builder #(
      .HeaderBytes(HeaderBytes)
  ) header_builder (
      .clk,
      .enable,
      .edit(stripped_edit),
      .added,
      .port,
      .size,
      .header_len,
      .header
  );

  logic  joined_valid;
  logic  joined_ready;
  beat_t joined;
  joiner #(
      .HeaderBytes(HeaderBytes)
  ) joiner (
      .clk,
      .rst,
      .s_valid(valid[Latency]),
      .s_ready(join_ready),
      .s_first(first[Latency]),
      .s_last(last[Latency]),
      .s_data(edited),
      .s_port(port),
      .s_size(size),
      .s_header_len(header_len),
      .s_header(header),
      .m_valid(joined_valid),
      .m_ready(joined_ready),
      .m_beat(joined)
  );

  skid #(
      .Width($bits(beat_t))
  ) skid_out (
      .clk,
      .rst,
      .s_valid(joined_valid),
      .s_ready(joined_ready),
      .s_data (joined),
      .m_valid,
      .m_ready,
      .m_data (m_beat)
  );

endmodule

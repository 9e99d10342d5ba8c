// SPDX-License-Identifier: Apache-2.0
//
// Takes bytes off a packet's front and drops what lies behind those that are kept; joins it with its edit. A packet that is
// dropped is swallowed; one that is punted stays as it is, and loses every other edit.
//
// A beat that leaves is made of two that came, so a beat waits for the next one of its packet; a packet's last one doesn't.
// Latency: 2 cycles, and until the next beat is there. Throughput: 1 beat a cycle in, without gaps between packets.

module stripper
  import registers_pkg::*;
  import viaduct_pkg::*;
(
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 s_valid,
    output logic                 s_ready,
    input  logic                 s_last,
    input  logic [         15:0] s_size,
    input  logic [BeatWidth-1:0] s_data,
    input  logic                 edit_valid,
    output logic                 edit_ready,
    input  edit_t                edit,
    output logic                 m_valid,
    input  logic                 m_ready,
    output logic                 m_first,
    output logic                 m_last,
    output logic [BeatWidth-1:0] m_data,
    output edit_t                m_edit
);

  typedef struct packed {
    logic                 last;  // of what came
    logic                 lead;  // nothing left before it
    logic [1:0]           skip;  // beats that go whole, this one included
    logic [15:0]          left;  // bytes to leave from this beat on
    edit_t                edit;
    logic [BeatWidth-1:0] data;  // rotated
  } stage_t;

  logic   first;
  logic   near_valid;
  logic   far_valid;
  // What came last, and what came before it.
  stage_t near;
  stage_t far;
  stage_t next;

  edit_t  fresh;
  always_comb begin
    fresh = edit;
    if (edit.punt) begin
      fresh.strip = '0;
      fresh.kept = s_size;
      fresh.ip = 1'b0;
      fresh.ethernet = 1'b0;
      fresh.encap = 1'b0;
    end
    if (edit.drop) fresh.kept = '0;
  end

  edit_t current;
  assign current = first ? fresh : near.edit;

  logic [BeatWidth-1:0] rotated;
  byte_rotate rotate (
      .data(s_data),
      .by(-current.strip[5:0]),
      .rotated
  );

  always_comb begin
    next.last = s_last;
    next.data = rotated;
    next.edit = current;
    if (first) begin
      next.lead = 1'b1;
      next.skip = fresh.strip[7:6];
      next.left = fresh.kept;
    end else begin
      next.lead = near.lead && near.skip != 0;
      next.skip = near.skip == 0 ? 2'd0 : near.skip - 2'd1;
      next.left = near.left;
      if (near.skip == 0) next.left = near.left > 16'd64 ? near.left - 16'd64 : 16'd0;
    end
  end

  // `far` leaves as soon as what fills it up is there.
  wire whole = far_valid && (far.last || near_valid);
  wire empty = far.skip != 0 || far.left == 0;
  wire far_free = !far_valid || (whole && (empty || m_ready));
  wire near_free = !near_valid || far_free;
  assign s_ready = near_free && (!first || edit_valid);
  assign edit_ready = near_free && first && s_valid;

  always_ff @(posedge clk) begin
    if (rst) begin
      first <= 1'b1;
      near_valid <= 1'b0;
      far_valid <= 1'b0;
    end else begin
      if (s_valid && s_ready) first <= s_last;
      if (near_free) near_valid <= s_valid && s_ready;
      if (far_free) far_valid <= near_valid;
    end
  end

  always_ff @(posedge clk) begin
    if (s_valid && s_ready) near <= next;
    if (far_free) far <= near;
  end

  assign m_valid = whole && !empty;
  assign m_first = far.lead;
  assign m_last = far.left <= 16'd64;
  assign m_edit = far.edit;
  always_comb begin
    for (int unsigned k = 0; k < BeatBytes; k++) begin
      m_data[8*k+:8] = k + 32'(far.edit.strip[5:0]) < BeatBytes ? far.data[8*k+:8] : near.data[8*k+:8];
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk) begin
    if (!rst && edit_valid && edit_ready && !edit.drop && !edit.punt) begin
      assert (edit.kept != 0 && 32'(edit.strip) + 32'(edit.kept) <= 32'(s_size))
      else $error("kept: %0d bytes behind %0d of %0d", edit.kept, edit.strip, s_size);
    end
  end
`endif

endmodule

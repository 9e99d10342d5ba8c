// SPDX-License-Identifier: Apache-2.0
//
// Direct-mapped cache of a memory's lines, and what lines are on their way. One look-up and one fill per cycle. A line is
// looked up in cycle 0, what is known of it stands in cycle 1, its bytes in cycle 2; who looked may change its place in cycle
// 1 (`claim`, `forget`), and later look-ups see that. Not ready for CacheLines cycles after reset.
//
// A place is being filled while the phase that its claim wrote differs from the phase that its last fill wrote: so either
// side writes a RAM of its own. A line that comes with an error is not kept: its place is vacant after the fill.
module cache #(
    parameter  int unsigned LineBytes  = 64,
    parameter  int unsigned LineWidth  = 24,                   // bits of a line's number
    parameter  int unsigned CacheLines = 512,                  // power of two
    parameter  int unsigned IdWidth    = 6,
    localparam int unsigned IndexWidth = $clog2(CacheLines),
    localparam int unsigned DataWidth  = 8 * LineBytes
) (
    input  logic                  clk,
    input  logic                  rst,
    output logic                  ready,
    // Cycle 0.
    input  logic                  look,
    input  logic [ LineWidth-1:0] look_line,
    // Cycle 1.
    output logic                  hit,
    output logic                  coming,      // it is on its way by the read `coming_id`
    output logic [   IdWidth-1:0] coming_id,
    output logic                  vacant,      // its place may be claimed
    output logic [IndexWidth-1:0] index,       // its place
    output logic                  phase,       // to be given with the fill that follows a claim
    input  logic                  claim,       // by the read `claim_id`
    input  logic [   IdWidth-1:0] claim_id,
    input  logic                  forget,      // the line is not cached any more, nor the bytes on their way
    // Cycle 2.
    output logic [ DataWidth-1:0] data,
    // Later.
    input  logic                  fill,
    input  logic [IndexWidth-1:0] fill_index,
    input  logic                  fill_phase,
    input  logic                  fill_bad,    // the bytes are invalid: the next look-up reads again
    input  logic [ DataWidth-1:0] fill_data
);
  if ((CacheLines & (CacheLines - 1)) != 0) $error("cache: CacheLines must be a power of two");
  localparam int unsigned NumberWidth = LineWidth - IndexWidth;

  typedef struct packed {
    logic                   used;
    logic                   phase;
    logic [IdWidth-1:0]     id;
    logic [NumberWidth-1:0] number;  // the line's upper bits
  } place_t;

  typedef struct packed {
    logic bad;
    logic phase;
  } filled_t;

  place_t               places      [CacheLines];
  filled_t              fills       [CacheLines];
  logic [DataWidth-1:0] lines       [CacheLines];

  place_t read_place, written_place, place, new_place;
  filled_t read_fill;
  logic place_written, filled, filled_bad, arrived, bad, same, change;
  logic [LineWidth-1:0] line;
  logic [IndexWidth:0] cleared;
  logic [IndexWidth-1:0] look_index;

  assign ready      = cleared[IndexWidth];
  assign look_index = look_line[IndexWidth-1:0];
  assign index      = line[IndexWidth-1:0];
  // What was written in the very cycle of the look-up has to be put in the place of what was read.
  assign place      = place_written ? written_place : read_place;
  assign arrived    = filled || place.phase == read_fill.phase;
  assign bad        = filled ? filled_bad : read_fill.bad;
  assign same       = place.used && place.number == line[LineWidth-1:IndexWidth] && !(arrived && bad);
  assign hit        = same && arrived;
  assign coming     = same && !arrived;
  assign coming_id  = place.id;
  assign vacant     = !same && arrived;
  assign phase      = !place.phase;
  assign change     = claim || forget;

  always_comb begin
    new_place = place;
    if (claim) new_place = '{used: 1'b1, phase: phase, id: claim_id, number: line[LineWidth-1:IndexWidth]};
    else new_place.used = 1'b0;
  end

  always_ff @(posedge clk) begin
    if (!ready) begin
      places[cleared[IndexWidth-1:0]] <= '0;
      fills[cleared[IndexWidth-1:0]] <= '0;
    end else begin
      if (change) places[index] <= new_place;
      if (fill) fills[fill_index] <= '{bad: fill_bad, phase: fill_phase};
    end
    if (fill) lines[fill_index] <= fill_data;
  end

  always_ff @(posedge clk) begin
    if (look) begin
      read_place      <= places[look_index];
      read_fill       <= fills[look_index];
      place_written   <= change && index == look_index;
      written_place   <= new_place;
      filled          <= fill && fill_index == look_index;
      filled_bad      <= fill_bad;
      line            <= look_line;
    end
    if (hit) data <= lines[index];
    if (rst) cleared <= '0;
    else if (!ready) cleared <= cleared + 1'b1;
  end
endmodule

// SPDX-License-Identifier: Apache-2.0
//
// The one's complement sum of a part of each packet: of what a tunnel carries, for the checksum in front of it.
//
// It listens only: beats wait here until the parser has said which bytes count, from an even place on (an odd last byte has a
// 0 behind it). Sums come in the packets' order. `ready`: the one of the oldest packet not taken is there, so all of the packet
// is; one that is taken before that gets none.
// Latency: 7 cycles from a packet's last beat, or from its part if that comes later. Throughput: 1 beat a cycle.

module payload_sum
  import viaduct_pkg::*;
#(
    parameter int unsigned Packets = 2048  // that may have come whole and not been taken
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 s_valid,
    input  logic                 s_last,
    input  logic [BeatWidth-1:0] s_data,
    // A packet's part, at the earliest with its last beat or its second one.
    input  logic                 part_valid,
    input  logic [          7:0] part_start,
    input  logic [         15:0] part_end,
    input  logic                 take,
    output logic                 ready,
    output logic [         15:0] sum
);

  localparam int unsigned Words = BeatBytes / 2;
  localparam int unsigned Groups = 8;
  // What comes while the parser looks at a packet's second beat.
  localparam int unsigned Waiting = 32;

  logic beat_valid;
  logic beat_last;
  logic beat_ready;
  logic beats_ready;
  logic [BeatWidth-1:0] beat;
  queue #(
      .Width(1 + BeatWidth),
      .Depth(Waiting)
  ) beats (
      .clk,
      .rst,
      .s_valid,
      .s_ready(beats_ready),
      .s_data ({s_last, s_data}),
      .m_valid(beat_valid),
      .m_ready(beat_ready),
      .m_data ({beat_last, beat}),
      .level  ()
  );

  logic known;
  logic parts_ready;
  logic [7:0] start;
  logic [15:0] stop;
  queue #(
      .Width(8 + 16),
      .Depth(4)
  ) parts (
      .clk,
      .rst,
      .s_valid(part_valid),
      .s_ready(parts_ready),
      .s_data ({part_start, part_end}),
      .m_valid(known),
      .m_ready(beat_valid && beat_last),
      .m_data ({start, stop}),
      .level  ()
  );
  assign beat_ready = known;

  // Stage 1: the bytes that count.
  logic begun;
  logic [7:0] skip;          // bytes that don't count, from this beat on
  logic [7:0] skip_rest;
  logic [15:0] left;         // bytes up to the end, likewise
  logic [15:0] left_rest;
  logic [BeatWidth-1:0] counting;
  always_comb begin
    skip = begun ? skip_rest : start;
    left = begun ? left_rest : stop;
    counting = '0;
    for (int unsigned k = 0; k < BeatBytes; k++) begin
      if (32'(skip) <= k && k < 32'(left)) counting[8*k+:8] = beat[8*k+:8];
    end
  end

  logic [4:1] valid;
  logic [4:1] first;
  logic [4:1] last;
  logic [BeatWidth-1:0] counting_q;
  always_ff @(posedge clk) begin
    if (rst) begin
      begun <= 1'b0;
      valid <= '0;
    end else begin
      if (beat_valid && beat_ready) begun <= !beat_last;
      valid <= {valid[3:1], beat_valid && beat_ready};
    end
  end
  always_ff @(posedge clk) begin
    if (beat_valid && beat_ready) begin
      skip_rest <= skip > 8'd64 ? skip - 8'd64 : 8'd0;
      left_rest <= left > 16'd64 ? left - 16'd64 : 16'd0;
    end
    counting_q <= counting;
    first <= {first[3:1], !begun};
    last  <= {last[3:1], beat_last};
  end

  // Stages 2 and 3: the sum of a beat.
  logic [Groups-1:0][17:0] groups;
  logic [Groups-1:0][17:0] groups_q;
  logic [20:0] total;
  logic [20:0] total_q;
  always_comb begin
    groups = '0;
    for (int unsigned k = 0; k < Words; k++) begin
      groups[k%Groups] += 18'({counting_q[16*k+:8], counting_q[16*k+8+:8]});
    end
    total = '0;
    for (int unsigned k = 0; k < Groups; k++) total += 21'(groups_q[k]);
  end
  always_ff @(posedge clk) begin
    groups_q <= groups;
    total_q  <= total;
  end

  // Stage 4: of a packet; 65535 bytes need 31 bits.
  logic [31:0] whole;
  always_ff @(posedge clk) if (valid[3]) whole <= (first[3] ? 32'd0 : whole) + 32'(total_q);

  logic [16:0] once;
  logic sum_valid;
  logic sums_ready;
  assign once = 17'(whole[31:16]) + 17'(whole[15:0]);

  // How many packets were taken before their sum was there, which is not wanted any more.
  logic [$clog2(Packets):0] unwanted;
  wire discard = sum_valid && unwanted != 0;
  assign ready = sum_valid && unwanted == 0;
  always_ff @(posedge clk) begin
    if (rst) unwanted <= '0;
    else unwanted <= unwanted + ($clog2(Packets) + 1)'(take && !ready) - ($clog2(Packets) + 1)'(discard);
  end

  fifo #(
      .Width(16),
      .Depth(Packets)
  ) sums (
      .clk,
      .rst,
      .s_valid(valid[4] && last[4]),
      .s_ready(sums_ready),
      .s_data(once[15:0] + 16'(once[16])),
      .m_valid(sum_valid),
      .m_ready(take || discard),
      .m_data(sum),
      .level(),
      .almost_full()
  );

`ifndef SYNTHESIS
  always_ff @(posedge clk) begin
    if (!rst) begin
      assert (!(s_valid && !beats_ready)) else $error("more beats than may wait");
      assert (!(part_valid && !parts_ready)) else $error("more parts than may wait");
      assert (!(valid[4] && last[4] && !sums_ready)) else $error("more packets than may wait");
      assert (!(part_valid && part_start[0])) else $error("a part begins at an odd place");
    end
  end
`else
  wire unused = &{beats_ready, parts_ready, sums_ready};
`endif

endmodule

// SPDX-License-Identifier: Apache-2.0
//
// For tests of the simulation itself: a port of every kind, and the ways in which a simulation ends.
// Latency: 1 cycle, `mirror` none. Throughput: 1 transfer a cycle.

module probe (
    input  logic             clk,
    input  logic             rst,
    // 0 nothing, 1 a failing assertion, 2 $fatal, 3 $stop, 4 $finish, 5 $display
    input  logic [2:0]       deed,
    input  logic             flag,
    input  logic [8:0]       short_word,
    input  logic [16:0]      word,
    input  logic [1:0][32:0] pair,
    input  logic [39:0]      long_word,
    output logic             flag_q,
    output logic [8:0]       short_word_q,
    output logic [16:0]      word_q,
    output logic [1:0][32:0] pair_q,
    output logic [39:0]      long_word_q,
    output logic [65:0]      mirror
);

  assign mirror = ~pair;

  always_ff @(posedge clk) begin
    flag_q       <= flag && !rst;
    short_word_q <= short_word;
    word_q       <= word;
    pair_q       <= pair;
    long_word_q  <= long_word;
  end

  always_ff @(posedge clk) begin
    case (deed)
      3'd0: ;
      3'd1: assert (!flag) else $error("the flag is %b", flag);
      3'd2: $fatal(1, "fatal word %0d", word);
      3'd3: $stop;
      3'd4: $finish;
      default: $display("word %0d", word);
    endcase
  end

endmodule

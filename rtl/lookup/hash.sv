// SPDX-License-Identifier: Apache-2.0
//
// Keyed hash of the tables with two choices: key and secret exclusive-ored, then the last four rounds of the Ascon
// permutation (NIST SP 800-232); `m_a` and `m_b` are the halves of its first word. Not linear, so that who doesn't know
// the secret can't make keys collide. Latency 4 cycles, throughput 1 key per cycle; never stalls.
module hash #(
    parameter int unsigned ContextWidth = 10
) (
    input  logic                    clk,
    input  logic                    rst,
    input  logic                    s_valid,
    input  logic [           319:0] s_key,      // word i in bits [64i +: 64]
    input  logic [           319:0] secret,
    input  logic [ContextWidth-1:0] s_context,
    output logic                    m_valid,
    output logic [            31:0] m_a,        // the two choices; as many of the lowest bits as are needed
    output logic [            31:0] m_b,
    output logic [ContextWidth-1:0] m_context
);
  localparam int unsigned Rounds = 4;

  function automatic logic [63:0] spread(input logic [63:0] x, input logic [6:0] i, input logic [6:0] j);
    logic [127:0] twice;
    twice = {x, x};
    return x ^ twice[i+:64] ^ twice[j+:64];
  endfunction

  // A round on the words in `state`: constant, substitution of 64 columns of five bits, diffusion within words.
  function automatic logic [319:0] round(input logic [319:0] state, input logic [7:0] constant);
    logic [63:0] x0, x1, x2, x3, x4, t0, t1, t2, t3, t4;
    {x4, x3, x2, x1, x0} = state;
    x2 = x2 ^ {56'd0, constant};
    x0 = x0 ^ x4;
    x4 = x4 ^ x3;
    x2 = x2 ^ x1;
    t0 = x0 ^ (~x1 & x2);
    t1 = x1 ^ (~x2 & x3);
    t2 = x2 ^ (~x3 & x4);
    t3 = x3 ^ (~x4 & x0);
    t4 = x4 ^ (~x0 & x1);
    x1 = t1 ^ t0;
    x0 = t0 ^ t4;
    x3 = t3 ^ t2;
    x2 = ~t2;
    x4 = t4;
    return {spread(x4, 7, 41), spread(x3, 10, 17), spread(x2, 1, 6), spread(x1, 61, 39), spread(x0, 19, 28)};
  endfunction

  logic [Rounds-1:0] valid;
  logic [319:0] state[Rounds];
  logic [ContextWidth-1:0] contexts[Rounds];

  always_ff @(posedge clk) begin
    valid <= rst ? '0 : {valid[Rounds-2:0], s_valid};
    if (s_valid) state[0] <= round(s_key ^ secret, 8'h78);
    if (valid[0]) state[1] <= round(state[0], 8'h69);
    if (valid[1]) state[2] <= round(state[1], 8'h5a);
    if (valid[2]) state[3] <= round(state[2], 8'h4b);
    contexts[0] <= s_context;
    for (int unsigned i = 1; i < Rounds; i++) contexts[i] <= contexts[i-1];
  end

  assign m_valid = valid[Rounds-1];
  assign {m_b, m_a} = state[Rounds-1][63:0];
  assign m_context = contexts[Rounds-1];
endmodule

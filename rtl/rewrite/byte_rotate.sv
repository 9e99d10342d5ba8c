// SPDX-License-Identifier: Apache-2.0
//
// Rotates the bytes of a beat upwards: byte k goes to byte k + by, modulo 64.
// Latency: 0 (combinational, three levels of four-to-one). Throughput: 1 beat a cycle.

module byte_rotate
  import viaduct_pkg::*;
(
    input  logic [BeatWidth-1:0] data,
    input  logic [          5:0] by,
    output logic [BeatWidth-1:0] rotated
);

  logic [BeatWidth-1:0] ones;
  logic [BeatWidth-1:0] fours;

  always_comb begin
    ones = '0;
    fours = '0;
    rotated = '0;
    for (int unsigned n = 0; n < 4; n++) begin
      if (by[1:0] == 2'(n)) ones = (data << 8 * n) | (data >> (BeatWidth - 8 * n));
    end
    for (int unsigned n = 0; n < 4; n++) begin
      if (by[3:2] == 2'(n)) fours = (ones << 32 * n) | (ones >> (BeatWidth - 32 * n));
    end
    for (int unsigned n = 0; n < 4; n++) begin
      if (by[5:4] == 2'(n)) rotated = (fours << 128 * n) | (fours >> (BeatWidth - 128 * n));
    end
  end

endmodule

// SPDX-License-Identifier: Apache-2.0
//
// The entropy hash of a tenant's packet, as `model::entropy_of`: CRC-32C over 37 bytes (addresses, IPv4 ones as
// ::ffff:a.b.c.d; protocol; ports), or over 14 (MACs and EtherType) of what isn't IP. A CRC is linear: each bit is an
// exclusive or of some of the message's bits.
// Latency: 2 cycles with `step`. Throughput: 1 packet a cycle.

module entropy
  import viaduct_pkg::*;
(
    input  logic         clk,
    input  logic         step,
    input  logic         ip,
    input  logic         v6,
    input  logic         fragment,
    input  logic [127:0] src,
    input  logic [127:0] dst,
    input  logic [  7:0] protocol,
    input  l4_e          l4,
    input  logic [ 15:0] sport,
    input  logic [ 15:0] dport,
    input  logic [ 47:0] mac_src,
    input  logic [ 47:0] mac_dst,
    input  logic [ 15:0] ethertype,
    output logic [ 31:0] hash
);

  localparam int unsigned Bytes = 37;
  localparam int unsigned Bits = 8 * Bytes;
  localparam int unsigned Parts = 4;
  localparam int unsigned PartBits = Bits / Parts;
  localparam logic [31:0] Polynomial = 32'h82f6_3b78;  // reflected
  localparam logic [15:0] PortRoce = 16'd4791;

  // Row b: the bits of the message that count for bit b of the CRC. What a bit does to the CRC is what the bit behind it
  // does, one step later.
  function automatic logic [31:0][Bits-1:0] matrix();
    logic [31:0] effect;
    effect = Polynomial;
    for (int i = int'(Bits) - 1; i >= 0; i--) begin
      for (int b = 0; b < 32; b++) matrix[b][i] = effect[b];
      effect = effect[0] ? (effect >> 1) ^ Polynomial : effect >> 1;
    end
  endfunction
  localparam logic [31:0][Bits-1:0] Matrix = matrix();

  function automatic logic [127:0] mapped(input logic [127:0] address);
    return v6 ? address : {80'd0, 16'hffff, address[31:0]};
  endfunction

  // Not all packets of a flow have the ports: fragments. RoCEv2's flows are address pairs.
  logic [31:0] ports;
  always_comb begin
    ports = {sport, dport};
    if (fragment) ports = '0;
    else if (l4 == L4Udp && dport == PortRoce) ports[31:16] = '0;
  end

  // The message in the order of the wire. Zeros in front change nothing, and the CRC's initial ones are those of the first four
  // bytes inverted.
  logic [Bits-1:0] in_order;
  logic [Bits-1:0] message;
  always_comb begin
    if (ip) begin
      in_order = {mapped(src), mapped(dst), protocol, ports};
      in_order[Bits-1-:32] = ~in_order[Bits-1-:32];
    end else begin
      in_order = Bits'({mac_src, mac_dst, ethertype});
      in_order[111-:32] = ~in_order[111-:32];
    end
    for (int unsigned k = 0; k < Bytes; k++) message[8*k+:8] = in_order[Bits-1-8*k-:8];
  end

  logic [31:0][Parts-1:0] parts;
  always_ff @(posedge clk) begin
    if (step) begin
      for (int unsigned b = 0; b < 32; b++) begin
        for (int unsigned p = 0; p < Parts; p++) begin
          parts[b][p] <= ^(message[PartBits*p+:PartBits] & Matrix[b][PartBits*p+:PartBits]);
        end
        hash[b] <= !(^parts[b]);
      end
    end
  end

endmodule

// SPDX-License-Identifier: Apache-2.0
// The Ethernet header with up to two VLAN tags; what has none (`has_ethernet`) passes.
//
// Latency: 1 clock. Throughput: one packet per clock.
module parse_ethernet
  import registers_pkg::*;
  import viaduct_pkg::*;
  import parse_pkg::*;
(
    input  logic   clk,
    input  logic   rst,
    input  logic   s_valid,
    input  parse_t s,
    output logic   m_valid,
    output parse_t m
);

  function automatic logic is_tag(input logic [15:0] ethertype);
    return ethertype == EthertypeVlan || ethertype == EthertypeQinq;
  endfunction

  logic [15:0] types[3];
  logic tag[3];
  logic too_many;
  logic [1:0] tags;
  logic [4:0] length;
  logic [4:0] needed;
  punt_e found;
  parse_t next;

  always_comb begin
    for (int k = 0; k < 3; k++) begin
      types[k] = s.window[Top-8*(12+4*k)-:16];
      tag[k]   = is_tag(types[k]);
    end
    too_many = tag[0] && tag[1] && tag[2];
    tags = !tag[0] ? 2'd0 : !tag[1] ? 2'd1 : 2'd2;
    length = 5'd14 + {1'b0, tags, 2'b0};
    // The third tag is one too many only if it is there.
    needed = too_many ? 5'd26 : length;
    if (s.header.exception != PuntNone) found = s.header.exception;
    else if (s.left < 16'(needed)) found = PuntEthernetTruncated;
    else if (too_many) found = PuntTooManyTags;
    else found = PuntNone;
  end

  always_comb begin
    next = s;
    if (s.header.has_ethernet) begin
      next.header.exception = found;
      next.header.mac_dst = s.window[Top-:48];
      next.header.mac_src = s.window[Top-8*6-:48];
      next.header.tags = tags;
      next.header.priority_tag = types[0] == EthertypeVlan && s.window[Top-8*14-4-:12] == '0;
      next.header.ethertype = types[tags];
      next.header.neighbour = types[tags] == EthertypeArp;
      next.header.l3_at = s.at + 8'(length);
      next.at = s.at + 8'(length);
      next.left = s.left - 16'(length);
      case (tags)
        2'd0: next.window = s.window << 8 * 14;
        2'd1: next.window = s.window << 8 * 18;
        default: next.window = s.window << 8 * 22;
      endcase
    end
  end

  always_ff @(posedge clk) begin
    m <= next;
    m_valid <= s_valid && !rst;
  end

endmodule

// SPDX-License-Identifier: Apache-2.0
// TCP, UDP, SCTP, ICMP and ICMPv6; other packets pass.
//
// Of a TCP header the first 20 bytes must be in the window, its options only in the packet. A first fragment's header is
// checked as any other, but nothing is told of it. The window stays where it is.
// Latency: 1 clock. Throughput: one packet per clock.
module parse_l4
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

  l4_e l4;
  logic [4:0] fixed_len;

  always_comb begin
    l4 = L4Other;
    if (s.header.ip && !s.later) begin
      case (s.header.protocol)
        ProtocolTcp: l4 = L4Tcp;
        ProtocolUdp: l4 = L4Udp;
        ProtocolSctp: l4 = L4Sctp;
        ProtocolIcmp: if (!s.header.v6) l4 = L4Icmp;
        ProtocolIcmpv6: if (s.header.v6) l4 = L4Icmp;
        default: ;
      endcase
    end
    case (l4)
      L4Tcp: fixed_len = 5'd20;
      L4Udp, L4Icmp: fixed_len = 5'd8;
      L4Sctp: fixed_len = 5'd12;
      default: fixed_len = 5'd0;
    endcase
  end

  logic [5:0] tcp_len;
  logic [15:0] udp_len;
  logic [7:0] kind;  // of ICMP
  logic echo;
  punt_e short_of;
  punt_e found;

  always_comb begin
    tcp_len = {s.window[Top-8*12-:4], 2'b0};
    udp_len = s.window[Top-8*4-:16];
    kind = s.window[Top-:8];
    echo = s.header.v6 ? kind == 8'd128 || kind == 8'd129 : kind == 8'd0 || kind == 8'd8;
    short_of = s.header.fragment ? PuntFragment : PuntL4Malformed;
    if (s.header.exception != PuntNone) found = s.header.exception;
    else if (s.left < 16'(fixed_len)) found = short_of;
    else if (s.at > 8'(WindowBytes) - 8'(fixed_len)) found = PuntHeaderTooLong;
    else if (l4 == L4Tcp && tcp_len < 6'd20) found = PuntL4Malformed;
    else if (l4 == L4Tcp && 16'(tcp_len) > s.left) found = short_of;
    // The length of a first fragment is that of the whole datagram.
    else if (l4 == L4Udp && (udp_len < 16'd8 || (!s.header.fragment && udp_len > s.left))) found = PuntL4Malformed;
    else found = PuntNone;
  end

  parse_t next;

  always_comb begin
    next = s;
    next.header.exception = found;
    if (!s.header.fragment) begin
      next.header.l4 = l4;
      case (l4)
        L4Tcp, L4Udp, L4Sctp: {next.header.sport, next.header.dport} = s.window[Top-:32];
        L4Icmp: if (echo) {next.header.sport, next.header.dport} = {2{s.window[Top-8*4-:16]}};
        default: ;
      endcase
      if (l4 == L4Tcp) next.header.tcp_flags = s.window[Top-8*13-:8];
      next.header.icmp_echo = l4 == L4Icmp && echo;
      // Router and neighbour solicitation and advertisement, redirect.
      if (l4 == L4Icmp && s.header.v6 && kind >= 8'd133 && kind <= 8'd137) next.header.neighbour = 1'b1;
    end
  end

  always_ff @(posedge clk) begin
    m <= next;
    m_valid <= s_valid && !rst;
  end

endmodule

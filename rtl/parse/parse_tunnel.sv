// SPDX-License-Identifier: Apache-2.0
// From the L4 header of what came by a wire to the tenant's packet: MPLS over UDP (RFC 7510), MPLS over GRE (RFC 4023) and
// VXLAN (RFC 7348).
//
// Stricter than `packet`: a GRE checksum, key or sequence number is `tunnel_malformed`; an explicit null above another
// label, as any second label, is `label_stack`.
// Latency: 1 clock. Throughput: one packet per clock.
module parse_tunnel
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

  // All bits of GRE but those that a receiver ignores (RFC 2784).
  localparam logic [15:0] GreRefused = 16'hfc07;

  logic vxlan;
  logic mpls_udp;
  logic gre;
  logic [4:0] length;     // of all headers up to the tenant's packet
  logic [15:0] left;      // to the end of the UDP datagram, or of the IP packet around GRE
  logic [19:0] label;
  logic bottom;           // of the label stack
  logic [7:0] label_ttl;
  logic [3:0] version;    // of the IP header behind it
  logic has_version;      // there is a byte to read it from

  always_comb begin
    vxlan = s.header.l4 == L4Udp && s.header.dport == PortVxlan;
    mpls_udp = s.header.l4 == L4Udp && s.header.dport == PortMpls;
    gre = s.header.ip && !s.header.fragment && s.header.protocol == ProtocolGre;
    length = vxlan ? 5'd16 : gre ? 5'd8 : 5'd12;
    left = gre ? s.left : s.window[Top-8*4-:16];
    label = gre ? s.window[Top-8*4-:20] : s.window[Top-8*8-:20];
    bottom = gre ? s.window[Top-8*6-7] : s.window[Top-8*10-7];
    label_ttl = gre ? s.window[Top-8*7-:8] : s.window[Top-8*11-:8];
    version = gre ? s.window[Top-8*8-:4] : s.window[Top-8*12-:4];
    has_version = s.header.size > 16'(s.at) + 16'(length);
  end

  logic outer_fragment;
  logic gre_other;
  logic gre_refused;
  logic vxlan_refused;
  logic lacks_checksum;
  punt_e outer;  // what is wrong outside
  punt_e stack;  // with the label stack
  punt_e found;

  always_comb begin
    outer_fragment = s.header.fragment && (s.header.protocol == ProtocolUdp || s.header.protocol == ProtocolGre);
    gre_other = gre && s.window[Top-8*2-:16] != EthertypeMpls;
    gre_refused = gre && (s.window[Top-:16] & GreRefused) != 0;
    vxlan_refused = vxlan && !s.window[Top-8*8-4];
    lacks_checksum = s.header.v6 && !gre && s.window[Top-8*6-:16] == 0;
    if (s.header.exception != PuntNone) outer = s.header.exception;
    else if (s.header.neighbour) outer = PuntNeighbour;
    else if (s.header.tags != 0) outer = PuntNotForUs;
    else if (outer_fragment) outer = PuntOuterFragment;
    else if (!vxlan && !mpls_udp && !gre) outer = PuntNotForUs;
    else if (gre && left < 16'd4) outer = PuntTunnelMalformed;
    else if (gre_other) outer = PuntNotForUs;
    else if (gre_refused || left < 16'(length) || vxlan_refused) outer = PuntTunnelMalformed;
    else outer = PuntNone;
    if (vxlan) stack = PuntNone;
    else if (!bottom) stack = PuntLabelStack;
    else if (label_ttl == 0) stack = PuntTtl;
    else if (!has_version || !(version inside {4'd4, 4'd6})) stack = PuntTunnelPayload;
    else stack = PuntNone;
    if (outer != PuntNone) found = outer;
    else if (stack != PuntNone) found = stack;
    else found = lacks_checksum ? PuntOuterChecksumMissing : PuntNone;
  end

  parse_t next;

  always_comb begin
    next = s;
    next.header = '0;
    next.header.exception = found;
    next.header.port = s.header.port;
    next.header.size = s.header.size;
    next.header.outer_mac = s.header.mac_dst;
    next.header.tunnelled = 1'b1;
    next.header.tunnel = vxlan ? TunnelVxlan : gre ? TunnelMplsGre : TunnelMplsUdp;
    next.header.id = vxlan ? s.window[Top-8*12-:24] : 24'(label);
    next.header.label_ttl = vxlan ? s.header.ttl : label_ttl;
    next.header.outer_v6 = s.header.v6;
    next.header.outer_src = s.header.src;
    next.header.outer_dst = s.header.dst;
    next.header.start = s.at + 8'(length);
    next.header.stop = 16'(s.at) + left;
    next.header.has_ethernet = vxlan;
    next.header.ethertype = version == 4'd6 ? EthertypeIpv6 : EthertypeIpv4;
    next.header.l3_at = s.at + 8'(length);
    next.outer_tos = s.header.tos;
    next.at = s.at + 8'(length);
    next.left = left - 16'(length);
    next.window = vxlan ? s.window << 8 * 16 : gre ? s.window << 8 * 8 : s.window << 8 * 12;
  end

  always_ff @(posedge clk) begin
    m <= next;
    m_valid <= s_valid && !rst;
  end

endmodule

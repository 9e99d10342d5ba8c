// SPDX-License-Identifier: Apache-2.0
//
// Builds what goes in front of a packet: a tunnel's headers (outer Ethernet, IP, UDP or GRE, MPLS or VXLAN) and a new Ethernet
// header behind them; or, to the host, a beat of metadata. IPv4 with Don't Fragment and no UDP checksum (RFC 7348, RFC 7510),
// IPv6 with one (RFC 8200, 8.1), made of sums: the edit's, of what is constant and of the payload as it came; of lengths,
// source port and new Ethernet header, added here; and of what the editor changes.
// Latency: 5 enabled cycles. Throughput: 1 beat an enabled cycle; a packet's beats all come with its edit.

module header_builder
  import registers_pkg::*;
  import viaduct_pkg::*;
#(
    parameter int unsigned HeaderBytes = 84
) (
    input  logic                     clk,
    input  logic                     enable,
    // The editor has the rest.
    /* verilator lint_off UNUSEDSIGNAL */
    input  edit_t                    edit,
    /* verilator lint_on UNUSEDSIGNAL */
    // By the editor to the sum of what is kept, 3 enabled cycles behind the edit.
    input  logic [             19:0] added,
    output port_id_t                 port,
    output logic [             15:0] size,       // with the header
    output logic [              6:0] header_len,
    output logic [8*HeaderBytes-1:0] header      // its first byte lowest
);

  // TTL of outer IP headers and of labels: the tunnel is one hop to those inside (RFC 3443, pipe).
  localparam logic [7:0] Ttl = 8'd64;
  localparam logic [7:0] ProtocolUdp = 8'd17;
  localparam logic [7:0] ProtocolGre = 8'd47;
  localparam logic [15:0] EthertypeIpv4 = 16'h0800;
  localparam logic [15:0] EthertypeIpv6 = 16'h86dd;
  localparam logic [15:0] EthertypeMpls = 16'h8847;
  localparam logic [15:0] PortMpls = 16'd6635;
  localparam logic [15:0] PortVxlan = 16'd4789;

  localparam int unsigned EthernetLen = 14;
  localparam int unsigned Ipv4Len = 20;
  localparam int unsigned Ipv6Len = 40;
  localparam int unsigned TransportLen = 16;  // the longest: UDP and VXLAN
  localparam int unsigned OuterLen = EthernetLen + Ipv6Len + TransportLen;
  localparam int unsigned Width = 8 * HeaderBytes;

  // UDP or GRE, with MPLS or VXLAN.
  function automatic logic [6:0] transport_len(input tunnel_e kind);
    unique case (kind)
      TunnelMplsUdp: return 7'd12;
      TunnelMplsGre: return 7'd8;
      default: return 7'd16;
    endcase
  endfunction

  function automatic logic [7:0] protocol(input tunnel_e kind);
    return kind == TunnelMplsGre ? ProtocolGre : ProtocolUdp;
  endfunction

  function automatic logic [15:0] fold(input logic [20:0] sum);
    logic [16:0] once;
    once = 17'(sum[15:0]) + 17'(sum[20:16]);
    return once[15:0] + 16'(once[16]);
  endfunction

  // The tunnel's source port: of the dynamic ones.
  function automatic logic [15:0] source_port(input logic [31:0] hash);
    return {2'b11, hash[13:0]};
  endfunction

  // The sum of a new Ethernet header.
  function automatic logic [20:0] ethernet_sum(input logic [47:0] dst, input logic [15:0] kind);
    return 21'(dst[47:32]) + 21'(dst[31:16]) + 21'(dst[15:0]) + 21'(kind) +
        21'(fold(21'(GatewayMac[47:32]) + 21'(GatewayMac[31:16]) + 21'(GatewayMac[15:0])));
  endfunction

  // The length of the tunnel's headers.
  function automatic logic [6:0] outer_len(input logic six, input tunnel_e kind);
    return 7'(EthernetLen) + (six ? 7'(Ipv6Len) : 7'(Ipv4Len)) + transport_len(kind);
  endfunction

  edit_t [4:1] stage;
  always_ff @(posedge clk) if (enable) stage <= {stage[3:1], edit};

  // Stage 2: the payload of a tunnel, the sum of the outer IPv4 header without its length, and what UDP sums without lengths.
  logic [15:0] payload_2;
  logic [19:0] sum_2;
  logic [20:0] udp_sum_2;
  always_ff @(posedge clk) begin
    if (enable) begin
      payload_2 <= stage[1].kept + (stage[1].ethernet ? 16'(EthernetLen) : 16'd0);
      sum_2 <= 20'({8'h45, stage[1].outer_tos}) + 20'h4000 + 20'({Ttl, protocol(stage[1].tunnel)}) +
          20'(stage[1].outer_src[31:16]) + 20'(stage[1].outer_src[15:0]) +
          20'(stage[1].outer_dst[31:16]) + 20'(stage[1].outer_dst[15:0]);
      udp_sum_2 <= 21'(stage[1].checksum) + 21'(source_port(stage[1].entropy)) +
          (stage[1].ethernet ? ethernet_sum(stage[1].mac, stage[1].ethertype) : 21'd0);
    end
  end

  // Stage 3: lengths.
  logic [15:0] datagram_3;  // UDP's length, IPv6's payload length
  logic [15:0] ipv4_3;
  logic [ 6:0] outer_3;
  logic [19:0] sum_3;
  logic [20:0] udp_sum_3;
  always_ff @(posedge clk) begin
    if (enable) begin
      datagram_3 <= payload_2 + 16'(transport_len(stage[2].tunnel));
      ipv4_3 <= payload_2 + 16'(transport_len(stage[2].tunnel)) + 16'(Ipv4Len);
      outer_3 <= stage[2].encap ? outer_len(stage[2].outer_v6, stage[2].tunnel) : 7'd0;
      sum_3 <= sum_2;
      // The length is in the pseudo-header and in the UDP header.
      udp_sum_3 <= udp_sum_2 + {4'd0, payload_2 + 16'(transport_len(stage[2].tunnel)), 1'b0};
    end
  end

  // Stage 4: the checksum of the outer IPv4 header, the sum of UDP over IPv6, and the length of everything.
  logic [15:0] checksum_4;
  logic [15:0] udp_sum_4;
  logic [15:0] datagram_4;
  logic [15:0] ipv4_4;
  logic [ 6:0] outer_4;
  logic [ 6:0] len_4;
  always_ff @(posedge clk) begin
    if (enable) begin
      checksum_4 <= ~fold(21'(sum_3) + 21'(ipv4_3));
      udp_sum_4 <= fold(udp_sum_3 + 21'(added));
      datagram_4 <= datagram_3;
      ipv4_4 <= ipv4_3;
      outer_4 <= outer_3;
      len_4 <= stage[3].punt ? 7'(BeatBytes) : outer_3 + (stage[3].ethernet ? 7'(EthernetLen) : 7'd0);
    end
  end

  // Stage 5: the bytes, in the order of the wire: the first one highest.
  /* verilator lint_off UNUSEDSIGNAL */
  edit_t last;
  /* verilator lint_on UNUSEDSIGNAL */
  assign last = stage[4];
  // A checksum that is 0 is sent as ffff.
  wire [15:0] udp_checksum = !last.outer_v6 ? '0 : udp_sum_4 == '1 ? '1 : ~udp_sum_4;
  wire [63:0] udp = {
    source_port(last.entropy), last.tunnel == TunnelVxlan ? PortVxlan : PortMpls, datagram_4, udp_checksum
  };
  wire [31:0] mpls = {last.id[19:0], 3'd0, 1'b1, Ttl};
  wire [159:0] ipv4 = {
    8'h45, last.outer_tos, ipv4_4, 32'h0000_4000, Ttl, protocol(last.tunnel), checksum_4,
    last.outer_src[31:0], last.outer_dst[31:0]
  };
  wire [319:0] ipv6 = {
    4'd6, last.outer_tos, last.entropy[19:0], datagram_4, protocol(last.tunnel), Ttl, last.outer_src,
    last.outer_dst
  };
  wire [111:0] outer_ethernet = {
    last.outer_dst_mac, last.outer_src_mac, last.outer_v6 ? EthertypeIpv6 : EthertypeIpv4
  };
  wire [111:0] ethernet = {last.mac, GatewayMac, last.ethertype};

  logic [127:0] transport;
  logic [8*OuterLen-1:0] outer;
  logic [Width-1:0] in_order;
  logic [Width-1:0] bytes;
  always_comb begin
    unique case (last.tunnel)
      TunnelMplsUdp: transport = {udp, mpls, 32'd0};
      TunnelMplsGre: transport = {16'd0, EthertypeMpls, mpls, 64'd0};
      default: transport = {udp, 32'h0800_0000, last.id, 8'd0};
    endcase
    outer = last.outer_v6 ? {outer_ethernet, ipv6, transport} : {outer_ethernet, ipv4, transport, 160'd0};
    in_order = last.encap ? {outer, (Width - 8 * OuterLen)'(0)} : '0;
    for (int unsigned at = 0; at <= OuterLen; at++) begin
      // The lengths that there are.
      if (at inside {0, 42, 46, 50, 62, 66, 70} && outer_4 == 7'(at) && last.ethernet) begin
        in_order[Width-1-8*at-:112] = ethernet;
      end
    end
    for (int unsigned k = 0; k < HeaderBytes; k++) bytes[8*k+:8] = in_order[Width-1-8*k-:8];
    if (last.punt) bytes = Width'(last.meta);
  end

  always_ff @(posedge clk) begin
    if (enable) begin
      header <= bytes;
      header_len <= len_4;
      size <= last.kept + 16'(len_4);
      port <= last.port;
    end
  end

endmodule

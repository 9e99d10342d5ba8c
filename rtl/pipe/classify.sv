// SPDX-License-Identifier: Apache-2.0
// Says which network a packet is in, how it finds its nexthop, and whether its sender may send it: what can be said
// without the tables in memory. Reads those on chip: port, label, VNI, remote, VRF.
//
// 5 clocks from `s` to `m`, one packet per clock; stands still while `m` is not taken.
module classify
  import registers_pkg::*;
  import viaduct_pkg::*;
  import pipe_pkg::*;
#(
    parameter bit          Wire     = 1'b0,  // packets come from wires, in tunnels; else from guests
    parameter int unsigned Ports    = 1024,
    parameter int unsigned Vrfs     = 4096,
    parameter int unsigned Labels   = 65536,
    parameter int unsigned Nexthops = 16384  // on chip
) (
    input  logic                clk,
    input  logic                rst,
    input  logic                enable,      // 0: all packets go to the host
    input  write_t              write,       // those of the tables that it reads are its
    input  logic                s_valid,
    output logic                s_ready,
    input  header_t             s_header,
    input  logic [31:0]         s_entropy,
    output logic                m_valid,
    input  logic                m_ready,
    output header_t             m_header,
    output context_t            m_context,
    output marks_t              m_marks,
    output lookup_t             m_lookup     // but for its tag
);

  logic step;
  assign step    = !m_valid || m_ready;
  assign s_ready = step;

  // ---- Clocks 1 and 2: the port, the label or the VNI

  header_t header1, header2, header3, header4;
  logic    valid1, valid2, valid3, valid4;
  logic [31:0] entropy1, entropy2, entropy3, entropy4;
  port_t   port2, port3, port4;
  label_t  label2, label3, label4;
  logic    label_near2, label_near3, label_near4;
  vni_t [1:0] vni2;
  logic    vni_found3, vni_found4;
  vrf_id_t vrf3, vrf4;
  remote_t [1:0] remote2;
  logic    remote_known3, remote_known4;

  table_ram #(.Width(PortWidth), .Depth(Ports)) ports (
      .clk, .step,
      .wr_valid(write.valid && write.into == TablePort), .wr_address(write.address[$clog2(Ports)-1:0]),
      .wr_data(write.data[PortWidth-1:0]),
      .address(s_header.port[$clog2(Ports)-1:0]), .data(port2)
  );

  if (Wire) begin : g_tunnels
    table_ram #(.Width(LabelWidth), .Depth(Labels)) labels (
        .clk, .step,
        .wr_valid(write.valid && write.into == TableLabel), .wr_address(write.address[$clog2(Labels)-1:0]),
        .wr_data(write.data[LabelWidth-1:0]),
        .address(s_header.id[$clog2(Labels)-1:0]), .data(label2)
    );
    for (genvar way = 0; way < 2; way++) begin : g_vni
      logic [11:0] hash;
      assign hash = way == 0 ? s_header.id[11:0] : s_header.id[11:0] ^ s_header.id[23:12];
      table_ram #(.Width(VniWidth), .Depth(4096)) vnis (
          .clk, .step,
          .wr_valid(write.valid && write.into == TableVni && write.address[15:12] == 4'(way)),
          .wr_address(write.address[11:0]), .wr_data(write.data[VniWidth-1:0]),
          .address(hash), .data(vni2[way])
      );
    end
    for (genvar way = 0; way < 2; way++) begin : g_remote
      logic [11:0] hash, low;
      assign low  = s_header.outer_src[11:0];
      assign hash = way == 0 ? low : low ^ s_header.outer_src[23:12];
      table_ram #(.Width(RemoteWidth), .Depth(4096)) remotes (
          .clk, .step,
          .wr_valid(write.valid && write.into == TableRemote && write.address[15:12] == 4'(way)),
          .wr_address(write.address[11:0]), .wr_data(write.data[RemoteWidth-1:0]),
          .address(hash), .data(remote2[way])
      );
    end
  end else begin : g_no_tunnels
    assign label2  = '0;
    assign vni2    = '0;
    assign remote2 = '0;
  end

  always_ff @(posedge clk) begin
    if (step) begin
      {entropy1, entropy2, entropy3, entropy4} <= {s_entropy, entropy1, entropy2, entropy3};
      header1     <= s_header;
      header2     <= header1;
      label_near2 <= header1.id < 24'(Labels);
    end
    if (rst) {valid1, valid2} <= '0;
    else if (step) {valid1, valid2} <= {s_valid, valid1};
  end

  // ---- Clock 3: the network

  logic [1:0] vni_match, remote_match;
  vrf_id_t    vrf2;
  always_comb begin
    for (int way = 0; way < 2; way++) begin
      remote_match[way] = remote2[way].valid && remote2[way].v6 == header2.outer_v6
          && remote2[way].address == header2.outer_src;
    end
    for (int way = 0; way < 2; way++) vni_match[way] = vni2[way].valid && vni2[way].vni == header2.id;
    vrf2 = port2.vrf;
    if (Wire && header2.tunnel == TunnelVxlan) vrf2 = vni_match[0] ? vni2[0].vrf : vni2[1].vrf;
    else if (Wire) vrf2 = label2.vrf;
  end

  vrf_t vrf_line;
  table_ram #(.Width(VrfWidth), .Depth(Vrfs)) vrfs (
      .clk, .step,
      .wr_valid(write.valid && write.into == TableVrf), .wr_address(write.address[$clog2(Vrfs)-1:0]),
      .wr_data(write.data[VrfWidth-1:0]),
      .address(vrf2[$clog2(Vrfs)-1:0]), .data(vrf_line)
  );

  // ---- Clocks 3 and 4: what can be said of the sender, while the network is read

  logic own_mac3, own_address3, to_port3, own_mac4, own_address4, to_port4;
  always_comb begin
    own_mac3     = !port3.check_mac || header3.mac_src == port3.mac;
    // Link-local addresses may be another's, and no address is for address configuration alone: the host knows.
    own_address3 = !port3.check_addresses || !header3.ip || owns(port3, header3.v6, header3.src);
    to_port3     = header3.outer_mac == port3.mac && owns(port3, header3.outer_v6, header3.outer_dst);
  end

  function automatic logic owns(port_t port, logic v6, logic [127:0] address);
    logic [1:0] v4_match, v6_match;
    v4_match = {port.addresses4 > 2'd1 && port.address4_1 == address[31:0],
                port.addresses4 > 2'd0 && port.address4_0 == address[31:0]};
    v6_match = {port.addresses6 > 2'd1 && port.address6_1 == address,
                port.addresses6 > 2'd0 && port.address6_0 == address};
    return v6 ? |v6_match : |v4_match;
  endfunction

  always_ff @(posedge clk) begin
    if (step) begin
      {header3, port3, label3, label_near3} <= {header2, port2, label2, label_near2};
      {vrf3, vni_found3, remote_known3} <= {vrf2, |vni_match, |remote_match};
      {header4, port4, label4, label_near4} <= {header3, port3, label3, label_near3};
      {vrf4, vni_found4, remote_known4} <= {vrf3, vni_found3, remote_known3};
      {own_mac4, own_address4, to_port4} <= {own_mac3, own_address3, to_port3};
    end
    if (rst) {valid3, valid4} <= '0;
    else if (step) {valid3, valid4} <= {valid2, valid3};
  end

  // ---- Clock 5: all together

  context_t context4;
  marks_t   marks4;
  lookup_t  lookup4;
  always_comb begin
    context4 = '0;
    context4.vrf        = vrf4;
    context4.policy     = !Wire && port4.policy;
    context4.exact      = !Wire && port4.exact;
    context4.generation = vrf_line.generation;
    context4.nexthop    = label4.nexthop;
    context4.entropy    = entropy4;
    if (header4.has_ethernet) context4.path = header4.mac_dst == GatewayMac ? PathRouted : PathBridged;
    else context4.path = label4.kind == LabelKindNexthop ? PathLabelled : PathRouted;
    context4.check_source = header4.has_ethernet && vrf_line.learning && header4.mac_src != GatewayMac
        && (Wire || !port4.check_mac);
    context4.punt = refusal();
    marks4        = '0;
    marks4.flow   = context4.punt == PuntNone && header4.ip && !header4.fragment;
    // A label's nexthop may have to be fetched: it is waited for as a route's.
    marks4.route  = context4.punt == PuntNone
        && (context4.path == PathRouted || context4.path == PathLabelled && in_memory(label4.nexthop, Nexthops));
    marks4.bridge = context4.punt == PuntNone && context4.path == PathBridged;
    marks4.source = context4.punt == PuntNone && context4.check_source;
  end

  always_comb begin
    lookup4 = '{
        tag: '0, mac_dst: header4.mac_dst, mac_src: header4.mac_src, root: vrf_line.root, lengths6: vrf_line.lengths6,
        key: '{src: header4.src, dst: header4.dst, sport: header4.sport, dport: header4.dport,
               protocol: header4.protocol, vrf: vrf4, path: context4.path, from_tunnel: Wire, v6: header4.v6, zone: '0}
    };
  end

  function automatic punt_e refusal();
    logic vlan, routed, nobodys, checked, exact;
    vlan = header4.tags != 0;
    routed = !header4.has_ethernet || header4.mac_dst == GatewayMac;
    exact  = !Wire && port4.exact;
    if (!enable || !port4.valid || port4.host || port4.is_wire != Wire) return PuntHostPort;
    if (header4.exception != PuntNone) return header4.exception;
    if (Wire && !to_port4) return PuntNotForUs;
    if (Wire && !remote_known4) return PuntUnknownRemote;
    if (Wire && header4.tunnel == TunnelVxlan && !vni_found4) return PuntUnknownVni;
    if (Wire && header4.tunnel != TunnelVxlan && (!label_near4 || label4.kind == LabelKindHost)) begin
      return PuntUnknownLabel;
    end
    if (!vrf_line.valid) return PuntNoVrf;
    if (header4.neighbour) return PuntNeighbour;
    nobodys = group(header4.mac_src) || header4.mac_src == '0 || header4.mac_src == GatewayMac;
    if (!Wire && (!own_mac4 || nobodys)) return PuntMacSpoofed;
    if (!Wire && !own_address4) return PuntAddressSpoofed;
    // Messages of routers and DHCP servers, and what may hide them.
    checked = !Wire && port4.check_addresses;
    if (checked && !header4.ip) return PuntNotIp;
    if (checked && header4.fragment) return PuntFragment;
    if (checked && header4.l4 == L4Icmp && !header4.icmp_echo) return PuntIcmp;
    if (checked && header4.l4 == L4Udp && (header4.dport == 16'd68 || header4.dport == 16'd546)) return PuntDhcp;
    if (header4.l4 == L4Udp && header4.dport == 16'd4791) return PuntVerbs;
    if (header4.has_ethernet && group(header4.mac_dst)) return PuntGroup;
    if (header4.has_ethernet && (header4.priority_tag || routed && vlan)) return PuntVlan;
    if (exact && (routed || vlan)) return PuntVlan;
    if (routed && !header4.ip) return PuntNotIp;
    // With a label to a guest too: it is a router's way.
    if (routed && !(routable(header4.v6, header4.src) && routable(header4.v6, header4.dst))) return PuntNotRoutable;
    return PuntNone;
  endfunction

  always_ff @(posedge clk) begin
    if (step) begin
      m_header   <= header4;
      m_context  <= context4;
      m_marks    <= marks4;
      m_lookup   <= lookup4;
    end
    if (rst) m_valid <= 1'b0;
    else if (step) m_valid <= valid4;
  end

endmodule

// SPDX-License-Identifier: Apache-2.0
// Says what is done with a packet, from its header and what its look-ups found: where `decide` of the model says the
// same for every packet that gets so far, an edit; for all others the host.
//
// 4 clocks from `s` to `m`, one packet per clock; stands still while `m` is not taken.
module verdict
  import registers_pkg::*;
  import viaduct_pkg::*;
  import pipe_pkg::*;
#(
    parameter bit          Wire       = 1'b0,  // packets come from wires, in tunnels; else from guests
    parameter int unsigned Nexthops   = 16384,
    parameter logic [3:0]  HostEgress = 4'd0   // where packets to the host go
) (
    input  logic           clk,
    input  logic           rst,
    input  write_t         write,       // those of nexthops are its
    input  logic           s_valid,
    output logic           s_ready,
    input  known_t         s,
    output logic           m_valid,
    input  logic           m_ready,
    output decision_t      m
);

  logic step;
  assign step    = !m_valid || m_ready;
  assign s_ready = step;

  // ---- Clock 1: which nexthop

  typedef struct packed {
    tag_t         tag;
    header_t      header;
    context_t     ctx;
    flow_result_t flow;       // hit: of the right generation
    logic         own;        // the flow's own nexthop is used
    logic         found;      // a table gave a nexthop
    logic         source_ok;
    logic         bad;        // a look-up found nothing, but could not read every line
  } packet_t;

  logic        bad_table;
  packet_t     packet0, packet1, packet2, packet3;
  logic        valid1, valid2, valid3;
  nexthop_id_t nexthop0, nexthop1;
  logic        in_memory2, in_memory3;  // the nexthop is one that was fetched
  nexthop_t    fetched1, fetched2, fetched3, hop3, hop;

  always_comb begin
    packet0           = '0;
    packet0.tag       = s.tag;
    packet0.header    = s.header;
    packet0.ctx       = s.ctx;
    packet0.flow      = s.flow;
    packet0.flow.hit  = s.flow.hit && s.flow.generation == s.ctx.generation;
    packet0.own       = packet0.flow.hit && s.flow.has_nexthop
        && (s.flow.action == FlowActionForward || s.flow.action[3]);
    packet0.source_ok = !s.ctx.check_source || at_home();
    nexthop0          = s.ctx.nexthop;
    packet0.found     = 1'b1;
    bad_table         = 1'b0;
    unique case (s.ctx.path)
      PathBridged: {bad_table, packet0.found, nexthop0} = {s.bridge.bad, s.bridge.found, s.bridge.nexthop};
      PathRouted:  {bad_table, packet0.found, nexthop0} = {s.route.bad, s.route.found, s.route.nexthop};
      default: ;
    endcase
    if (packet0.own) nexthop0 = s.flow.nexthop;
    packet0.bad = s.flow.bad || s.ctx.check_source && s.source.bad || bad_table && !packet0.own;
  end

  // Whether the source MAC is known to be where the packet came from.
  function automatic logic at_home();
    logic [31:0] origin;
    origin = Wire ? s.header.outer_src[31:0] : 32'(s.header.port);
    return s.source.found && (s.source.fixed
        || s.source.at_tunnel == Wire && s.source.at == origin && !(Wire && s.header.outer_v6));
  endfunction

  // ---- Clocks 2 and 3: the nexthop is read, on chip; one that was fetched may have been amid its change

  nexthop_id_t changed_number;
  nexthop_t    changed;

  always_ff @(posedge clk) begin
    if (write.valid && write.into == TableNexthopChange) {changed_number, changed} <= {write.address, write.data};
    if (rst) changed_number <= '0;
  end

  table_ram #(.Width(NexthopWidth), .Depth(Nexthops)) nexthops (
      .clk, .step,
      .wr_valid(write.valid && write.into == TableNexthop),
      .wr_address(write.address[$clog2(Nexthops)-1:0]), .wr_data(write.data[NexthopWidth-1:0]),
      .address(nexthop1[$clog2(Nexthops)-1:0]), .data(hop3)
  );

  assign hop = in_memory3 ? fetched3 : hop3;

  always_ff @(posedge clk) begin
    if (step) begin
      {packet1, nexthop1}   <= {packet0, nexthop0};
      fetched1              <= packet0.own ? s.own_hop : s.hop;
      packet2               <= packet1;
      in_memory2            <= in_memory(nexthop1, Nexthops);
      fetched2              <= nexthop1 == changed_number ? changed : fetched1;
      {packet3, in_memory3} <= {packet2, in_memory2};
      fetched3              <= fetched2;
    end
    if (rst) {valid1, valid2, valid3} <= '0;
    else if (step) {valid1, valid2, valid3} <= {s_valid, valid1, valid2};
  end

  // ---- Clock 4: the verdict

  logic   bridged, track, hop_costs, drop;
  punt_e  punt;
  edit_t  edit;
  logic [7:0]  reason;
  conclusion_t conclusion;

  always_comb begin
    bridged = packet3.ctx.path == PathBridged;
    track   = packet3.ctx.policy || hop.policy || packet3.own;
    // VXLAN has the same flows as a label that stands for a network, but what comes by it is routed as any other.
    hop_costs = !bridged
        && !(track && packet3.flow.hit && packet3.flow.keep_ttl && !(Wire && packet3.header.has_ethernet));
    punt    = refusal();
    drop    = 1'b0;
    reason  = 8'(punt);
    if (punt == PuntNone && hop.kind == NexthopKindDiscard) begin
      {drop, reason} = {1'b1, hop.id[7:0]};
    end else if (punt == PuntNone && track && packet3.flow.action == FlowActionDrop) begin
      {drop, reason} = {1'b1, packet3.flow.nexthop[7:0]};
    end
  end

  // Between the MACs of its flow's nexthop, which the flow's key does not have.
  logic exactly;
  assign exactly = packet3.own && packet3.header.mac_dst == hop.mac && packet3.header.mac_src == hop.outer_src_mac;

  function automatic punt_e refusal();
    logic [15:0] length, room;
    logic        translated;
    if (packet3.ctx.punt != PuntNone) return packet3.ctx.punt;
    if (packet3.bad || bad_nexthop(hop)) return PuntMemoryError;
    if (!packet3.source_ok) return PuntLearn;
    if (packet3.ctx.exact && !exactly) return PuntFlowMiss;
    if (!packet3.own && !packet3.found) return bridged ? PuntBridgeMiss : PuntRouteMiss;
    if (hop.kind == NexthopKindHost) return PuntNexthop;
    if (hop.kind == NexthopKindFlow) return PuntFlowMiss;
    // What a discarding route drops no connection is asked about.
    if (hop.kind == NexthopKindDiscard) return PuntNone;
    if (track) begin
      if (!packet3.header.ip) return PuntNotIp;
      if (packet3.header.fragment) return PuntFragment;
      if (packet3.header.l4 == L4Icmp && !packet3.header.icmp_echo) return PuntIcmp;
      if (!packet3.flow.hit) return PuntFlowMiss;
      if (packet3.flow.action == FlowActionHost) return PuntFlowHost;
      if (packet3.flow.action == FlowActionDrop) return PuntNone;
      // FIN, SYN, RST change a connection's state.
      if (packet3.header.l4 == L4Tcp && packet3.header.tcp_flags[2:0] != 0) return PuntFlowTcp;
    end
    if (bridged && (hop.port == packet3.header.port || Wire && hop.kind == NexthopKindTunnel)) return PuntSamePort;
    if (hop_costs && packet3.header.ttl <= 8'd1) return PuntTtl;
    length = packet3.header.ip ? packet3.header.ip_len : packet3.header.stop - 16'(packet3.header.l3_at);
    room   = hop.mtu;
    if (bridged && hop.kind == NexthopKindTunnel) room = hop.mtu - (16'(packet3.header.tags) << 2);
    if (length > room) return PuntMtu;
    translated = packet3.own && (packet3.flow.nat_src || packet3.flow.nat_dst);
    if (translated && packet3.header.header_len != 6'd20) return PuntNat;
    return PuntNone;
  endfunction

  // What goes in front of a packet, bytes.
  logic [6:0] prepended;
  always_comb begin
    prepended = 7'd0;
    if (edit.ethernet) prepended = 7'd14;
    if (edit.encap) begin
      prepended = prepended + 7'd14 + (edit.outer_v6 ? 7'd40 : 7'd20);
      prepended = prepended + (edit.tunnel == TunnelVxlan ? 7'd16 : edit.tunnel == TunnelMplsUdp ? 7'd12 : 7'd8);
    end
  end

  always_comb begin
    edit      = '0;
    edit.drop = drop;
    edit.punt = punt != PuntNone;
    edit.meta.reason      = punt;
    edit.meta.port        = packet3.header.port;
    edit.meta.size        = packet3.header.size;
    edit.meta.index       = packet3.flow.hit ? packet3.flow.index : '0;
    edit.meta.vrf         = packet3.ctx.vrf;
    edit.meta.path        = packet3.ctx.path;
    edit.meta.from_tunnel = Wire;
    edit.meta.tag         = packet3.tag;
    edit.port   = edit.punt ? packet3.header.port : hop.port;
    edit.strip  = edit.punt ? 8'd0 : bridged ? packet3.header.start : packet3.header.l3_at;
    edit.kept   = edit.punt ? packet3.header.size
        : bridged ? packet3.header.stop - 16'(packet3.header.start) : packet3.header.ip_len;
    edit.ip         = packet3.header.ip;
    edit.v6         = packet3.header.v6;
    edit.l3_at      = bridged ? 5'(packet3.header.l3_at - packet3.header.start) : 5'd0;
    edit.header_len = packet3.header.header_len;
    edit.set_tos    = packet3.header.new_tos;
    edit.tos        = packet3.header.tos;
    edit.decrement_ttl = hop_costs;
    edit.nat_src    = packet3.own && packet3.flow.nat_src;
    edit.nat_dst    = packet3.own && packet3.flow.nat_dst;
    edit.new_src    = packet3.flow.new_src;
    edit.new_dst    = packet3.flow.new_dst;
    edit.l4         = packet3.header.l4;
    edit.ethernet   = !edit.punt && !bridged && (hop.kind == NexthopKindGuest || hop.tunnel == TunnelVxlan);
    edit.mac        = hop.mac;
    edit.ethertype  = packet3.header.v6 ? 16'h86dd : 16'h0800;
    edit.encap      = !edit.punt && hop.kind == NexthopKindTunnel;
    edit.tunnel     = tunnel_e'(hop.tunnel);
    edit.outer_v6   = hop.outer_v6;
    edit.id         = hop.id;
    edit.outer_src  = hop.outer_src;
    edit.outer_dst  = hop.outer_dst;
    edit.outer_src_mac = hop.outer_src_mac;
    edit.outer_dst_mac = hop.outer_dst_mac;
    edit.outer_tos  = packet3.header.ip ? packet3.header.tos : 8'd0;
    edit.entropy    = packet3.ctx.entropy;
    edit.checksum   = 17'(hop.checksum);
  end

  // What of a held flow goes to the host waits too: it would overtake what waits elsewhere.
  hold_t hold;
  always_comb begin
    hold = '{HoldNone, packet3.flow.action[2], packet3.flow.action[1:0]};
    if (packet3.flow.hit && packet3.flow.action[3]) hold.kind = HoldWait;
  end

  always_comb begin
    conclusion           = '0;
    conclusion.ingress   = packet3.header.port;
    conclusion.size      = packet3.header.size;
    conclusion.punted    = edit.punt;
    conclusion.dropped   = drop;
    conclusion.reason    = reason;
    conclusion.egress    = hop.port;
    conclusion.sent_size = edit.kept + 16'(prepended);
    conclusion.flow      = !edit.punt && track && packet3.flow.hit;
    conclusion.index     = packet3.flow.index;
  end

  always_ff @(posedge clk) begin
    if (step) begin
      m <= '{edit: edit, egress: edit.punt ? HostEgress : hop.egress, hold: hold, conclusion: conclusion};
    end
    if (rst) m_valid <= 1'b0;
    else if (step) m_valid <= valid3;
  end

endmodule

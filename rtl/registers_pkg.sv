// SPDX-License-Identifier: Apache-2.0
// Written by rtl/generate from rtl/registers.toml.
package registers_pkg;

  localparam logic [31:0] Version = 32'd1;

  // The reason why a packet goes to the host. There `decide` answers: with a drop, a reply, a flood, or a flow to be installed.
  typedef enum logic [5:0] {
    PuntNone = 6'd0,
    PuntHostPort = 6'd1,
    PuntEthernetTruncated = 6'd2,
    PuntTooManyTags = 6'd3,
    PuntNeighbour = 6'd4,
    PuntIpTruncated = 6'd5,
    PuntIpHeader = 6'd6,
    PuntIpLength = 6'd7,
    PuntIpChecksum = 6'd8,
    PuntIpSource = 6'd9,
    PuntIpv6Extension = 6'd10,
    PuntFragment = 6'd11,
    PuntL4Malformed = 6'd12,
    PuntHeaderTooLong = 6'd13,
    PuntTunnelMalformed = 6'd14,
    PuntOuterFragment = 6'd15,
    PuntNotForUs = 6'd16,
    PuntLabelStack = 6'd17,
    PuntTunnelPayload = 6'd18,
    PuntUnknownLabel = 6'd19,
    PuntUnknownVni = 6'd20,
    PuntEcn = 6'd21,
    PuntGroup = 6'd22,
    PuntVlan = 6'd23,
    PuntMacSpoofed = 6'd24,
    PuntAddressSpoofed = 6'd25,
    PuntVerbs = 6'd26,
    PuntIcmp = 6'd27,
    PuntLearn = 6'd28,
    PuntBridgeMiss = 6'd29,
    PuntNotIp = 6'd30,
    PuntNotRoutable = 6'd31,
    PuntRouteMiss = 6'd32,
    PuntNoVrf = 6'd33,
    PuntFlowMiss = 6'd34,
    PuntFlowTcp = 6'd35,
    PuntFlowHost = 6'd36,
    PuntNexthop = 6'd37,
    PuntSamePort = 6'd38,
    PuntTtl = 6'd39,
    PuntMtu = 6'd40,
    PuntNat = 6'd41,
    PuntUnknownRemote = 6'd42,
    PuntDhcp = 6'd43,
    PuntOuterChecksumMissing = 6'd44,
    PuntMemoryError = 6'd45
  } punt_e;
  localparam int unsigned PuntCount = 46;

  // Encapsulations, numbered as `packet::TunnelKind`.
  typedef enum logic [1:0] {
    TunnelMplsUdp = 2'd0,
    TunnelMplsGre = 2'd1,
    TunnelVxlan = 2'd2
  } tunnel_e;
  localparam int unsigned TunnelCount = 3;

  // How a packet finds its nexthop. This is part of a flow's key, because rules and translation depend on it.
  typedef enum logic [1:0] {
    PathBridged = 2'd0,
    PathRouted = 2'd1,
    PathLabelled = 2'd2
  } path_e;
  localparam int unsigned PathCount = 3;

  // The contents of a 32-byte line of the flow table.
  typedef enum logic [3:0] {
    FlowKindEmpty = 4'd0,
    FlowKindV4 = 4'd1,
    FlowKindV6Low = 4'd2,
    FlowKindV6High = 4'd3
  } flow_kind_e;
  localparam int unsigned FlowKindCount = 4;

  // The action for a flow's packets. 8 and more: like `forward`, but packets wait until the hold group in bits 1:0 is released in the turn in bit 2.
  typedef enum logic [3:0] {
    FlowActionHost = 4'd0,
    FlowActionForward = 4'd1,
    FlowActionDrop = 4'd2
  } flow_action_e;
  localparam int unsigned FlowActionCount = 3;

  // The action for a packet that a table sends to a nexthop.
  typedef enum logic [3:0] {
    NexthopKindHost = 4'd0,
    NexthopKindDiscard = 4'd1,
    NexthopKindGuest = 4'd2,
    NexthopKindTunnel = 4'd3,
    NexthopKindFlow = 4'd4
  } nexthop_kind_e;
  localparam int unsigned NexthopKindCount = 5;

  // The kind of an entry of the IPv4 trie.
  typedef enum logic [1:0] {
    RouteKindNone = 2'd0,
    RouteKindNexthop = 2'd1,
    RouteKindChild = 2'd2
  } route_kind_e;
  localparam int unsigned RouteKindCount = 3;

  // The meaning of a label.
  typedef enum logic [1:0] {
    LabelKindHost = 2'd0,
    LabelKindNexthop = 2'd1,
    LabelKindVrf = 2'd2
  } label_kind_e;
  localparam int unsigned LabelKindCount = 3;

  // The table to which a command writes.
  typedef enum logic [3:0] {
    TableFlow = 4'd0,
    TableBridge = 4'd1,
    TableRoute = 4'd2,
    TableNexthop = 4'd3,
    TablePort = 4'd4,
    TableVrf = 4'd5,
    TableLabel = 4'd6,
    TableVni = 4'd7,
    TableNexthopChange = 4'd8,
    TableStash = 4'd9,
    TableRemote = 4'd10
  } table_e;
  localparam int unsigned TableCount = 11;

  // Commands of the command block.
  typedef enum logic [3:0] {
    CommandNone = 4'd0,
    CommandWrite = 4'd1,
    CommandBarrier = 4'd2,
    CommandClear = 4'd3
  } command_e;
  localparam int unsigned CommandCount = 4;

  // An IPv4 flow. A bucket is two of them: 64 bytes. The key is the lower 128 bits.
  typedef struct packed {
    logic [31:0] new_dst;
    logic [31:0] new_src;
    logic keep_ttl;
    logic nat_dst;
    logic nat_src;
    logic has_nexthop;
    logic [19:0] nexthop;
    logic [23:0] index;
    logic [7:0] generation;
    logic [3:0] action;
    logic [3:0] kind;
    logic [7:0] zone;
    logic v6;
    logic from_tunnel;
    logic [1:0] path;
    logic [11:0] vrf;
    logic [7:0] protocol;
    logic [15:0] dport;
    logic [15:0] sport;
    logic [31:0] dst;
    logic [31:0] src;
  } flow4_t;
  localparam int unsigned Flow4Width = 256;

  // An IPv6 flow: a whole bucket, two lines. It is valid while both lines have the same `version`. IPv6 flows with address translation stay on the host.
  typedef struct packed {
    logic [3:0] kind_high;
    logic [3:0] reserved_kind;
    logic [7:0] version_high;
    logic [89:0] reserved_high;
    logic keep_ttl;
    logic has_nexthop;
    logic [19:0] nexthop;
    logic [127:0] dst;
    logic [3:0] kind;
    logic [3:0] action;
    logic [15:0] reserved;
    logic [23:0] index;
    logic [7:0] generation;
    logic [7:0] version;
    logic [7:0] zone;
    logic v6;
    logic from_tunnel;
    logic [1:0] path;
    logic [11:0] vrf;
    logic [7:0] protocol;
    logic [15:0] dport;
    logic [15:0] sport;
    logic [127:0] src;
  } flow6_t;
  localparam int unsigned Flow6Width = 512;

  // A MAC of a network. A line of the bridge table is two of them: 32 bytes.
  typedef struct packed {
    logic [12:0] reserved;
    logic [31:0] at;
    logic at_tunnel;
    logic [19:0] nexthop;
    logic fixed;
    logic valid;
    logic [11:0] vrf;
    logic [47:0] mac;
  } bridge_t;
  localparam int unsigned BridgeWidth = 128;

  // An entry of a trie of 16, 8 and 8 bits. A line is eight of them: 32 bytes.
  typedef struct packed {
    logic [1:0] kind;
    logic [29:0] value;
  } route4_t;
  localparam int unsigned Route4Width = 32;

  // An IPv6 prefix of one of the network's populated lengths, in a hash table of two choices.
  typedef struct packed {
    logic [86:0] reserved;
    logic [19:0] nexthop;
    logic valid;
    logic [7:0] length;
    logic [11:0] vrf;
    logic [127:0] prefix;
  } route6_t;
  localparam int unsigned Route6Width = 256;

  // A nexthop.
  typedef struct packed {
    logic [33:0] reserved;
    logic [15:0] checksum;
    logic [3:0] egress;
    logic [47:0] outer_dst_mac;
    logic [47:0] outer_src_mac;
    logic [127:0] outer_dst;
    logic [127:0] outer_src;
    logic [47:0] mac;
    logic [23:0] id;
    logic [15:0] mtu;
    logic [9:0] port;
    logic outer_v6;
    logic [1:0] tunnel;
    logic policy;
    logic [3:0] kind;
  } nexthop_t;
  localparam int unsigned NexthopWidth = 512;

  // A port: a guest or a wire.
  typedef struct packed {
    logic [120:0] reserved;
    logic exact;
    logic [127:0] address6_1;
    logic [127:0] address6_0;
    logic [31:0] address4_1;
    logic [31:0] address4_0;
    logic [47:0] mac;
    logic [11:0] vrf;
    logic [1:0] addresses6;
    logic [1:0] addresses4;
    logic check_addresses;
    logic check_mac;
    logic policy;
    logic host;
    logic is_wire;
    logic valid;
  } port_t;
  localparam int unsigned PortWidth = 512;

  // A network.
  typedef struct packed {
    logic [97:0] reserved;
    logic [127:0] lengths6;
    logic [19:0] root;
    logic [7:0] generation;
    logic learning;
    logic valid;
  } vrf_t;
  localparam int unsigned VrfWidth = 256;

  // An MPLS label.
  typedef struct packed {
    logic [5:0] reserved;
    logic [19:0] nexthop;
    logic [11:0] vrf;
    logic [1:0] kind;
  } label_t;
  localparam int unsigned LabelWidth = 40;

  // A VXLAN network identifier, in a table of two ways: way 0 by its lower 12 bits, way 1 by those exclusive-ored with its upper 12.
  typedef struct packed {
    logic [2:0] reserved;
    logic valid;
    logic [11:0] vrf;
    logic [23:0] vni;
  } vni_t;
  localparam int unsigned VniWidth = 40;

  // An address from which tunnel packets are accepted, in a table of two ways: way 0 by its lower 12 bits, way 1 by those exclusive-ored with the next 12.
  typedef struct packed {
    logic [5:0] reserved;
    logic valid;
    logic v6;
    logic [127:0] address;
  } remote_t;
  localparam int unsigned RemoteWidth = 136;

  // Metadata of a packet to or from the host, in a beat of its own in front of it. For a packet from the host that is to be sent unchanged, only `port`, `size` and `egress` matter. Without a frame after it, a beat from the host releases a hold group, or comes out unchanged.
  typedef struct packed {
    logic [390:0] reserved;
    logic [2:0] hold;
    logic release_hold;
    logic [3:0] egress;
    logic [9:0] tag;
    logic from_tunnel;
    logic [1:0] path;
    logic [11:0] vrf;
    logic [23:0] index;
    logic [31:0] count;
    logic [15:0] size;
    logic [9:0] port;
    logic [5:0] reason;
  } punt_meta_t;
  localparam int unsigned PuntMetaWidth = 512;

  // Properties of the card, and the directory of its blocks.
  localparam logic [7:0] IdentityType = 8'd1;
  localparam logic [7:0] IdentityBlockVersion = 8'd1;
  localparam logic [15:0] IdentityPage = 16'd0;
  localparam logic [11:0] IdentityMagic = 12'h000;
  localparam logic [11:0] IdentityRevision = 12'h004;
  localparam logic [11:0] IdentityPipes = 12'h008;
  localparam logic [11:0] IdentityChannels = 12'h00c;
  localparam logic [11:0] IdentityClock = 12'h010;
  localparam logic [11:0] IdentityNexthops = 12'h014;
  localparam logic [11:0] IdentityFlowBuckets = 12'h018;
  localparam logic [11:0] IdentityBridgeLines = 12'h01c;
  localparam logic [11:0] IdentityRoute6Lines = 12'h028;
  localparam logic [11:0] IdentityNexthopsOnChip = 12'h02c;
  localparam logic [11:0] IdentityFlowCounters = 12'h040;
  localparam logic [11:0] IdentityFlowsSeen = 12'h044;
  localparam logic [11:0] IdentityStashFlows = 12'h050;
  localparam logic [11:0] IdentityScratch = 12'h020;
  localparam logic [11:0] IdentityBlocks = 12'h024;
  localparam logic [11:0] IdentityDirectory = 12'h100;

  // Commands, with which the host writes tables. It writes data, table, address, then the command. One command runs at a time; `done` counts them. The next data, table and address may be written while a command runs.
  localparam logic [7:0] CommandType = 8'd2;
  localparam logic [7:0] CommandBlockVersion = 8'd1;
  localparam logic [15:0] CommandPage = 16'd1;
  localparam logic [11:0] CommandData = 12'h000;
  localparam logic [11:0] CommandTable = 12'h040;
  localparam logic [11:0] CommandAddress = 12'h044;
  localparam logic [11:0] CommandCommand = 12'h048;
  localparam logic [11:0] CommandBusy = 12'h04c;
  localparam logic [11:0] CommandDone = 12'h050;

  // The pipes.
  localparam logic [7:0] EngineType = 8'd3;
  localparam logic [7:0] EngineBlockVersion = 8'd1;
  localparam logic [15:0] EnginePage = 16'd2;
  localparam logic [11:0] EngineEnable = 12'h000;
  localparam logic [11:0] EngineReleased = 12'h004;
  localparam logic [11:0] EngineHeld = 12'h008;
  localparam logic [11:0] EngineHoldFull = 12'h00c;
  localparam logic [11:0] EngineMemoryErrors = 12'h010;
  localparam logic [11:0] EngineFailingChannels = 12'h014;
  localparam logic [11:0] EngineGuestBudget = 12'h020;
  localparam logic [11:0] EngineWireBudget = 12'h024;
  localparam logic [11:0] EngineBudgetReason = 12'h028;
  localparam logic [11:0] EngineSecret = 12'h040;

  // Counters, 64 bits, read one at a time: writing `select` takes a snapshot into `low` and `high`.
  localparam logic [7:0] CountersType = 8'd4;
  localparam logic [7:0] CountersBlockVersion = 8'd1;
  localparam logic [15:0] CountersPage = 16'd3;
  localparam logic [11:0] CountersSelect = 12'h000;
  localparam logic [11:0] CountersLow = 12'h004;
  localparam logic [11:0] CountersHigh = 12'h008;
  localparam logic [11:0] CountersSeen = 12'h010;
  localparam logic [11:0] CountersSeenLow = 12'h014;
  localparam logic [11:0] CountersSeenHigh = 12'h018;
  localparam logic [11:0] CountersFlowEvent = 12'h01c;

  localparam int unsigned Blocks = 4;
  // The directory, entry 0 in the lowest bits.
  localparam logic [127:0] Directory = {
    {CountersType, CountersBlockVersion, CountersPage},
    {EngineType, EngineBlockVersion, EnginePage},
    {CommandType, CommandBlockVersion, CommandPage},
    {IdentityType, IdentityBlockVersion, IdentityPage}
  };

endpackage

// SPDX-License-Identifier: Apache-2.0
// The engine: pipes of both directions, the memories of the tables that they share, the cross-bar behind them, and the
// registers by which the host writes the tables.
//
// Pipes 0 to Pipes-1 are downstream (from guests), the others upstream (from wires). Outputs 0 to Pipes-1 are queues to
// the host (for guests and for itself), the others wires. A master per HBM pseudo channel: way 0 of the flow table,
// way 1, bridge, route, nexthop.
module engine
  import registers_pkg::*;
  import viaduct_pkg::*;
  import pipe_pkg::*;
#(
    parameter int unsigned Pipes          = 2,       // of each direction
    parameter int unsigned FlowChannels   = 16,      // of both ways
    parameter int unsigned BridgeChannels = 4,
    parameter int unsigned RouteChannels  = 8,
    parameter int unsigned NexthopChannels = 4,
    parameter int unsigned Ports          = 1024,
    parameter int unsigned Vrfs           = 4096,
    parameter int unsigned Labels         = 65536,
    parameter int unsigned Nexthops       = 16384,   // on chip
    parameter int unsigned Flows          = 262144,  // with counters of their own
    parameter int unsigned Seen           = 8388608, // with a bit that says whether packets came
    parameter int unsigned FlowBits       = 23,      // buckets of a way, binary logarithm
    parameter int unsigned BridgeBits     = 16,      // lines of a way, likewise
    parameter int unsigned Route6Bits     = 18,      // lines of a way, likewise
    localparam int unsigned Streams       = 2 * Pipes,
    localparam int unsigned Channels      = FlowChannels + BridgeChannels + RouteChannels + NexthopChannels
) (
    input  logic                       clk,
    input  logic                       rst,
    input  logic  [Streams-1:0]        s_valid,
    output logic  [Streams-1:0]        s_ready,
    input  beat_t [Streams-1:0]        s_beat,
    output logic  [Streams-1:0]        m_valid,
    input  logic  [Streams-1:0]        m_ready,
    output beat_t [Streams-1:0]        m_beat,
    // AXI3 masters of HBM channels: 256 bits, addresses in bytes within the channel.
    output logic [Channels-1:0]        m_axi_arvalid,
    input  logic [Channels-1:0]        m_axi_arready,
    output logic [Channels-1:0][5:0]   m_axi_arid,
    output logic [Channels-1:0][32:0]  m_axi_araddr,
    output logic [Channels-1:0][3:0]   m_axi_arlen,
    input  logic [Channels-1:0]        m_axi_rvalid,
    output logic [Channels-1:0]        m_axi_rready,
    input  logic [Channels-1:0][5:0]   m_axi_rid,
    input  logic [Channels-1:0][255:0] m_axi_rdata,
    input  logic [Channels-1:0][1:0]   m_axi_rresp,
    input  logic [Channels-1:0]        m_axi_rlast,
    output logic [Channels-1:0]        m_axi_awvalid,
    input  logic [Channels-1:0]        m_axi_awready,
    output logic [Channels-1:0][32:0]  m_axi_awaddr,
    output logic [Channels-1:0]        m_axi_wvalid,
    input  logic [Channels-1:0]        m_axi_wready,
    output logic [Channels-1:0][255:0] m_axi_wdata,
    input  logic [Channels-1:0]        m_axi_bvalid,
    output logic [Channels-1:0]        m_axi_bready,
    input  logic [Channels-1:0][1:0]   m_axi_bresp,
    // AXI4-Lite slave: the registers.
    input  logic                       axil_awvalid,
    output logic                       axil_awready,
    input  logic [19:0]                axil_awaddr,
    input  logic                       axil_wvalid,
    output logic                       axil_wready,
    input  logic [31:0]                axil_wdata,
    output logic                       axil_bvalid,
    input  logic                       axil_bready,
    output logic [1:0]                 axil_bresp,
    input  logic                       axil_arvalid,
    output logic                       axil_arready,
    input  logic [19:0]                axil_araddr,
    output logic                       axil_rvalid,
    input  logic                       axil_rready,
    output logic [31:0]                axil_rdata,
    output logic [1:0]                 axil_rresp
);

  localparam int unsigned WayChannels = FlowChannels / 2;
  localparam int unsigned RouteAt     = FlowChannels + BridgeChannels;
  localparam int unsigned NexthopAt   = RouteAt + RouteChannels;
  // Reads at once, of a pipe.
  localparam int unsigned BridgeReads = 4;
  localparam int unsigned RouteReads  = 5;
  localparam int unsigned HopReads    = 2;

  // ---- The host's commands

  logic         enable, start, done;
  logic [319:0] secret;
  logic [1:0][31:0] budget;  // of guests' ports, of wires'
  logic [7:0]   budget_reason;
  logic [3:0]   command, to_table;
  logic [4:0]   memory_valid, memory_ready, memory_done;
  logic [31:0]  address, select;
  logic [511:0] data;
  logic         memory_half;
  write_t       write;       // to all pipes; memories' bytes are its, too
  line_t        memory_line;
  logic [63:0]  value;
  logic [Streams-1:0][31:0] came, left;
  logic [31:0]  released, held, hold_full;
  logic [Channels-1:0] errors;     // channels that answer with an error
  logic [4:0]   wr_errors;         // memories that answer a write with an error
  logic [Streams-1:0][63:0] values, seen_words;
  logic [63:0]  seen;
  logic         select_take, seen_take, event_take;
  logic [$clog2(Seen)-7:0] seen_word;
  logic [31:0]  flow_event;

  registers #(
      .Pipes(Pipes), .FlowChannels(FlowChannels), .BridgeChannels(BridgeChannels), .RouteChannels(RouteChannels),
      .NexthopChannels(NexthopChannels), .Nexthops(Nexthops), .Flows(Flows), .Seen(Seen),
      .FlowBits(FlowBits), .BridgeBits(BridgeBits), .Route6Bits(Route6Bits)
  ) registers (
      .clk, .rst,
      .awvalid(axil_awvalid), .awready(axil_awready), .awaddr(axil_awaddr),
      .wvalid(axil_wvalid), .wready(axil_wready), .wdata(axil_wdata),
      .bvalid(axil_bvalid), .bready(axil_bready), .bresp(axil_bresp),
      .arvalid(axil_arvalid), .arready(axil_arready), .araddr(axil_araddr),
      .rvalid(axil_rvalid), .rready(axil_rready), .rdata(axil_rdata), .rresp(axil_rresp),
      .enable, .secret, .budget, .budget_reason,
      .command_start(start), .command, .command_table(to_table), .command_address(address), .command_data(data),
      .command_done(done), .released, .held, .hold_full,
      .errors, .write_failed(|wr_errors), .select_take, .select, .value,
      .seen_take, .seen_word, .seen, .event_take, .flow_event
  );

  commands #(.Pipes(Streams), .Nexthops(Nexthops)) commands (
      .clk, .rst, .start, .command, .to_table, .address, .data, .done,
      .wr_valid(write.valid), .wr_table(write.into), .wr_address(write.address), .wr_data(write.data),
      .memory_valid, .memory_ready, .memory_line, .memory_half, .memory_done,
      .came, .left
  );

  // A counter's value is the sum over pipes.
  always_ff @(posedge clk) value <= sum(values);

  // Whether any of the pipes has seen a flow.
  always_comb begin
    seen = '0;
    for (int i = 0; i < Streams; i++) seen = seen | seen_words[i];
  end

  function automatic logic [63:0] sum(logic [Streams-1:0][63:0] all);
    sum = '0;
    for (int i = 0; i < Streams; i++) sum = sum + all[i];
  endfunction

  // ---- Pipes

  logic         [Streams-1:0]                  out_valid, out_ready;
  settings_t    [Streams-1:0]                  settings;
  sent_t        [Streams-1:0]                  out;
  logic         [Streams-1:0]                  conclusion_valid;
  conclusion_t  [Streams-1:0]                  conclusion;
  pipe_reqs_t   [Streams-1:0]                  reqs;
  pipe_resps_t  [Streams-1:0]                  resps;
  memory_req_t  [1:0][Streams-1:0]             flow_reqs;
  memory_resp_t [1:0][Streams-1:0]             flow_resps;
  memory_req_t  [Streams-1:0][BridgeReads-1:0] bridge_reqs;
  memory_resp_t [Streams-1:0][BridgeReads-1:0] bridge_resps;
  memory_req_t  [Streams-1:0][RouteReads-1:0]  route_reqs;
  memory_resp_t [Streams-1:0][RouteReads-1:0]  route_resps;
  memory_req_t  [Streams-1:0][HopReads-1:0]    hop_reqs;
  memory_resp_t [Streams-1:0][HopReads-1:0]    hop_resps;

  logic [Streams-1:0]       event_valid, event_ready, event_lost;
  logic [Streams-1:0][23:0] event_number;
  logic [Streams-1:0][1:0]  event_which;

  for (genvar i = 0; i < Streams; i++) begin : g_pipe
    pipe #(
        .Wire(i >= Pipes), .HostEgress(4'(i % Pipes)),
        .Ports(Ports), .Vrfs(Vrfs), .Labels(Labels), .Nexthops(Nexthops),
        .FlowBits(FlowBits), .BridgeBits(BridgeBits), .Route6Bits(Route6Bits)
    ) pipe (
        .clk, .rst, .settings(settings[i]), .write, .s_valid(s_valid[i]), .s_ready(s_ready[i]), .s_beat(s_beat[i]),
        .m_valid(out_valid[i]), .m_ready(out_ready[i]), .m(out[i]), .reqs(reqs[i]), .resps(resps[i]),
        .conclusion_valid(conclusion_valid[i]), .conclusion(conclusion[i]), .pause(select_take || seen_take),
        .came(came[i]), .left(left[i])
    );

    assign settings[i] =
        '{enable: enable, secret: secret, budget: budget[i>=Pipes], budget_reason: budget_reason};
    assign {flow_reqs[1][i], flow_reqs[0][i], bridge_reqs[i], route_reqs[i], hop_reqs[i]} = reqs[i];
    assign resps[i] = {flow_resps[1][i], flow_resps[0][i], bridge_resps[i], route_resps[i], hop_resps[i]};

    counters #(.Ports(Ports), .Flows(Flows), .Seen(Seen)) counters (
        .clk, .rst, .valid(conclusion_valid[i]), .conclusion(conclusion[i]), .select, .value(values[i]),
        .seen_take, .seen_word, .seen(seen_words[i]),
        .event_valid(event_valid[i]), .event_ready(event_ready[i]), .event_number(event_number[i]),
        .event_which(event_which[i]), .event_lost(event_lost[i]), .clear_lost(event_take)
    );
  end

  flow_events #(.Pipes(Streams)) flow_events (
      .clk, .rst, .take(event_take), .flow_event,
      .valid(event_valid), .ready(event_ready), .number(event_number), .which(event_which), .lost(event_lost)
  );

  // ---- Memories

  for (genvar way = 0; way < 2; way++) begin : g_flow
    localparam int unsigned At = way * WayChannels;
    table_memory #(.Requesters(Streams), .Banks(WayChannels), .LineBytes(64)) memory (
        .clk, .rst, .reqs(flow_reqs[way]), .resps(flow_resps[way]),
        .wr_valid(memory_valid[way]), .wr_ready(memory_ready[way]), .wr_line(memory_line), .wr_half(memory_half),
        .wr_data(write.data[255:0]), .wr_done(memory_done[way]), .wr_error(wr_errors[way]),
        .error(errors[At+:WayChannels]), .arlen(m_axi_arlen[At+:WayChannels]),
        .arvalid(m_axi_arvalid[At+:WayChannels]), .arready(m_axi_arready[At+:WayChannels]),
        .arid(m_axi_arid[At+:WayChannels]), .araddr(m_axi_araddr[At+:WayChannels]),
        .rvalid(m_axi_rvalid[At+:WayChannels]), .rready(m_axi_rready[At+:WayChannels]),
        .rid(m_axi_rid[At+:WayChannels]), .rdata(m_axi_rdata[At+:WayChannels]),
        .rresp(m_axi_rresp[At+:WayChannels]), .rlast(m_axi_rlast[At+:WayChannels]),
        .awvalid(m_axi_awvalid[At+:WayChannels]), .awready(m_axi_awready[At+:WayChannels]),
        .awaddr(m_axi_awaddr[At+:WayChannels]), .wvalid(m_axi_wvalid[At+:WayChannels]),
        .wready(m_axi_wready[At+:WayChannels]), .wdata(m_axi_wdata[At+:WayChannels]),
        .bvalid(m_axi_bvalid[At+:WayChannels]), .bready(m_axi_bready[At+:WayChannels]),
        .bresp(m_axi_bresp[At+:WayChannels])
    );
  end

  table_memory #(.Requesters(BridgeReads * Streams), .Banks(BridgeChannels), .LineBytes(32)) bridge_memory (
      .clk, .rst, .reqs(bridge_reqs), .resps(bridge_resps),
      .wr_valid(memory_valid[2]), .wr_ready(memory_ready[2]), .wr_line(memory_line), .wr_half(1'b0),
      .wr_data(write.data[255:0]), .wr_done(memory_done[2]), .wr_error(wr_errors[2]),
      .error(errors[FlowChannels+:BridgeChannels]),
      .arlen(m_axi_arlen[FlowChannels+:BridgeChannels]),
      .arvalid(m_axi_arvalid[FlowChannels+:BridgeChannels]), .arready(m_axi_arready[FlowChannels+:BridgeChannels]),
      .arid(m_axi_arid[FlowChannels+:BridgeChannels]), .araddr(m_axi_araddr[FlowChannels+:BridgeChannels]),
      .rvalid(m_axi_rvalid[FlowChannels+:BridgeChannels]), .rready(m_axi_rready[FlowChannels+:BridgeChannels]),
      .rid(m_axi_rid[FlowChannels+:BridgeChannels]), .rdata(m_axi_rdata[FlowChannels+:BridgeChannels]),
      .rresp(m_axi_rresp[FlowChannels+:BridgeChannels]), .rlast(m_axi_rlast[FlowChannels+:BridgeChannels]),
      .awvalid(m_axi_awvalid[FlowChannels+:BridgeChannels]), .awready(m_axi_awready[FlowChannels+:BridgeChannels]),
      .awaddr(m_axi_awaddr[FlowChannels+:BridgeChannels]), .wvalid(m_axi_wvalid[FlowChannels+:BridgeChannels]),
      .wready(m_axi_wready[FlowChannels+:BridgeChannels]), .wdata(m_axi_wdata[FlowChannels+:BridgeChannels]),
      .bvalid(m_axi_bvalid[FlowChannels+:BridgeChannels]), .bready(m_axi_bready[FlowChannels+:BridgeChannels]),
      .bresp(m_axi_bresp[FlowChannels+:BridgeChannels])
  );

  table_memory #(
      .Requesters(RouteReads * Streams), .Banks(RouteChannels), .LineBytes(32), .CacheLines(1024)
  ) route_memory (
      .clk, .rst, .reqs(route_reqs), .resps(route_resps),
      .wr_valid(memory_valid[3]), .wr_ready(memory_ready[3]), .wr_line(memory_line), .wr_half(1'b0),
      .wr_data(write.data[255:0]), .wr_done(memory_done[3]), .wr_error(wr_errors[3]),
      .error(errors[RouteAt+:RouteChannels]),
      .arlen(m_axi_arlen[RouteAt+:RouteChannels]),
      .arvalid(m_axi_arvalid[RouteAt+:RouteChannels]), .arready(m_axi_arready[RouteAt+:RouteChannels]),
      .arid(m_axi_arid[RouteAt+:RouteChannels]), .araddr(m_axi_araddr[RouteAt+:RouteChannels]),
      .rvalid(m_axi_rvalid[RouteAt+:RouteChannels]), .rready(m_axi_rready[RouteAt+:RouteChannels]),
      .rid(m_axi_rid[RouteAt+:RouteChannels]), .rdata(m_axi_rdata[RouteAt+:RouteChannels]),
      .rresp(m_axi_rresp[RouteAt+:RouteChannels]), .rlast(m_axi_rlast[RouteAt+:RouteChannels]),
      .awvalid(m_axi_awvalid[RouteAt+:RouteChannels]), .awready(m_axi_awready[RouteAt+:RouteChannels]),
      .awaddr(m_axi_awaddr[RouteAt+:RouteChannels]), .wvalid(m_axi_wvalid[RouteAt+:RouteChannels]),
      .wready(m_axi_wready[RouteAt+:RouteChannels]), .wdata(m_axi_wdata[RouteAt+:RouteChannels]),
      .bvalid(m_axi_bvalid[RouteAt+:RouteChannels]), .bready(m_axi_bready[RouteAt+:RouteChannels]),
      .bresp(m_axi_bresp[RouteAt+:RouteChannels])
  );

  table_memory #(.Requesters(HopReads * Streams), .Banks(NexthopChannels), .LineBytes(64)) nexthop_memory (
      .clk, .rst, .reqs(hop_reqs), .resps(hop_resps),
      .wr_valid(memory_valid[4]), .wr_ready(memory_ready[4]), .wr_line(memory_line), .wr_half(memory_half),
      .wr_data(memory_half ? write.data[511:256] : write.data[255:0]), .wr_done(memory_done[4]),
      .wr_error(wr_errors[4]),
      .error(errors[NexthopAt+:NexthopChannels]),
      .arlen(m_axi_arlen[NexthopAt+:NexthopChannels]),
      .arvalid(m_axi_arvalid[NexthopAt+:NexthopChannels]), .arready(m_axi_arready[NexthopAt+:NexthopChannels]),
      .arid(m_axi_arid[NexthopAt+:NexthopChannels]), .araddr(m_axi_araddr[NexthopAt+:NexthopChannels]),
      .rvalid(m_axi_rvalid[NexthopAt+:NexthopChannels]), .rready(m_axi_rready[NexthopAt+:NexthopChannels]),
      .rid(m_axi_rid[NexthopAt+:NexthopChannels]), .rdata(m_axi_rdata[NexthopAt+:NexthopChannels]),
      .rresp(m_axi_rresp[NexthopAt+:NexthopChannels]), .rlast(m_axi_rlast[NexthopAt+:NexthopChannels]),
      .awvalid(m_axi_awvalid[NexthopAt+:NexthopChannels]), .awready(m_axi_awready[NexthopAt+:NexthopChannels]),
      .awaddr(m_axi_awaddr[NexthopAt+:NexthopChannels]), .wvalid(m_axi_wvalid[NexthopAt+:NexthopChannels]),
      .wready(m_axi_wready[NexthopAt+:NexthopChannels]), .wdata(m_axi_wdata[NexthopAt+:NexthopChannels]),
      .bvalid(m_axi_bvalid[NexthopAt+:NexthopChannels]), .bready(m_axi_bready[NexthopAt+:NexthopChannels]),
      .bresp(m_axi_bresp[NexthopAt+:NexthopChannels])
  );

  // ---- Out

  localparam int unsigned OutWidth = $bits(hold_t) + $bits(beat_t);

  logic [Streams-1:0][OutWidth-1:0]        leaving, crossed;
  logic [Streams-1:0]                      out_last, crossed_valid, crossed_ready;
  logic [Streams-1:0][$clog2(Streams)-1:0] destination;
  logic [Streams-1:0][HoldGroups-1:0]      turns;
  logic [Streams-1:0][31:0]                kept, full;

  for (genvar i = 0; i < Streams; i++) begin : g_out
    assign out_last[i]    = out[i].beat.last;
    // What a line of a table says is the host's word: beyond the outputs there are, the first.
    assign destination[i] = out[i].egress < 4'(Streams) ? out[i].egress[$clog2(Streams)-1:0] : '0;
    assign leaving[i]     = {out[i].hold, out[i].beat};
  end

  crossbar #(.Inputs(Streams), .Outputs(Streams), .Width(OutWidth)) crossbar (
      .clk, .rst,
      .s_valid(out_valid), .s_ready(out_ready), .s_data(leaving), .s_last(out_last), .s_destination(destination),
      .m_valid(crossed_valid), .m_ready(crossed_ready), .m_data(crossed), .m_last()
  );

  for (genvar e = 0; e < Streams; e++) begin : g_hold
    hold #(.Releases(Streams)) hold (
        .clk, .rst,
        .s_valid(crossed_valid[e]), .s_ready(crossed_ready[e]),
        .s_hold(crossed[e][OutWidth-1:$bits(beat_t)]), .s_beat(crossed[e][$bits(beat_t)-1:0]),
        .m_valid(m_valid[e]), .m_ready(m_ready[e]), .m_beat(m_beat[e]),
        .turns(turns[e]), .kept(kept[e]), .full(full[e])
    );
  end

  always_ff @(posedge clk) begin
    released  <= 32'(turns);
    held      <= total(kept);
    hold_full <= total(full);
  end

  function automatic logic [31:0] total(logic [Streams-1:0][31:0] all);
    total = '0;
    for (int i = 0; i < Streams; i++) total = total + all[i];
  endfunction

endmodule

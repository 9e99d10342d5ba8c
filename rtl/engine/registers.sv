// SPDX-License-Identifier: Apache-2.0
// The card's registers behind AXI4-Lite, as rtl/registers.toml describes them.
//
// A write is answered 2 clocks after its address and data are both there, a read after 7: counters come from memory.
module registers
  import registers_pkg::*;
  import viaduct_pkg::*;
#(
    parameter int unsigned Pipes          = 2,
    parameter int unsigned FlowChannels   = 16,
    parameter int unsigned BridgeChannels = 4,
    parameter int unsigned RouteChannels  = 8,
    parameter int unsigned NexthopChannels = 4,
    parameter int unsigned Nexthops       = 16384,
    parameter int unsigned Flows          = 262144,
    parameter int unsigned Seen           = 8388608,
    parameter int unsigned FlowBits       = 23,   // buckets of a way, binary logarithm
    parameter int unsigned BridgeBits     = 16,   // lines of a way, likewise
    parameter int unsigned Route6Bits     = 18,   // lines of a way, likewise
    localparam int unsigned Channels      = FlowChannels + BridgeChannels + RouteChannels + NexthopChannels
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         awvalid,
    output logic         awready,
    input  logic [19:0]  awaddr,
    input  logic         wvalid,
    output logic         wready,
    input  logic [31:0]  wdata,
    output logic         bvalid,
    input  logic         bready,
    output logic [1:0]   bresp,
    input  logic         arvalid,
    output logic         arready,
    input  logic [19:0]  araddr,
    output logic         rvalid,
    input  logic         rready,
    output logic [31:0]  rdata,
    output logic [1:0]   rresp,
    // To the engine.
    output logic         enable,
    output logic [319:0] secret,
    output logic [1:0][31:0] budget,    // of guests' ports, of wires'
    output logic [7:0]   budget_reason,
    output logic         command_start,  // for a clock
    output logic [3:0]   command,        // command_e
    output logic [3:0]   command_table,  // table_e
    output logic [31:0]  command_address,
    output logic [511:0] command_data,
    input  logic         command_done,   // for a clock
    input  logic [31:0]  released,
    input  logic [31:0]  held,
    input  logic [31:0]  hold_full,
    input  logic [Channels-1:0] errors,  // channels that answer with an error, for a clock
    input  logic         write_failed,   // memory answered a write with an error: for a clock, before `done`
    output logic         select_take,    // for a clock, the first with a new `select`
    output logic [31:0]  select,
    input  logic [63:0]  value,          // of the counter selected, at most 5 clocks later
    output logic         seen_take,      // for a clock
    output logic [$clog2(Seen)-7:0] seen_word,
    input  logic [63:0]  seen,           // at most 5 clocks later
    output logic         event_take,     // for a clock
    input  logic [31:0]  flow_event
);

  localparam logic [31:0] Magic = 32'h56444354;

  logic [31:0] scratch, done;
  logic        busy;
  logic        write, read;
  logic [7:0]  page;
  logic [11:0] offset;

  assign bresp = 2'b00;
  assign rresp = 2'b00;

  // ---- Writes

  assign write   = awvalid && wvalid && !bvalid && !awready;
  assign page    = awaddr[19:12];
  assign offset  = awaddr[11:0];

  always_ff @(posedge clk) begin
    {awready, wready} <= {2{write}};
    if (write) bvalid <= 1'b1;
    else if (bready && !awready) bvalid <= 1'b0;
    {command_start, select_take, seen_take, event_take} <= '0;
    if (write) begin
      case ({8'd0, page})
        IdentityPage: if (offset == IdentityScratch) scratch <= wdata;
        CommandPage: begin
          if (offset < CommandTable) command_data[32*offset[5:2]+:32] <= wdata;
          if (offset == CommandTable) command_table <= wdata[3:0];
          if (offset == CommandAddress) command_address <= wdata;
          if (offset == CommandCommand && !busy) begin
            command       <= wdata[3:0];
            command_start <= 1'b1;
            busy          <= 1'b1;
          end
        end
        EnginePage: begin
          if (offset == EngineEnable) enable <= wdata[0];
          if (offset == EngineGuestBudget) budget[0] <= wdata;
          if (offset == EngineWireBudget) budget[1] <= wdata;
          if (offset == EngineBudgetReason) budget_reason <= wdata[7:0];
          if (offset >= EngineSecret && offset < EngineSecret + 12'd40) begin
            secret[32*(offset[5:2])+:32] <= wdata;
          end
        end
        CountersPage: begin
          if (offset == CountersSelect) {select_take, select} <= {1'b1, wdata};
          if (offset == CountersSeen) {seen_take, seen_word} <= {1'b1, wdata[$clog2(Seen)-7:0]};
          if (offset == CountersFlowEvent) event_take <= 1'b1;
        end
        default: ;
      endcase
    end
    if (command_done) begin
      busy <= 1'b0;
      done <= done + 32'd1;
    end
    if (rst) begin
      {awready, wready, bvalid, command_start, select_take, seen_take, event_take, busy, enable} <= '0;
      {done, scratch, select, command, command_table, command_address} <= '0;
      {secret, budget, budget_reason} <= '0;
    end
  end

  // ---- Errors of memory

  logic [31:0]         memory_errors;
  logic [5:0]          more_errors;
  logic [Channels-1:0] failing;
  logic                unwritten;

  always_ff @(posedge clk) begin
    more_errors   <= 6'($countones(errors));
    memory_errors <= memory_errors + 32'(more_errors);
    failing       <= failing | errors;
    unwritten     <= unwritten || write_failed;
    if (rst) {memory_errors, more_errors, failing, unwritten} <= '0;
  end

  // ---- A counter's value, as it was when it was selected: both halves of it are of that moment

  logic [2:0]  settling;
  logic [63:0] snapshot;

  always_ff @(posedge clk) begin
    if (write && {8'd0, page} == CountersPage && offset == CountersSelect) settling <= 3'd6;
    else if (settling != 0) settling <= settling - 3'd1;
    if (settling == 3'd1) snapshot <= value;
    if (rst) settling <= '0;
  end

  // ---- Reads

  logic [2:0]  wait_count;
  logic [19:0] address;
  logic [31:0] found;

  assign read = arvalid && !rvalid && wait_count == 0 && !arready;

  always_ff @(posedge clk) begin
    arready <= read;
    if (read) begin
      address    <= araddr;
      wait_count <= 3'd6;
    end else if (wait_count != 0) begin
      wait_count <= wait_count - 3'd1;
      if (wait_count == 3'd1) begin
        rvalid <= 1'b1;
        rdata  <= found;
      end
    end
    if (rvalid && rready) rvalid <= 1'b0;
    if (rst) {arready, rvalid, wait_count} <= '0;
  end

  always_comb begin
    found = '0;
    case ({8'd0, address[19:12]})
      IdentityPage: begin
        case (address[11:0])
          IdentityMagic:       found = Magic;
          IdentityRevision:    found = Version;
          IdentityPipes:       found = 32'(Pipes) << 8 | 32'(Pipes);
          IdentityChannels:    begin
            found = {8'(NexthopChannels), 8'(RouteChannels), 8'(BridgeChannels), 8'(FlowChannels)};
          end
          IdentityClock:       found = 32'd250;
          IdentityNexthops:    found = 32'd1 << $bits(viaduct_pkg::nexthop_id_t);
          IdentityNexthopsOnChip: found = 32'(Nexthops);
          IdentityFlowBuckets: found = 32'(FlowBits);
          IdentityBridgeLines: found = 32'(BridgeBits);
          IdentityRoute6Lines: found = 32'(Route6Bits);
          IdentityFlowCounters: found = 32'(Flows);
          IdentityFlowsSeen:   found = 32'(Seen);
          IdentityStashFlows:  found = 32'(StashFlows);
          IdentityScratch:     found = scratch;
          IdentityBlocks:      found = 32'(Blocks);
          default: if (address[11:0] >= IdentityDirectory && address[11:0] < IdentityDirectory + 12'(4 * Blocks)) begin
            found = Directory[32*address[3:2]+:32];
          end
        endcase
      end
      CommandPage: begin
        case (address[11:0])
          CommandTable:   found = 32'(command_table);
          CommandAddress: found = command_address;
          CommandBusy:    found = 32'(busy);
          CommandDone:    found = {unwritten, done[30:0]};
          default: if (address[11:0] < CommandTable) found = command_data[32*address[5:2]+:32];
        endcase
      end
      EnginePage: begin
        case (address[11:0])
          EngineEnable:       found = 32'(enable);
          EngineReleased:     found = released;
          EngineHeld:         found = held;
          EngineHoldFull:     found = hold_full;
          EngineMemoryErrors: found = memory_errors;
          EngineFailingChannels: found = 32'(failing);
          EngineGuestBudget:  found = budget[0];
          EngineWireBudget:   found = budget[1];
          EngineBudgetReason: found = 32'(budget_reason);
          default: ;
        endcase
      end
      CountersPage: begin
        case (address[11:0])
          CountersSelect: found = select;
          CountersLow:       found = snapshot[31:0];
          CountersHigh:      found = snapshot[63:32];
          CountersSeenLow:   found = seen[31:0];
          CountersSeenHigh:  found = seen[63:32];
          CountersFlowEvent: found = flow_event;
          default: ;
        endcase
      end
      default: ;
    endcase
  end

endmodule

// SPDX-License-Identifier: Apache-2.0
// Does what the host's command block says: writes a line of a table, clears many, or waits until all packets that came
// before have left.
//
// A write on chip takes 2 clocks, one to memory as long as that takes, a barrier as long as packets take; a clear as long
// as its writes, one after the other.
module commands
  import registers_pkg::*;
  import viaduct_pkg::*;
#(
    parameter int unsigned Pipes    = 4,     // of both directions
    parameter int unsigned Nexthops = 16384  // on chip
) (
    input  logic                   clk,
    input  logic                   rst,
    input  logic                   start,
    input  logic [3:0]             command,
    input  logic [3:0]             to_table,
    input  logic [31:0]            address,
    input  logic [511:0]           data,
    output logic                   done,
    // Operands are taken with `start`: the next ones may be put there while a command runs.
    // Tables on chip.
    output logic                   wr_valid,
    output logic [3:0]             wr_table,
    output logic [19:0]            wr_address,
    output logic [511:0]           wr_data,
    // Memories: way 0 and 1 of the flow table, bridge, route, nexthop (its lines in two halves).
    output logic [4:0]             memory_valid,
    input  logic [4:0]             memory_ready,
    output line_t                  memory_line,
    output logic                   memory_half,
    input  logic [4:0]             memory_done,
    // Packets that came into each pipe and that left it.
    input  logic [Pipes-1:0][31:0] came,
    input  logic [Pipes-1:0][31:0] left
);

  typedef enum logic [2:0] {
    Idle,
    Chip,
    Memory,
    Written,
    Barrier
  } state_e;

  state_e                 state;
  logic [Pipes-1:0][31:0] came_before;
  logic [Pipes-1:0]       gone;
  logic [3:0]             target;
  logic [4:0]             chosen;
  logic [511:0]           bytes;
  logic                   clearing, upper;
  logic [31:0]            at, more;  // lines behind this one

  assign wr_table    = target;
  assign wr_address  = at[19:0];
  assign wr_data     = clearing ? '0 : bytes;
  assign memory_line = line_t'(target == TableFlow ? at[27:1] : at[26:0]);
  assign memory_half = target == TableFlow ? at[0] : upper;

  always_comb begin
    chosen = '0;
    case (target)
      TableFlow:    chosen = at[31] ? 5'b00010 : 5'b00001;
      TableBridge:  chosen = 5'b00100;
      TableRoute:   chosen = 5'b01000;
      TableNexthop: chosen = 5'b10000;
      default: ;
    endcase
    // Differences, so that the counts may wrap.
    for (int i = 0; i < Pipes; i++) gone[i] = $signed(left[i] - came_before[i]) >= 0;
  end

  function automatic state_e place(logic [3:0] of, logic [31:0] line);
    return of == TableFlow || of == TableBridge || of == TableRoute || of == TableNexthop && line >= 32'(Nexthops)
        ? Memory : Chip;
  endfunction

  assign wr_valid     = state == Chip;
  assign memory_valid = state == Memory ? chosen : '0;

  always_ff @(posedge clk) begin
    done <= 1'b0;
    case (state)
      Idle: if (start) begin
        came_before <= came;
        {target, at, bytes} <= {to_table, address, data};
        clearing    <= command == CommandClear;
        more        <= command == CommandClear ? data[31:0] - 32'd1 : '0;
        case (command)
          CommandWrite:   state <= place(to_table, address);
          CommandClear: begin
            if (data[31:0] == '0) done <= 1'b1;
            else state <= place(to_table, address);
          end
          CommandBarrier: state <= Barrier;
          default:        done <= 1'b1;
        endcase
      end
      Memory: if (|(memory_valid & memory_ready)) state <= Written;
      Chip, Written: if (state == Chip || |(memory_done & chosen)) begin
        if (state == Written && target == TableNexthop && !upper) begin
          {state, upper} <= {Memory, 1'b1};
        end else begin
          at    <= at + 32'd1;
          more  <= more - 32'd1;
          upper <= 1'b0;
          if (more != '0) state <= place(target, at + 32'd1);
          else {state, done} <= {Idle, 1'b1};
        end
      end
      Barrier: if (&gone) {state, done} <= {Idle, 1'b1};
      default: state <= Idle;
    endcase
    if (rst) {state, done, upper} <= {Idle, 2'b00};
  end
endmodule

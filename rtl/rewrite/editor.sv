// SPDX-License-Identifier: Apache-2.0
//
// Edits the IP header of what is kept, in its first beat: traffic class, TTL, IPv4 addresses. Checksums are updated
// incrementally (RFC 1624, equation 3): they stay as right or as wrong as they were. One update by the sum of all changes
// gives what one after the other would: the end-around carry makes a sum 0 only if all that was added is 0.
// `added` is what the edits add to the sum of what is kept. An IPv4 header's sum stays, by its own checksum; addresses are
// also in the checksum of TCP and UDP, which takes back what they add.
// Latency: 5 enabled cycles. Throughput: 1 beat an enabled cycle.

module editor
  import viaduct_pkg::*;
(
    input  logic                 clk,
    input  logic                 enable,
    input  logic                 first,
    input  logic [BeatWidth-1:0] data,
    // The header builder has the rest.
    /* verilator lint_off UNUSEDSIGNAL */
    input  edit_t                edit,
    /* verilator lint_on UNUSEDSIGNAL */
    output logic [         19:0] added,   // 2 cycles ahead of `edited`, with the packet's first beat
    output logic [BeatWidth-1:0] edited
);

  // Where the IP header may be: without Ethernet, behind it, and behind one tag or two.
  localparam int unsigned Places = 4;
  localparam logic [Places-1:0][4:0] Place = {5'd22, 5'd18, 5'd14, 5'd0};

  // What of an edit is done here.
  typedef struct packed {
    logic        active;
    logic [4:0]  l3_at;
    logic        v6;
    logic        set_tos;
    logic [7:0]  tos;
    logic        decrement_ttl;
    logic        nat_src;
    logic        nat_dst;
    logic [31:0] new_src;
    logic [31:0] new_dst;
    logic        tcp;
    logic        udp;
  } change_t;

  // Fields as numbers: the first byte of the wire highest.
  typedef struct packed {
    logic [15:0] first;      // version, header length, traffic class
    logic [7:0]  hop_limit;
    logic [15:0] ttl;        // and protocol
    logic [15:0] checksum;
    logic [31:0] src;
    logic [31:0] dst;
    logic [15:0] l4;         // checksum of TCP or UDP
  } fields_t;

  function automatic logic [15:0] word(input logic [BeatWidth-1:0] beat, input int unsigned at);
    return {beat[8*at+:8], beat[8*at+8+:8]};
  endfunction

  function automatic logic [15:0] fold(input logic [19:0] sum);
    logic [16:0] once;
    once = 17'(sum[15:0]) + 17'(sum[19:16]);
    return once[15:0] + 16'(once[16]);
  endfunction

  // What replacing a word adds to a sum.
  function automatic logic [19:0] replace(input logic [15:0] old, input logic [15:0] now);
    return {4'd0, ~old} + {4'd0, now};
  endfunction

  function automatic logic [19:0] replace_address(input logic [31:0] old, input logic [31:0] now);
    return replace(old[31:16], now[31:16]) + replace(old[15:0], now[15:0]);
  endfunction

  logic [5:1][BeatWidth-1:0] beat;
  change_t [4:1] change;
  always_ff @(posedge clk) begin
    if (enable) begin
      beat[1] <= data;
      change[1] <= '{
          active: first && edit.ip,
          l3_at: edit.l3_at,
          v6: edit.v6,
          set_tos: edit.set_tos,
          tos: edit.tos,
          decrement_ttl: edit.decrement_ttl,
          nat_src: edit.nat_src && !edit.v6,
          nat_dst: edit.nat_dst && !edit.v6,
          new_src: edit.new_src,
          new_dst: edit.new_dst,
          tcp: edit.l4 == L4Tcp,
          udp: edit.l4 == L4Udp
      };
      beat[4:2] <= beat[3:1];
      change[4:2] <= change[3:1];
    end
  end

  // Stage 2: the fields.
  fields_t found;
  fields_t fields;
  always_comb begin
    found = '0;
    for (int unsigned p = 0; p < Places; p++) begin
      if (change[1].l3_at == Place[p]) begin
        found.first = word(beat[1], 32'(Place[p]));
        found.hop_limit = beat[1][8*(Place[p]+7)+:8];
        found.ttl = word(beat[1], 32'(Place[p]) + 8);
        found.checksum = word(beat[1], 32'(Place[p]) + 10);
      end
    end
    // Addresses are translated at place 0, behind 20 bytes of header.
    found.src = {word(beat[1], 12), word(beat[1], 14)};
    found.dst = {word(beat[1], 16), word(beat[1], 18)};
    found.l4 = change[1].tcp ? word(beat[1], 36) : word(beat[1], 26);
  end
  always_ff @(posedge clk) if (enable) fields <= found;

  // Stage 3: new words, and the sums of what changes.
  fields_t changed;
  fields_t changed_q;
  logic [19:0] own;
  logic [19:0] own_q;
  logic [19:0] addresses;
  logic [19:0] addresses_q;
  logic [19:0] content;
  always_comb begin
    changed = fields;
    if (change[2].set_tos) begin
      if (change[2].v6) changed.first[11:4] = change[2].tos;
      else changed.first[7:0] = change[2].tos;
    end
    if (change[2].decrement_ttl) begin
      if (fields.ttl[15:8] != 0) changed.ttl[15:8] = fields.ttl[15:8] - 8'd1;
      if (fields.hop_limit != 0) changed.hop_limit = fields.hop_limit - 8'd1;
    end
    own = {4'd0, ~fields.checksum};
    if (change[2].set_tos) own += replace(fields.first, changed.first);
    if (change[2].decrement_ttl) own += replace(fields.ttl, changed.ttl);
    addresses = '0;
    if (change[2].nat_src) begin
      changed.src = change[2].new_src;
      addresses += replace_address(fields.src, change[2].new_src);
    end
    if (change[2].nat_dst) begin
      changed.dst = change[2].new_dst;
      addresses += replace_address(fields.dst, change[2].new_dst);
    end
    content = '0;
    if (change[2].active && change[2].v6) begin
      content = replace(fields.first, changed.first) + replace(16'(fields.hop_limit), 16'(changed.hop_limit));
    end else if (change[2].active && (change[2].tcp || (change[2].udp && fields.l4 != 0))) begin
      if (change[2].nat_src) content += replace_address(change[2].new_src, fields.src);
      if (change[2].nat_dst) content += replace_address(change[2].new_dst, fields.dst);
    end
  end
  always_ff @(posedge clk) begin
    if (enable) begin
      changed_q <= changed;
      own_q <= own;
      addresses_q <= addresses;
      added <= content;
    end
  end

  // Stage 4: checksums. One of UDP that is 0 is none, and one that becomes 0 is sent as ffff (RFC 768).
  fields_t summed;
  fields_t final_q;
  always_comb begin
    summed = changed_q;
    summed.checksum = ~fold(own_q + addresses_q);
    summed.l4 = ~fold({4'd0, ~changed_q.l4} + addresses_q);
    if (change[3].udp && changed_q.l4 == 0) summed.l4 = '0;
    else if (change[3].udp && summed.l4 == 0) summed.l4 = '1;
  end
  always_ff @(posedge clk) if (enable) final_q <= summed;

  // Stage 5: into the beat.
  logic [BeatWidth-1:0] done;
  always_comb begin
    done = beat[4];
    for (int unsigned p = 0; p < Places; p++) begin
      if (change[4].active && change[4].l3_at == Place[p]) begin
        done[8*Place[p]+:16] = {final_q.first[7:0], final_q.first[15:8]};
        if (change[4].v6) begin
          done[8*(Place[p]+7)+:8] = final_q.hop_limit;
        end else begin
          done[8*(Place[p]+8)+:8]  = final_q.ttl[15:8];
          done[8*(Place[p]+10)+:16] = {final_q.checksum[7:0], final_q.checksum[15:8]};
        end
      end
    end
    if (change[4].active && (change[4].nat_src || change[4].nat_dst)) begin
      done[8*12+:64] = {<<8{final_q.src, final_q.dst}};
      if (change[4].tcp) done[8*36+:16] = {<<8{final_q.l4}};
      if (change[4].udp) done[8*26+:16] = {<<8{final_q.l4}};
    end
  end
  always_ff @(posedge clk) if (enable) beat[5] <= done;
  assign edited = beat[5];

`ifndef SYNTHESIS
  always_ff @(posedge clk) begin
    if (enable && first && edit.ip) begin
      assert (edit.l3_at inside {5'd0, 5'd14, 5'd18, 5'd22}) else $error("IP header at %0d", edit.l3_at);
      if (edit.nat_src || edit.nat_dst) begin
        assert (!edit.v6 && edit.l3_at == 0 && edit.header_len == 20) else $error("address translation");
      end
    end
  end
`endif

endmodule

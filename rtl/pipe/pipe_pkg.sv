// SPDX-License-Identifier: Apache-2.0
// What a pipe keeps of a packet between its stages.
package pipe_pkg;

  import registers_pkg::*;
  import viaduct_pkg::*;

  // What `verdict` needs of a packet besides its header, once its look-ups are done.
  typedef struct packed {
    punt_e       punt;          // PuntNone: look-ups were made
    path_e       path;
    logic        policy;        // the sender's connections are tracked
    logic [7:0]  generation;    // of flow entries that hold
    logic        check_source;  // its source MAC must be known to be where it came from
    vrf_id_t     vrf;
    nexthop_id_t nexthop;       // of a label
    logic [31:0] entropy;
  } context_t;

  // Look-ups that a packet waits for. The upper two come in place of others, where a nexthop had to be fetched: `own_hop` of
  // `flow`, `hop` of `bridge` or `route`.
  typedef struct packed {
    logic hop;
    logic own_hop;
    logic source;
    logic bridge;
    logic route;
    logic flow;
  } marks_t;

  // What a packet's way comes to, for the counters.
  typedef struct packed {
    port_id_t    ingress;
    logic [15:0] size;      // as it came, bytes
    logic        punted;
    logic        dropped;
    logic [7:0]  reason;    // `punt` or `model::DropReason`
    port_id_t    egress;
    logic [15:0] sent_size; // as it leaves, bytes
    logic        flow;
    logic [23:0] index;     // counter of the flow
  } conclusion_t;

  function automatic logic group(logic [47:0] mac);
    return mac[40];
  endfunction

  // Whether routers forward to and from it (as `model`'s `is_routable`).
  function automatic logic routable(logic v6, logic [127:0] address);
    logic [31:0] v4;
    v4 = address[31:0];
    if (v6) return !(address[127:120] == 8'hff || address[127:1] == '0 || address[127:118] == 10'h3fa);
    return !(v4[31:28] == 4'he || v4 == '1 || v4 == '0 || v4[31:24] == 8'd127 || v4[31:16] == 16'ha9fe);
  endfunction

endpackage

// SPDX-License-Identifier: Apache-2.0
// What goes into a pipe and out of it, and what it keeps of a packet between its stages.
package pipe_pkg;

  import registers_pkg::*;
  import viaduct_pkg::*;

  // ---- Around a pipe

  // What the host sets.
  typedef struct packed {
    logic         enable;       // 0: all packets go to the host
    logic [319:0] secret;       // of hashes
    logic [31:0]  budget;       // see `punt_budget`
    logic [7:0]   budget_reason;
  } settings_t;

  // A beat of a packet that leaves, and where.
  typedef struct packed {
    logic [3:0] egress;
    hold_t      hold;
    beat_t      beat;
  } sent_t;

  // A requester of the tables' memories for each read that look-ups make at once.
  typedef struct packed {
    memory_req_t [1:0] flow;    // the table's ways
    memory_req_t [3:0] bridge;  // its ways for destinations, then for sources
    memory_req_t [4:0] route;   // the IPv4 trie's levels, then the ways of IPv6 prefixes
    memory_req_t [1:0] hop;     // nexthops of flows, then of the other tables
  } pipe_reqs_t;

  typedef struct packed {
    memory_resp_t [1:0] flow;
    memory_resp_t [3:0] bridge;
    memory_resp_t [4:0] route;
    memory_resp_t [1:0] hop;
  } pipe_resps_t;

  // ---- In it

  // What `verdict` needs of a packet besides its header, once its look-ups are done.
  typedef struct packed {
    punt_e       punt;          // PuntNone: look-ups were made
    path_e       path;
    logic        policy;        // the sender's connections are tracked
    logic        exact;         // it leaves by its flow alone, between the MACs of the flow's nexthop
    logic [7:0]  generation;    // of flow entries that hold
    logic        check_source;  // its source MAC must be known to be where it came from
    vrf_id_t     vrf;
    nexthop_id_t nexthop;       // of a label
    logic [31:0] entropy;
  } context_t;

  // What is known of a packet once its look-ups are done.
  typedef struct packed {
    tag_t            tag;
    header_t         header;
    context_t        ctx;
    flow_result_t    flow;
    forward_result_t route;
    bridge_result_t  bridge;
    bridge_result_t  source;
    nexthop_t        own_hop;   // fetched: the flow's nexthop
    nexthop_t        hop;       // that of bridge, route or label
  } known_t;

  // Look-ups that a packet waits for. The upper two come in place of others, where a nexthop had to be fetched:
  // `own_hop` of `flow`, `hop` of `bridge` or `route`.
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

  // What is done with a packet, and what counts of it.
  typedef struct packed {
    edit_t       edit;
    logic [3:0]  egress;
    hold_t       hold;
    conclusion_t conclusion;
  } decision_t;

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

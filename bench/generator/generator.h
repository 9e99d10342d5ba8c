/* A load generator on one core that plays guests, and hosts on a wire, over DPDK ports (virtio-user).
 *
 *   generator EAL-OPTIONS -- [--queue-size N] [--segmentation]
 *       --stream tx=PORT,rx=PORT,size=BYTES[,flows=N][,random=1][,rate=PPS][,stamp=1][,...]
 *       --forward from=PORT,to=PORT,source=MAC,destination=MAC     a guest that forwards
 *       --probe a=PORT,b=PORT,size=BYTES[,interval=US][,...]       round trips a, switch, b, switch, a
 *       --neighbour port=PORT,address=IP,mac=MAC                   answers ARP there
 *       --announce port=PORT,mac=MAC                               as a guest that comes up
 *
 * It prints {"event": "ready"} once its ports are up, then obeys lines of standard input:
 *
 *   run SECONDS           clears the counters, makes traffic, lets the device drain, prints the counters as one line
 *   share SECONDS         the same without real-time priority: a device that has threads on this core gets its share
 *   rate STREAM PPS       changes a stream's rate, 0: as fast as possible
 *
 * Between runs it sleeps, so that whoever gives the commands can read the device's counters at rest. Frame sizes count
 * the FCS of 4 bytes, as everybody's do. Everything is on one core, so receive queues are always being emptied, and
 * time stamps need no synchronised clocks.
 */
#ifndef GENERATOR_H
#define GENERATOR_H

#include <rte_ether.h>
#include <rte_mbuf.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	MAX_PORTS = 40,
	MAX_STREAMS = 24,
	MAX_FORWARDS = 16,
	MAX_NEIGHBOURS = 8,
	MAX_ANNOUNCED = 40,
	TX_BURST = 32,
	RX_BURST = 64,
	FCS = 4,
};

/* ------------------------------------------------------------------------------------------------ frames */

enum encapsulation { PLAIN, VXLAN, MPLS_OVER_UDP };

/* The form of frames. Flow i has source port 1024 + i mod 16384 and source address `source_ip` + i / 16384. */
struct frame_spec {
	uint32_t size; /* of the guest's frame, FCS included */
	uint32_t flows, first_flow;
	bool random; /* flows in random order instead of one after the other */
	bool tcp;
	uint32_t segment; /* TCP payload per segment, for frames that the receiver or the wire cuts; 0: none */
	struct rte_ether_addr source, destination;
	uint32_t source_ip, destination_ip; /* host order */
	uint16_t destination_port;
	enum encapsulation encapsulation;
	uint32_t id; /* VNI or label */
	struct rte_ether_addr outer_source, outer_destination;
	uint32_t outer_source_ip, outer_destination_ip;
};

/* A built frame, and what is needed to turn it into that of another flow. */
struct frame {
	uint16_t length;
	uint16_t ip;         /* offset of the guest's IPv4 header */
	uint16_t outer_port; /* offset of the tunnel's UDP source port, 0: no tunnel */
	uint32_t ip_sum;     /* sum of the IPv4 header without source address and checksum */
	uint8_t bytes[9216];
};

void frame_build(const struct frame_spec *spec, struct frame *frame);
void frame_set_flow(const struct frame_spec *spec, const struct frame *frame, uint8_t *bytes, uint32_t flow);

/* Returns the offset of the time stamp in a frame with this offset of its IPv4 header. */
static inline unsigned stamp_at(unsigned ip) { return ip + 28; }

/* ------------------------------------------------------------------------------------------------ histogram */

enum { HISTOGRAM_BITS = 6, HISTOGRAM_BUCKETS = (40 - HISTOGRAM_BITS) << HISTOGRAM_BITS };

/* Logarithmic buckets, each under 1.6 % wide. */
struct histogram {
	uint64_t count[HISTOGRAM_BUCKETS];
	uint64_t total, max;
	double sum;
};

void histogram_add(struct histogram *histogram, uint64_t ticks);
void histogram_print(const struct histogram *histogram, double ticks_per_us);

/* ------------------------------------------------------------------------------------------------ actors */

struct stream {
	int tx, rx;
	double rate; /* packets per second, 0: as fast as possible */
	bool stamp;
	struct frame_spec spec;

	struct frame frame;
	struct rte_mempool *pool;
	struct rte_mbuf *pending[TX_BURST];
	unsigned head, tail; /* places in `pending` */
	uint32_t next_flow;
	uint64_t random_state;
	double tokens;
	uint64_t last;
	uint64_t sent, calls, refused; /* refused: calls for which the ring had no room */
};

struct forward {
	int from, to;
	struct rte_ether_addr source, destination;
	uint64_t forwarded, dropped;
};

struct probe {
	int a, b;
	double interval; /* microseconds from one round trip to the next; 0: no pause */
	struct frame_spec spec;
	struct frame frame;
	struct rte_mempool *pool;
	bool waiting;
	uint64_t sent_at, next_at, timeouts;
	struct histogram histogram;
};

struct neighbour {
	int port;
	uint32_t address;
	struct rte_ether_addr mac;
};

struct announced {
	int port;
	struct rte_ether_addr mac;
};

/* Packets that came in at a port. */
struct port {
	uint64_t packets, bytes;
	uint64_t unexpected; /* with a length different from that of the stream that ends here */
	uint64_t drained;    /* after the end of the run */
	uint32_t expected_length;
	unsigned stamp_ip; /* offset of the IPv4 header of stamped frames, 0: they have no stamps */
	int forward, probe_a, probe_b;
	struct histogram *latency; /* one way, where stamped */
};

struct generator {
	struct stream streams[MAX_STREAMS];
	struct forward forwards[MAX_FORWARDS];
	struct neighbour neighbours[MAX_NEIGHBOURS];
	struct announced announced[MAX_ANNOUNCED];
	struct probe probe;
	struct port ports[MAX_PORTS];
	unsigned stream_count, forward_count, neighbour_count, announced_count, port_count;
	bool has_probe;
	bool segmentation; /* whether guests send and take TCP frames larger than the MTU */
	uint16_t queue_size;
	double hz;
	struct rte_mempool *small_pool; /* for packets that are sent now and then */
	/* Ticks of the last run. */
	uint64_t ticks, busy_ticks;
};

void options_parse(struct generator *generator, int argc, char **argv);
void ports_start(struct generator *generator);
void ports_stop(struct generator *generator);
void actors_prepare(struct generator *generator);
void announce(struct generator *generator);
unsigned stream_send(struct generator *generator, struct stream *stream, uint64_t now);
unsigned probe_send(struct generator *generator, uint64_t now);
/* Takes what has come in at a port; returns how many packets. */
unsigned port_receive(struct generator *generator, unsigned port);
void report_print(const struct generator *generator);

/* Makes a pool whose buffers all hold this frame. Nobody writes to buffers that are only sent, so they keep it. */
struct rte_mempool *template_pool(const char *name, unsigned count, const struct frame *frame);

#endif

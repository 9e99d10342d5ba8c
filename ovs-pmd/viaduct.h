/* The driver's own structures. */
#ifndef VIADUCT_H
#define VIADUCT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include <rte_log.h>

#include "abi.h"
#include "protocol.h"

extern int viaduct_log;
#define LOG(level, ...) rte_log(RTE_LOG_##level, viaduct_log, "viaduct: " __VA_ARGS__)

/* The counters of one session, which flows of that session still read when it has ended. */
struct counters {
	const struct viaduct_counter *at;
	uint32_t count;
	uint32_t users;
};

/* One direction of a port's rings. */
struct ring {
	struct viaduct_ring *shared;
	struct viaduct_packet *packets;
	uint8_t *slots;
	uint32_t next; /* the slot that this side uses next */
};

/* A port's memory in one session. */
struct rings {
	void *memory;
	size_t length;
	const struct viaduct_page *page;
	uint32_t slots; /* of each ring, a power of two */
	struct ring rx, tx;
	_Atomic uint64_t taken; /* number of slots of rx that were taken; the last 32 bits equal `rx.next` */
	const struct marks *marks; /* the session's */
	int bell;
};

/* The part of a port that one thread uses at a time. */
struct queue {
	struct port *port;
	struct rte_mempool *pool;
	atomic_uint busy; /* in a burst, so the rings stay mapped */
	/* Packets that went through OVS. */
	uint64_t packets, bytes, errors, no_memory;
};

struct port {
	LIST_ENTRY(port) next;
	struct session *session;
	struct rte_eth_dev *dev;
	char name[VIADUCT_NAME];
	uint32_t handle; /* number in sessions, and in DPDK */
	bool open;       /* in this session */
	bool refused;    /* in this session, and that was logged */
	_Atomic(struct rings *) rings;
	struct queue rx, tx;
	struct rte_ether_addr mac;
	uint32_t qos; /* what OVS does to its packets, as last told */
	uint16_t mtu; /* as set; 0: never set */
	atomic_bool down; /* OVS set it down */
	LIST_HEAD(, rte_flow) flows;
	/* Counts of all sessions; viaductd's counts at the last look; and the sum at the last reset. */
	struct viaduct_page sum, seen, base;
};

/* The connection to one viaductd. */
struct session {
	LIST_ENTRY(session) next;
	char path[108];
	pthread_mutex_t lock; /* guards everything below, ports and flows, and lets one request wait for its answer */
	/* Guards what readers of links and counters need. Nobody waits while holding it, so a viaductd that does not
	 * answer keeps nobody from reading. Writers hold both locks, and take this one last. */
	pthread_mutex_t view;
	int socket;           /* -1: not connected. Only the thread closes it */
	bool broken;          /* the thread is about to close it */
	bool silent;          /* viaductd did not answer in time: only the thread waits for it again */
	struct counters *counters;
	struct marks *marks;
	LIST_HEAD(, port) ports;
	/* Requests whose answers have not been read, the oldest first: the flows that they create, or NULL. */
	struct rte_flow *under_way[VIADUCT_AHEAD];
	uint32_t oldest, waiting; /* place of the oldest, and number of requests */
	uint32_t together; /* most requests in a message */
	uint16_t level; /* of viaductd's protocol */
	bool settled; /* viaductd knows that all ports are open */
	_Atomic int64_t next_count; /* when the counters are brought up to date again, milliseconds */
	_Atomic int64_t counted_at; /* when they were last up to date */
	/* Whether viaductd has been asked to bring them up to date, when, and the place after that request. */
	bool counting;
	int64_t asked_at;
	uint32_t counted_by;
	/* Requests to be sent soon in one message, by the thread if nobody else does. */
	uint8_t gathered[VIADUCT_MESSAGE];
	size_t gathered_length;
	uint32_t gathered_count;
	int bell;   /* wakes the thread */
	bool dozes; /* the thread looks for gathered requests only once it is woken */
	/* The last message, and how many of its answers have been taken. */
	struct viaduct_answer answers[VIADUCT_AHEAD];
	uint32_t there, taken;
	uint64_t vouched[64]; /* forms of flows that viaductd will accept; 0: none */
};

struct rte_flow {
	LIST_ENTRY(rte_flow) next;
	struct port *port;
	bool live; /* viaductd has the flow */
	bool waits; /* the answer has not been read */
	bool cut; /* a port to which it sends was closed: it is for OVS for good */
	uint64_t id;
	uint32_t counter;
	uint32_t mark; /* by which OVS recognises packets that it forwards itself; 0: none */
	struct counters *counters;
	/* Counted since the last reset, and how much of that OVS has read; and viaductd's counter at the last look. */
	struct viaduct_counter sum, told, seen;
	struct viaduct_flow_create *request; /* kept for the next session */
	uint64_t form; /* hash that flows share if they differ only in values */
};

/* session.c */
struct session *session_find(const char *path);
int session_add(struct session *session, struct port *port);
void session_remove(struct port *port);
int session_mtu(struct port *port, uint16_t mtu);
int session_link(struct port *port);
int session_ask(struct session *session, void *request, size_t length, struct viaduct_answer *answer, int *files);
int session_send(struct session *session, void *request, size_t length, struct rte_flow *flow);
void session_collect(struct session *session, bool all);
void session_count(struct session *session);
void sessions_look_at_qos(void);
void sessions_tell_settled(void);
void counters_release(struct counters *counters);
void *map_file(int file, uint64_t length, int access);

/* ovsdb.c */
void ovsdb_begin(void);
uint32_t ovsdb_qos(const char *device);
int ovsdb_devices(void);
bool ovsdb_has(const char *device);

/* ring.c */
struct rings *rings_map(int file, int bell, uint32_t slots);
void rings_put(struct port *port, struct rings *rings);
uint16_t ring_receive(void *queue, struct rte_mbuf **packets, uint16_t count);
uint16_t ring_send(void *queue, struct rte_mbuf **packets, uint16_t count);

/* mark.c */
struct marks *marks_new(uint32_t count);
uint32_t mark_of(const struct marks *marks, uint32_t counter, uint32_t port, uint64_t at);
void mark_put(const struct rte_flow *flow);
void mark_withdraw(const struct rte_flow *flow);
void mark_burst(const struct port *port);
void mark_close(const struct port *port);
bool mark_wait(void);

/* flow.c */
const struct rte_flow_ops *flow_ops(void);
void flow_replay(struct rte_flow *flow);
void flow_answered(struct rte_flow *flow, struct viaduct_answer *answer);
void flow_lost(struct rte_flow *flow);
void flow_forget_all(struct port *port);
void flows_cut(struct port *port, uint32_t handle);

/* ethdev.c */
struct port *port_of(uint16_t dpdk_id);
const char *port_device(const struct port *port);
void port_tell_link(struct port *port);
void port_count(struct port *port, const struct viaduct_page *page, bool goes_on);

/* Adds to a sum what viaductd's count grew since it was `seen`, also if it wrapped around. A count that became
 * smaller has begun anew: nobody is told of almost 2^64 packets. */
static inline void count_on(uint64_t *sum, uint64_t *seen, const uint64_t *at)
{
	uint64_t now = __atomic_load_n(at, __ATOMIC_RELAXED);

	if ((int64_t)(now - *seen) > 0)
		*sum += now - *seen;
	*seen = now;
}

#endif

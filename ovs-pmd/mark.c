/* Marks, by which OVS recognises the flow of a packet that it forwards itself.
 *
 * viaductd only tells which counter a packet's flow has. Only this driver knows the mark of that flow, so no packet
 * gets the mark of an OVS that has ended. If a flow goes while its packets wait in the ring, and a new flow gets its
 * counter, those packets get no mark. OVS looks up packets without a mark.
 *
 * OVS gives the mark of a removed flow to the next one at once, while one of its threads may be about to look at
 * packets that have it. So a new mark waits until each thread has asked for packets again. */
#include <stdlib.h>
#include <unistd.h>

#include "viaduct.h"

/* How often `mark_wait` checks whether threads have asked for packets again, and the microseconds in between. */
#define LOOKS 200
#define PAUSE 50

struct marks {
	uint32_t count;
	/* By counter: the mark, 0 if there is none; the port, and the place in its ring from which on the mark holds.
	 * */
	struct {
		_Atomic uint64_t from;
		_Atomic uint32_t mark, port;
	} of[];
};

/* By DPDK port: how often packets were asked for, and how often when a mark was last withdrawn, with WITHDRAWN. */
static struct {
	_Atomic uint32_t bursts;
	_Atomic uint64_t withdrawn;
} __attribute__((aligned(64))) ports[RTE_MAX_ETHPORTS];
#define WITHDRAWN (1ull << 32)

/* Makes marks for this many counters. NULL: there is no memory. */
struct marks *marks_new(uint32_t count)
{
	struct marks *marks = calloc(1, sizeof(*marks) + (size_t)count * sizeof(marks->of[0]));

	if (marks != NULL)
		marks->count = count;
	return marks;
}

/* Returns the mark of the flow with this counter, for a packet at this place in a port's ring; 0: none. */
uint32_t mark_of(const struct marks *marks, uint32_t counter, uint32_t port, uint64_t at)
{
	uint32_t mark;

	if (counter >= marks->count)
		return 0;
	/* In this order: if a new flow has the counter by now, it has a different port, or a place behind the
	 * packet's. */
	mark = atomic_load_explicit(&marks->of[counter].mark, memory_order_acquire);
	if (mark == 0 || atomic_load_explicit(&marks->of[counter].port, memory_order_relaxed) != port ||
	    atomic_load_explicit(&marks->of[counter].from, memory_order_relaxed) > at)
		return 0;
	return mark;
}

/* Gives packets of this flow, which viaductd has made, their mark from now on. */
void mark_put(const struct rte_flow *flow)
{
	struct marks *marks = flow->port->session->marks;
	struct rings *rings = atomic_load(&flow->port->rings);
	uint64_t taken;
	uint32_t waiting;

	if (flow->mark == 0 || rings == NULL)
		return;
	taken = atomic_load_explicit(&rings->taken, memory_order_relaxed);
	waiting = __atomic_load_n(&rings->rx.shared->tail, __ATOMIC_ACQUIRE) - (uint32_t)taken;
	atomic_store_explicit(&marks->of[flow->counter].port, flow->port->handle, memory_order_relaxed);
	atomic_store_explicit(&marks->of[flow->counter].from, taken + waiting, memory_order_relaxed);
	atomic_store_explicit(&marks->of[flow->counter].mark, flow->mark, memory_order_release);
}

/* Gives packets of this flow their mark no longer. */
void mark_withdraw(const struct rte_flow *flow)
{
	uint32_t port = flow->port->handle;

	if (flow->mark == 0)
		return;
	if (flow->live)
		atomic_store(&flow->port->session->marks->of[flow->counter].mark, 0);
	/* Pairs with `mark_burst`: a burst that is not counted here does not see the mark. */
	atomic_thread_fence(memory_order_seq_cst);
	atomic_store(&ports[port].withdrawn, WITHDRAWN | atomic_load(&ports[port].bursts));
}

/* Notes that a thread asks for packets of the port, so it has looked at the marks of all that it got before. */
void mark_burst(const struct port *port)
{
	uint32_t bursts = atomic_load_explicit(&ports[port->handle].bursts, memory_order_relaxed);

	atomic_store_explicit(&ports[port->handle].bursts, bursts + 1, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
}

/* Notes that no thread asks for packets of the port any more, or has any. */
void mark_close(const struct port *port)
{
	atomic_store(&ports[port->handle].withdrawn, 0);
}

static bool is_withdrawn_from_all(void)
{
	for (int i = 0; i < RTE_MAX_ETHPORTS; i++) {
		uint64_t withdrawn = atomic_load(&ports[i].withdrawn);

		if (withdrawn == 0)
			continue;
		if ((uint32_t)withdrawn == atomic_load(&ports[i].bursts))
			return false;
		atomic_compare_exchange_strong(&ports[i].withdrawn, &withdrawn, 0);
	}
	return true;
}

/* Waits until no thread is about to look at a mark that was withdrawn. Returns false if that takes too long. */
bool mark_wait(void)
{
	for (int i = 0; i < LOOKS; i++) {
		if (is_withdrawn_from_all())
			return true;
		usleep(PAUSE);
	}
	return false;
}

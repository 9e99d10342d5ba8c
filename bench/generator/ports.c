/* DPDK ports and pools, and the assignment of actors to ports. */
#include "generator.h"

#include <rte_debug.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CACHE = 256, ROOM = RTE_PKTMBUF_HEADROOM + 2048 };

static void fill(struct rte_mempool *pool, void *frame, void *object, unsigned number)
{
	const struct frame *from = frame;
	struct rte_mbuf *packet = object;
	memcpy((uint8_t *)packet->buf_addr + RTE_PKTMBUF_HEADROOM, from->bytes,
	       RTE_MIN((size_t)from->length, sizeof from->bytes));
}

struct rte_mempool *template_pool(const char *name, unsigned count, const struct frame *frame)
{
	unsigned room = RTE_PKTMBUF_HEADROOM + RTE_MAX(frame->length, 2048u);
	struct rte_mempool *pool = rte_pktmbuf_pool_create(name, count, CACHE, 0, RTE_MIN(room, (unsigned)UINT16_MAX), 0);
	if (!pool)
		rte_exit(1, "generator: no memory for %s\n", name);
	rte_mempool_obj_iter(pool, fill, (void *)(uintptr_t)frame);
	return pool;
}

static void port_start(struct generator *g, uint16_t port, struct rte_mempool *pool)
{
	struct rte_eth_conf conf = {0};
	if (g->segmentation) {
		conf.rxmode.offloads = RTE_ETH_RX_OFFLOAD_TCP_LRO | RTE_ETH_RX_OFFLOAD_TCP_CKSUM | RTE_ETH_RX_OFFLOAD_SCATTER;
		conf.txmode.offloads = RTE_ETH_TX_OFFLOAD_TCP_TSO | RTE_ETH_TX_OFFLOAD_TCP_CKSUM | RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	}
	int status = rte_eth_dev_configure(port, 1, 1, &conf);
	if (status == 0)
		status = rte_eth_rx_queue_setup(port, 0, g->queue_size, 0, NULL, pool);
	if (status == 0)
		status = rte_eth_tx_queue_setup(port, 0, g->queue_size, 0, NULL);
	if (status == 0)
		status = rte_eth_dev_start(port);
	if (status != 0)
		rte_exit(1, "generator: port %u: %s\n", port, rte_strerror(-status));
	rte_eth_promiscuous_enable(port);
}

void ports_start(struct generator *g)
{
	g->port_count = rte_eth_dev_count_avail();
	if (g->port_count > MAX_PORTS)
		rte_exit(2, "generator: more than %d ports\n", MAX_PORTS);
	unsigned count = g->port_count * (g->queue_size + RX_BURST) + 8192;
	/* Large frames take many buffers each. */
	struct rte_mempool *pool = rte_pktmbuf_pool_create("receive", count * (g->segmentation ? 4 : 1), CACHE, 0, ROOM, 0);
	g->small_pool = rte_pktmbuf_pool_create("small", 1023, 0, 0, ROOM, 0);
	if (!pool || !g->small_pool)
		rte_exit(1, "generator: no memory for receive buffers\n");
	for (unsigned port = 0; port < g->port_count; port++)
		port_start(g, port, pool);
}

void ports_stop(struct generator *g)
{
	for (unsigned port = 0; port < g->port_count; port++) {
		rte_eth_dev_stop(port);
		rte_eth_dev_close(port);
	}
}

static struct port *port_at(struct generator *g, int number)
{
	if (number < 0 || number >= (int)g->port_count)
		rte_exit(2, "generator: no port %d\n", number);
	return &g->ports[number];
}

static void prepare_stream(struct generator *g, struct stream *stream)
{
	char name[16];
	snprintf(name, sizeof name, "stream%td", stream - g->streams);
	frame_build(&stream->spec, &stream->frame);
	stream->pool = template_pool(name, g->queue_size * 2 + 2 * CACHE, &stream->frame);
	stream->random_state = 88172645463325252ull + (stream - g->streams);
	port_at(g, stream->tx);
	if (stream->rx < 0)
		return;
	struct port *port = port_at(g, stream->rx);
	/* With a tunnel at one end, only the device knows how it changes the length. */
	port->expected_length = stream->frame.length;
	if (stream->stamp) {
		port->stamp_ip = stream->frame.ip;
		port->latency = calloc(1, sizeof *port->latency);
	}
}

void actors_prepare(struct generator *g)
{
	for (unsigned port = 0; port < g->port_count; port++)
		g->ports[port].forward = -1;
	for (unsigned i = 0; i < g->stream_count; i++)
		prepare_stream(g, &g->streams[i]);
	for (unsigned i = 0; i < g->forward_count; i++) {
		port_at(g, g->forwards[i].to);
		port_at(g, g->forwards[i].from)->forward = i;
	}
	if (g->has_probe) {
		frame_build(&g->probe.spec, &g->probe.frame);
		/* No cache, because each buffer that is sent must be a template. */
		g->probe.pool = template_pool("probe", g->queue_size + 2 * CACHE, &g->probe.frame);
		port_at(g, g->probe.a)->probe_a = true;
		port_at(g, g->probe.b)->probe_b = true;
	}
}

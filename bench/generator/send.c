/* Sends streams, the probe, and the announcements of guests. */
#include "generator.h"

#include <rte_arp.h>
#include <rte_cycles.h>
#include <rte_ethdev.h>
#include <string.h>

/* Most packets with which a sender that was held up catches up. */
static const double MAX_TOKENS = 64;

static uint32_t next_flow(struct stream *stream)
{
	uint32_t flow;
	if (stream->spec.random) {
		uint64_t x = stream->random_state; /* xorshift64 */
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		stream->random_state = x;
		flow = (x >> 32) * stream->spec.flows >> 32;
	} else {
		flow = stream->next_flow++;
		if (stream->next_flow >= stream->spec.flows)
			stream->next_flow = 0;
	}
	return stream->spec.first_flow + flow;
}

static void set_offload(struct rte_mbuf *packet, const struct stream *stream)
{
	packet->l2_len = sizeof(struct rte_ether_hdr);
	packet->l3_len = 20;
	packet->l4_len = 20;
	packet->tso_segsz = stream->spec.segment;
	packet->ol_flags = RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_TCP_CKSUM;
	if (stream->spec.segment)
		packet->ol_flags |= RTE_MBUF_F_TX_TCP_SEG;
}

static bool refill(struct stream *stream, unsigned count)
{
	if (rte_pktmbuf_alloc_bulk(stream->pool, stream->pending, count))
		return false;
	stream->head = 0;
	stream->tail = count;
	for (unsigned i = 0; i < count; i++) {
		struct rte_mbuf *packet = stream->pending[i];
		packet->data_len = packet->pkt_len = stream->frame.length;
		if (stream->spec.tcp)
			set_offload(packet, stream);
		if (stream->spec.flows > 1)
			frame_set_flow(&stream->spec, &stream->frame, rte_pktmbuf_mtod(packet, uint8_t *), next_flow(stream));
	}
	return true;
}

static void stamp_pending(struct stream *stream, uint64_t now)
{
	for (unsigned i = stream->head; i < stream->tail; i++) {
		uint8_t *bytes = rte_pktmbuf_mtod(stream->pending[i], uint8_t *);
		memcpy(bytes + stamp_at(stream->frame.ip), &now, sizeof now);
	}
}

unsigned stream_send(struct generator *g, struct stream *stream, uint64_t now)
{
	unsigned want = TX_BURST;
	if (stream->rate > 0) {
		stream->tokens += (now - stream->last) * stream->rate / g->hz;
		stream->last = now;
		if (stream->tokens > MAX_TOKENS)
			stream->tokens = MAX_TOKENS;
		if (stream->tokens < 1)
			return 0;
		want = RTE_MIN(stream->tokens, TX_BURST);
	}
	if (stream->head == stream->tail && !refill(stream, want))
		return 0;
	if (stream->stamp)
		stamp_pending(stream, now);

	unsigned ready = RTE_MIN(stream->tail - stream->head, want);
	unsigned sent = rte_eth_tx_burst(stream->tx, 0, stream->pending + stream->head, ready);
	stream->head += sent;
	stream->sent += sent;
	stream->calls++;
	stream->refused += sent < ready;
	if (stream->rate > 0)
		stream->tokens -= sent;
	return sent;
}

unsigned probe_send(struct generator *g, uint64_t now)
{
	struct probe *probe = &g->probe;
	if (probe->waiting && now - probe->sent_at > g->hz / 10) {
		probe->timeouts++;
		probe->waiting = false;
	}
	if (probe->waiting || now < probe->next_at)
		return 0;
	struct rte_mbuf *packet = rte_pktmbuf_alloc(probe->pool);
	if (!packet)
		return 0;
	packet->data_len = packet->pkt_len = probe->frame.length;
	probe->sent_at = rte_rdtsc();
	probe->next_at = probe->sent_at + probe->interval * g->hz / 1e6;
	probe->waiting = rte_eth_tx_burst(probe->a, 0, &packet, 1) == 1;
	if (!probe->waiting)
		rte_pktmbuf_free(packet);
	return probe->waiting;
}

void announce(struct generator *g)
{
	for (unsigned i = 0; i < g->announced_count; i++) {
		struct rte_mbuf *packet = rte_pktmbuf_alloc(g->small_pool);
		if (!packet)
			return;
		packet->data_len = packet->pkt_len = 60;
		uint8_t *bytes = rte_pktmbuf_mtod(packet, uint8_t *);
		struct rte_ether_hdr *ethernet = (void *)bytes;
		struct rte_arp_hdr *arp = (void *)(bytes + sizeof *ethernet);
		memset(bytes, 0, 60);
		memset(&ethernet->dst_addr, 0xff, sizeof ethernet->dst_addr);
		ethernet->src_addr = g->announced[i].mac;
		/* Reverse ARP, as a VMM announces its guest. */
		ethernet->ether_type = RTE_BE16(RTE_ETHER_TYPE_RARP);
		arp->arp_hardware = RTE_BE16(RTE_ARP_HRD_ETHER);
		arp->arp_protocol = RTE_BE16(RTE_ETHER_TYPE_IPV4);
		arp->arp_hlen = RTE_ETHER_ADDR_LEN;
		arp->arp_plen = 4;
		arp->arp_opcode = RTE_BE16(RTE_ARP_OP_REVREQUEST);
		arp->arp_data.arp_sha = g->announced[i].mac;
		arp->arp_data.arp_tha = g->announced[i].mac;
		if (rte_eth_tx_burst(g->announced[i].port, 0, &packet, 1) == 0)
			rte_pktmbuf_free(packet);
	}
}

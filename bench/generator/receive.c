/* Handles packets that arrive: they are counted, forwarded, sent back, answered. */
#include "generator.h"

#include <rte_arp.h>
#include <rte_cycles.h>
#include <rte_ethdev.h>
#include <string.h>

static void set_macs(struct rte_mbuf *packet, const struct rte_ether_addr *destination,
		     const struct rte_ether_addr *source)
{
	struct rte_ether_hdr *ethernet = rte_pktmbuf_mtod(packet, struct rte_ether_hdr *);
	ethernet->dst_addr = *destination;
	ethernet->src_addr = *source;
}

/* Turns an ARP request into its answer and sends it back, if a neighbour at this port has the address. */
static bool answer_arp(struct generator *g, unsigned port, struct rte_mbuf *packet)
{
	struct rte_ether_hdr *ethernet = rte_pktmbuf_mtod(packet, struct rte_ether_hdr *);
	struct rte_arp_hdr *arp = (void *)(ethernet + 1);
	if (ethernet->ether_type != RTE_BE16(RTE_ETHER_TYPE_ARP) || arp->arp_opcode != RTE_BE16(RTE_ARP_OP_REQUEST))
		return false;
	for (unsigned i = 0; i < g->neighbour_count; i++) {
		const struct neighbour *neighbour = &g->neighbours[i];
		rte_be32_t address = rte_cpu_to_be_32(neighbour->address);
		if (neighbour->port != (int)port || arp->arp_data.arp_tip != address)
			continue;
		arp->arp_opcode = RTE_BE16(RTE_ARP_OP_REPLY);
		arp->arp_data.arp_tha = arp->arp_data.arp_sha;
		arp->arp_data.arp_tip = arp->arp_data.arp_sip;
		arp->arp_data.arp_sha = neighbour->mac;
		arp->arp_data.arp_sip = address;
		set_macs(packet, &arp->arp_data.arp_tha, &neighbour->mac);
		return rte_eth_tx_burst(port, 0, &packet, 1) == 1;
	}
	return false;
}

/* Forwards all packets with the forward's MACs, and drops those for which the next ring has no room. */
static void forward_burst(struct generator *g, struct forward *forward, struct rte_mbuf **packets, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		set_macs(packets[i], &forward->destination, &forward->source);
	unsigned sent = rte_eth_tx_burst(forward->to, 0, packets, count);
	forward->forwarded += sent;
	forward->dropped += count - sent;
	if (sent < count)
		rte_pktmbuf_free_bulk(packets + sent, count - sent);
}

/* Sends the probe's packets back, at its far end. */
static void reflect(struct generator *g, unsigned port, struct rte_mbuf **packets, unsigned count)
{
	const struct frame_spec *spec = &g->probe.spec;
	for (unsigned i = 0; i < count; i++) {
		struct rte_ether_hdr *ethernet = rte_pktmbuf_mtod(packets[i], struct rte_ether_hdr *);
		if (packets[i]->pkt_len == g->probe.frame.length && rte_is_same_ether_addr(&ethernet->src_addr, &spec->source)) {
			struct rte_ipv4_hdr *ip = (void *)(ethernet + 1);
			uint16_t *ports = (void *)(ip + 1);
			set_macs(packets[i], &spec->source, &spec->destination);
			/* A true answer, so that it belongs to the connection of the question. */
			RTE_SWAP(ip->src_addr, ip->dst_addr);
			RTE_SWAP(ports[0], ports[1]);
			if (rte_eth_tx_burst(port, 0, &packets[i], 1) == 1)
				continue;
		}
		rte_pktmbuf_free(packets[i]);
	}
}

/* Takes the probe's answer, if it is among these. */
static void take_answer(struct generator *g, struct rte_mbuf **packets, unsigned count)
{
	uint64_t now = rte_rdtsc();
	struct probe *probe = &g->probe;
	for (unsigned i = 0; i < count && probe->waiting; i++) {
		if (packets[i]->pkt_len != probe->frame.length)
			continue;
		histogram_add(&probe->histogram, now - probe->sent_at);
		probe->waiting = false;
	}
	rte_pktmbuf_free_bulk(packets, count);
}

static void take_stamps(const struct port *port, struct rte_mbuf **packets, unsigned count)
{
	uint64_t now = rte_rdtsc();
	for (unsigned i = 0; i < count; i++) {
		uint64_t stamp;
		if (packets[i]->pkt_len != port->expected_length)
			continue;
		memcpy(&stamp, rte_pktmbuf_mtod_offset(packets[i], uint8_t *, stamp_at(port->stamp_ip)), sizeof stamp);
		/* Announcements may be as long as stamped frames, and have zeros there. */
		if (stamp != 0)
			histogram_add(port->latency, now - stamp);
	}
}

static void count_burst(struct generator *g, unsigned number, struct rte_mbuf **packets, unsigned count)
{
	struct port *port = &g->ports[number];
	port->packets += count;
	for (unsigned i = 0; i < count; i++) {
		port->bytes += packets[i]->pkt_len;
		port->unexpected += packets[i]->pkt_len != port->expected_length;
	}
	if (port->latency)
		take_stamps(port, packets, count);
	if (g->neighbour_count) {
		for (unsigned i = 0; i < count; i++) {
			if (packets[i]->pkt_len != port->expected_length && answer_arp(g, number, packets[i]))
				packets[i] = NULL;
		}
	}
	rte_pktmbuf_free_bulk(packets, count);
}

unsigned port_receive(struct generator *g, unsigned number)
{
	struct rte_mbuf *packets[RX_BURST];
	const struct port *port = &g->ports[number];
	unsigned total = 0, count;
	do {
		count = rte_eth_rx_burst(number, 0, packets, RX_BURST);
		if (count == 0)
			break;
		total += count;
		if (port->forward >= 0) {
			forward_burst(g, &g->forwards[port->forward], packets, count);
			break; /* one burst per turn each, like guests with a core of their own */
		}
		if (port->probe_b)
			reflect(g, number, packets, count);
		else if (port->probe_a)
			take_answer(g, packets, count);
		else
			count_burst(g, number, packets, count);
	} while (count >= 32);
	return total;
}

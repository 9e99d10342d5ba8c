/* The rings between OVS and viaductd: packets that no flow of viaductd decides, and packets that OVS sends. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_tcp.h>
#include <rte_udp.h>

#include "viaduct.h"

/* Maps a port's memory, and takes over the bell. NULL: the memory is not as viaductd should give it, or none is left.
 * */
struct rings *rings_map(int file, int bell, uint32_t slots)
{
	struct rings *rings;
	uint8_t *at;

	if (slots == 0 || slots > VIADUCT_SLOTS || (slots & (slots - 1)) != 0)
		return NULL;
	rings = calloc(1, sizeof(*rings));
	if (rings == NULL)
		return NULL;
	rings->length = VIADUCT_FILE(slots);
	rings->memory = map_file(file, rings->length, PROT_READ | PROT_WRITE);
	if (rings->memory == NULL) {
		free(rings);
		return NULL;
	}
	at = rings->memory;
	rings->page = (void *)at;
	rings->slots = slots;
	rings->bell = bell;
	at += VIADUCT_PAGE;
	for (int i = 0; i < 2; i++) {
		struct ring *ring = i == 0 ? &rings->rx : &rings->tx;

		ring->shared = (void *)at;
		ring->packets = (void *)(at + sizeof(struct viaduct_ring));
		at += VIADUCT_RING(slots);
	}
	rings->rx.slots = at;
	rings->tx.slots = at + (size_t)slots * VIADUCT_SLOT;
	return rings;
}

static void wait_for(struct queue *queue)
{
	while (atomic_load(&queue->busy) != 0)
		sched_yield();
}

/* Gives a port new rings, or none, and unmaps the old ones once no thread uses them. The caller holds the session's
 * lock. */
void rings_put(struct port *port, struct rings *rings)
{
	struct rings *old;

	pthread_mutex_lock(&port->session->view);
	old = atomic_exchange(&port->rings, rings);
	if (old != NULL)
		port_count(port, old->page, true);
	if (rings != NULL)
		port_count(port, rings->page, false);
	pthread_mutex_unlock(&port->session->view);
	if (old == NULL)
		return;
	wait_for(&port->rx);
	wait_for(&port->tx);
	munmap(old->memory, old->length);
	close(old->bell);
	free(old);
}

/* Returns the rings for a burst, which stay mapped until `leave`. */
static struct rings *enter(struct queue *queue)
{
	atomic_store(&queue->busy, 1);
	return atomic_load(&queue->port->rings);
}

static void leave(struct queue *queue)
{
	atomic_store_explicit(&queue->busy, 0, memory_order_release);
}

static uint32_t slots_of(uint32_t length)
{
	return (length + VIADUCT_SLOT - 1) / VIADUCT_SLOT;
}

/* Copies bytes from or to slots, which may wrap around to the start of the ring. */
static void copy(struct ring *ring, uint32_t slots, uint32_t at, void *bytes, uint32_t length, bool out)
{
	uint32_t size = slots * VIADUCT_SLOT, first;

	at %= size;
	first = RTE_MIN(length, size - at);
	if (out)
		rte_memcpy(bytes, ring->slots + at, first);
	else
		rte_memcpy(ring->slots + at, bytes, first);
	if (likely(first == length))
		return;
	if (out)
		memcpy((uint8_t *)bytes + first, ring->slots, length - first);
	else
		memcpy(ring->slots, (uint8_t *)bytes + first, length - first);
}

/* Returns flags for the checksums that OVS need not check. viaductd has checked the header of each IPv4 packet, and
 * says for which packets the L4 checksum is right. OVS itself checks packets that are not plainly IPv4. */
static uint64_t sums(const struct rte_mbuf *mbuf, uint8_t flags)
{
	const struct rte_ether_hdr *ethernet = rte_pktmbuf_mtod(mbuf, const struct rte_ether_hdr *);
	uint64_t good = flags & VIADUCT_VALID_CSUM ? RTE_MBUF_F_RX_L4_CKSUM_GOOD : 0;

	if (likely(ethernet->ether_type == RTE_BE16(RTE_ETHER_TYPE_IPV4)))
		good |= RTE_MBUF_F_RX_IP_CKSUM_GOOD;
	return good;
}

static uint64_t load(const uint8_t *at)
{
	uint64_t word;

	memcpy(&word, at, sizeof(word));
	return word;
}

static uint64_t fold(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)(a ^ 0x9e3779b97f4a7c15) * (b ^ 0xe7037ed1a0b428db);

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Gives a packet of TCP or UDP the hash of its addresses and ports. OVS would compute one itself, which takes longer.
 * OVS also chooses a member of a group by the hash, so each packet of a connection must get the same one. */
static void hash(struct rte_mbuf *mbuf)
{
	const uint8_t *frame = rte_pktmbuf_mtod(mbuf, const uint8_t *);
	uint32_t at = sizeof(struct rte_ether_hdr), end = mbuf->data_len, l4, ports;
	rte_be16_t type = ((const struct rte_ether_hdr *)frame)->ether_type;
	uint64_t sum;
	uint8_t protocol;

	if (type == RTE_BE16(RTE_ETHER_TYPE_VLAN) && end > at + sizeof(struct rte_vlan_hdr)) {
		type = ((const struct rte_vlan_hdr *)(frame + at))->eth_proto;
		at += sizeof(struct rte_vlan_hdr);
	}
	if (likely(type == RTE_BE16(RTE_ETHER_TYPE_IPV4) && end >= at + sizeof(struct rte_ipv4_hdr))) {
		const struct rte_ipv4_hdr *ip = (const void *)(frame + at);

		if (unlikely((ip->fragment_offset & RTE_BE16(RTE_IPV4_HDR_MF_FLAG | RTE_IPV4_HDR_OFFSET_MASK)) != 0))
			return;
		protocol = ip->next_proto_id;
		l4 = at + (ip->version_ihl & RTE_IPV4_HDR_IHL_MASK) * RTE_IPV4_IHL_MULTIPLIER;
		sum = load((const uint8_t *)&ip->src_addr);
	} else if (type == RTE_BE16(RTE_ETHER_TYPE_IPV6) && end >= at + sizeof(struct rte_ipv6_hdr)) {
		protocol = frame[at + offsetof(struct rte_ipv6_hdr, proto)];
		l4 = at + sizeof(struct rte_ipv6_hdr);
		sum = fold(load(frame + l4 - 32), load(frame + l4 - 24)) ^
		      fold(load(frame + l4 - 16) + 1, load(frame + l4 - 8));
	} else {
		return;
	}
	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || end < l4 + sizeof(ports))
		return;
	memcpy(&ports, frame + l4, sizeof(ports));
	sum = fold(sum, ports | (uint64_t)protocol << 32);
	mbuf->hash.rss = sum ^ sum >> 32;
	mbuf->ol_flags |= RTE_MBUF_F_RX_RSS_HASH;
}

/* Takes a packet of `length` bytes, which the ring describes with `flags`, into an mbuf and as many more as it needs.
 * False: there are too few mbufs. */
static bool take(struct queue *queue, struct rings *rings, struct rte_mbuf *head, uint32_t length, uint8_t flags)
{
	uint32_t at = (rings->rx.next & (rings->slots - 1)) * VIADUCT_SLOT, done = 0;

	for (struct rte_mbuf *mbuf = head, *last = head;; last = mbuf, mbuf = rte_pktmbuf_alloc(queue->pool)) {
		uint32_t part;

		if (unlikely(mbuf == NULL)) {
			rte_pktmbuf_free(head->next);
			rte_pktmbuf_reset(head);
			return false;
		}
		part = RTE_MIN(length - done, (uint32_t)rte_pktmbuf_tailroom(mbuf));
		copy(&rings->rx, rings->slots, at + done, rte_pktmbuf_mtod(mbuf, void *), part, true);
		mbuf->data_len = part;
		done += part;
		if (unlikely(mbuf != head)) {
			last->next = mbuf;
			head->nb_segs++;
		}
		if (likely(done == length))
			break;
	}
	head->pkt_len = length;
	head->port = DATA(queue->port->dev, port_id, uint16_t);
	head->ol_flags = sums(head, flags);
	hash(head);
	return true;
}

/* Marks a packet with its flow, if viaductd tells the flow. */
static void mark(struct rings *rings, uint32_t port, const struct viaduct_packet *packet, struct rte_mbuf *mbuf)
{
	uint32_t flow = __atomic_load_n(&((const struct viaduct_arrival *)packet)->flow, __ATOMIC_RELAXED), mark;
	uint64_t taken = atomic_load_explicit(&rings->taken, memory_order_relaxed);

	if (flow == 0)
		return;
	mark = mark_of(rings->marks, flow - 1, port, taken + (rings->rx.next - (uint32_t)taken));
	if (likely(mark != 0)) {
		mbuf->ol_flags |= RTE_MBUF_F_RX_FDIR | RTE_MBUF_F_RX_FDIR_ID;
		mbuf->hash.fdir.hi = mark;
	}
}

/* Gets up to `count` mbufs; returns how many. */
static uint32_t get(struct queue *queue, struct rte_mbuf **mbufs, uint32_t count)
{
	while (count > 0 && unlikely(rte_pktmbuf_alloc_bulk(queue->pool, mbufs, count) != 0))
		count /= 2;
	return count;
}

uint16_t ring_receive(void *argument, struct rte_mbuf **packets, uint16_t count)
{
	struct queue *queue = argument;
	struct rings *rings;
	uint16_t done = 0;

	mark_burst(queue->port);
	rings = enter(queue);
	if (rings != NULL) {
		struct ring *ring = &rings->rx;
		uint32_t ready = __atomic_load_n(&ring->shared->tail, __ATOMIC_ACQUIRE) - ring->next;
		bool scatter = DATA(queue->port->dev, dev_conf, struct rte_eth_conf).rxmode.offloads &
			       RTE_ETH_RX_OFFLOAD_SCATTER;
		uint32_t got;

		/* There can't be more slots, so viaductd has broken the ring. */
		if (unlikely(ready > rings->slots))
			ready = 0;
		got = get(queue, packets, RTE_MIN(ready, (uint32_t)count));
		if (unlikely(got == 0 && ready > 0))
			queue->no_memory++;
		while (done < got && ready > 0) {
			uint32_t index = ring->next & (rings->slots - 1);
			uint32_t length = __atomic_load_n(&ring->packets[index].length, __ATOMIC_RELAXED);
			uint8_t flags = __atomic_load_n(&ring->packets[index].flags, __ATOMIC_RELAXED);
			uint32_t slots = slots_of(length);

			if (unlikely(slots == 0 || slots > ready || length > VIADUCT_LONGEST)) {
				queue->errors++;
				ring->next += ready;
				break;
			}
			if (unlikely(!scatter && length > (uint32_t)rte_pktmbuf_data_room_size(queue->pool) -
								   RTE_PKTMBUF_HEADROOM)) {
				queue->errors++;
			} else if (likely(take(queue, rings, packets[done], length, flags))) {
				mark(rings, queue->port->handle, &ring->packets[index], packets[done]);
				done++;
				queue->bytes += length;
			} else {
				queue->no_memory++;
				break;
			}
			ring->next += slots;
			ready -= slots;
		}
		if (unlikely(done < got))
			rte_pktmbuf_free_bulk(packets + done, got - done);
		queue->packets += done;
		atomic_store_explicit(&rings->taken, rings->taken + (ring->next - (uint32_t)rings->taken),
				      memory_order_relaxed);
		__atomic_store_n(&ring->shared->head, ring->next, __ATOMIC_RELEASE);
	}
	leave(queue);
	return done;
}

#define L4_SUMS (RTE_MBUF_F_TX_L4_MASK | RTE_MBUF_F_TX_TCP_SEG)

/* Describes in the ring what is unfinished in a packet. `head` is a copy of its headers. Finishes an IPv4 checksum
 * here. */
static void leave_unfinished(const struct rte_mbuf *mbuf, struct viaduct_packet *packet, uint8_t *head, uint32_t length)
{
	uint32_t l3 = mbuf->l2_len, l4 = l3 + mbuf->l3_len, at;
	uint64_t flags = mbuf->ol_flags, sum = flags & RTE_MBUF_F_TX_L4_MASK;
	bool tso = flags & RTE_MBUF_F_TX_TCP_SEG, v4 = flags & RTE_MBUF_F_TX_IPV4;
	uint16_t pseudo;

	if (l4 + sizeof(struct rte_tcp_hdr) > RTE_MIN(length, (uint32_t)VIADUCT_SLOT) && l4 + 8 > length)
		return;
	if (flags & RTE_MBUF_F_TX_IP_CKSUM && v4) {
		struct rte_ipv4_hdr *ip = (void *)(head + l3);

		ip->hdr_checksum = 0;
		ip->hdr_checksum = rte_ipv4_cksum(ip);
	}
	if (!tso && sum != RTE_MBUF_F_TX_TCP_CKSUM && sum != RTE_MBUF_F_TX_UDP_CKSUM)
		return;
	at = !tso && sum == RTE_MBUF_F_TX_UDP_CKSUM ? offsetof(struct rte_udp_hdr, dgram_cksum)
						     : offsetof(struct rte_tcp_hdr, cksum);
	/* The pseudo header has the whole length, for segments as well (VIRTIO 1.2, 5.1.6.2), no matter what OVS put
	 * there. */
	pseudo = v4 ? rte_ipv4_phdr_cksum((void *)(head + l3), 0) : rte_ipv6_phdr_cksum((void *)(head + l3), 0);
	memcpy(head + l4 + at, &pseudo, sizeof(pseudo));
	packet->flags = VIADUCT_NEEDS_CSUM;
	packet->csum_start = l4;
	packet->csum_offset = at;
	if (tso) {
		packet->gso_type = v4 ? VIADUCT_GSO_TCPV4 : VIADUCT_GSO_TCPV6;
		packet->gso_size = mbuf->tso_segsz;
		packet->header_length = l4 + mbuf->l4_len;
	}
}

/* Puts a packet into the ring, in which it has free slots. */
static void put(struct rings *rings, const struct rte_mbuf *mbuf)
{
	struct ring *ring = &rings->tx;
	uint32_t index = ring->next & (rings->slots - 1), at = index * VIADUCT_SLOT;
	struct viaduct_packet *packet = &ring->packets[index];

	*packet = (struct viaduct_packet){.length = mbuf->pkt_len};
	for (const struct rte_mbuf *part = mbuf; part != NULL; part = part->next) {
		copy(ring, rings->slots, at, rte_pktmbuf_mtod(part, void *), part->data_len, false);
		at += part->data_len;
	}
	if (unlikely(mbuf->ol_flags & (L4_SUMS | RTE_MBUF_F_TX_IP_CKSUM)))
		leave_unfinished(mbuf, packet, ring->slots + index * VIADUCT_SLOT, mbuf->pkt_len);
	ring->next += slots_of(mbuf->pkt_len);
}

/* Publishes the packets that were put, and wakes viaductd if it sleeps. */
static void publish(struct rings *rings)
{
	struct viaduct_ring *shared = rings->tx.shared;

	__atomic_store_n(&shared->tail, rings->tx.next, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&shared->asleep, __ATOMIC_RELAXED) != 0 &&
	    __atomic_exchange_n(&shared->asleep, 0, __ATOMIC_RELAXED) != 0) {
		/* If the socket is full, viaductd is being woken already. */
		ssize_t sent = send(rings->bell, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		(void)sent;
	}
}

/* Sends packets. Without viaductd, or while the port is down, they are dropped here. OVS counts them as sent, as with
 * a link that has just gone down. */
uint16_t ring_send(void *argument, struct rte_mbuf **packets, uint16_t count)
{
	struct queue *queue = argument;
	struct rings *rings = enter(queue);
	uint16_t done = 0;

	if (rings != NULL && likely(!queue->port->down)) {
		struct ring *ring = &rings->tx;
		uint32_t used = ring->next - __atomic_load_n(&ring->shared->head, __ATOMIC_ACQUIRE);
		uint32_t room = used > rings->slots ? 0 : rings->slots - used, before = ring->next;

		for (; done < count; done++) {
			uint32_t slots = slots_of(packets[done]->pkt_len);

			if (slots > room)
				break;
			room -= slots;
			if (slots == 0)
				continue;
			put(rings, packets[done]);
			queue->bytes += packets[done]->pkt_len;
		}
		if (ring->next != before)
			publish(rings);
		queue->packets += done;
	} else {
		done = count;
		queue->errors += count;
	}
	leave(queue);
	rte_pktmbuf_free_bulk(packets, done);
	return done;
}

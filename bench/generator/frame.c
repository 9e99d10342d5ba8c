/* Builds frames, and turns the frame of one flow into that of another. */
#include "generator.h"

#include <rte_byteorder.h>
#include <rte_ip.h>
#include <rte_tcp.h>
#include <rte_udp.h>
#include <string.h>

enum { VXLAN_PORT = 4789, MPLS_PORT = 6635, SOURCE_PORTS = 16384, FIRST_PORT = 1024 };

static uint8_t *put_ethernet(uint8_t *at, const struct rte_ether_addr *destination, const struct rte_ether_addr *source)
{
	struct rte_ether_hdr *ethernet = (void *)at;
	ethernet->dst_addr = *destination;
	ethernet->src_addr = *source;
	ethernet->ether_type = RTE_BE16(RTE_ETHER_TYPE_IPV4);
	return at + sizeof *ethernet;
}

static uint8_t *put_ipv4(uint8_t *at, uint32_t source, uint32_t destination, uint8_t protocol, uint16_t total_length)
{
	struct rte_ipv4_hdr *ip = (void *)at;
	*ip = (struct rte_ipv4_hdr){
		.version_ihl = 0x45,
		.total_length = rte_cpu_to_be_16(total_length),
		.time_to_live = 64,
		.next_proto_id = protocol,
		.src_addr = rte_cpu_to_be_32(source),
		.dst_addr = rte_cpu_to_be_32(destination),
	};
	ip->hdr_checksum = rte_ipv4_cksum(ip);
	return at + sizeof *ip;
}

/* Writes a UDP header without checksum, which IPv4 allows. */
static uint8_t *put_udp(uint8_t *at, uint16_t source, uint16_t destination, uint16_t length)
{
	*(struct rte_udp_hdr *)at = (struct rte_udp_hdr){
		.src_port = rte_cpu_to_be_16(source),
		.dst_port = rte_cpu_to_be_16(destination),
		.dgram_len = rte_cpu_to_be_16(length),
	};
	return at + sizeof(struct rte_udp_hdr);
}

/* Writes a TCP header with the checksum of the pseudo header, as the driver of a guest with checksum offload leaves
 * it. */
static void put_tcp(uint8_t *at, const struct rte_ipv4_hdr *ip, uint16_t destination)
{
	struct rte_tcp_hdr *tcp = (void *)at;
	*tcp = (struct rte_tcp_hdr){
		.src_port = RTE_BE16(FIRST_PORT),
		.dst_port = rte_cpu_to_be_16(destination),
		.sent_seq = RTE_BE32(1),
		.recv_ack = RTE_BE32(1),
		.data_off = 5 << 4,
		.tcp_flags = RTE_TCP_ACK_FLAG,
		.rx_win = RTE_BE16(0xffff),
	};
	tcp->cksum = rte_ipv4_phdr_cksum(ip, RTE_MBUF_F_TX_TCP_SEG);
}

static uint8_t *put_tunnel(const struct frame_spec *spec, uint8_t *at, uint16_t inner_length)
{
	bool vxlan = spec->encapsulation == VXLAN;
	uint16_t shim = vxlan ? 8 : 4;
	uint16_t udp_length = sizeof(struct rte_udp_hdr) + shim + inner_length;
	at = put_ethernet(at, &spec->outer_destination, &spec->outer_source);
	at = put_ipv4(at, spec->outer_source_ip, spec->outer_destination_ip, IPPROTO_UDP,
		      sizeof(struct rte_ipv4_hdr) + udp_length);
	at = put_udp(at, 49152, vxlan ? VXLAN_PORT : MPLS_PORT, udp_length);
	if (vxlan) {
		uint32_t words[] = {RTE_BE32(0x08000000), rte_cpu_to_be_32(spec->id << 8)};
		memcpy(at, words, sizeof words);
	} else {
		uint32_t entry = rte_cpu_to_be_32(spec->id << 12 | 1 << 8 | 64); /* bottom of stack, TTL 64 */
		memcpy(at, &entry, sizeof entry);
	}
	return at + shim;
}

void frame_build(const struct frame_spec *spec, struct frame *frame)
{
	uint16_t length = spec->size - FCS;
	uint16_t ip_length = length - sizeof(struct rte_ether_hdr);
	uint16_t header = sizeof(struct rte_ipv4_hdr);
	uint8_t *at = frame->bytes;

	memset(frame->bytes, 0x5a, sizeof frame->bytes);
	if (spec->encapsulation != PLAIN)
		at = put_tunnel(spec, at, spec->encapsulation == VXLAN ? length : ip_length);
	frame->outer_port = spec->encapsulation == PLAIN ? 0 : sizeof(struct rte_ether_hdr) + header;
	/* MPLS carries packets, the others carry frames. */
	if (spec->encapsulation != MPLS_OVER_UDP)
		at = put_ethernet(at, &spec->destination, &spec->source);
	frame->ip = at - frame->bytes;
	frame->length = frame->ip + ip_length;

	struct rte_ipv4_hdr *ip = (void *)at;
	at = put_ipv4(at, spec->source_ip, spec->destination_ip, spec->tcp ? IPPROTO_TCP : IPPROTO_UDP, ip_length);
	if (spec->tcp)
		put_tcp(at, ip, spec->destination_port);
	else
		put_udp(at, FIRST_PORT, spec->destination_port, ip_length - header);

	struct rte_ipv4_hdr rest = *ip;
	rest.src_addr = 0;
	rest.hdr_checksum = 0;
	frame->ip_sum = rte_raw_cksum(&rest, sizeof rest);
}

void frame_set_flow(const struct frame_spec *spec, const struct frame *frame, uint8_t *bytes, uint32_t flow)
{
	struct rte_ipv4_hdr *ip = (void *)(bytes + frame->ip);
	rte_be16_t port = rte_cpu_to_be_16(FIRST_PORT + flow % SOURCE_PORTS);
	rte_be32_t source = rte_cpu_to_be_32(spec->source_ip + flow / SOURCE_PORTS);
	uint32_t sum = frame->ip_sum + (source & 0xffff) + (source >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);

	ip->src_addr = source;
	ip->hdr_checksum = ~sum;
	memcpy(ip + 1, &port, sizeof port);
	if (frame->outer_port)
		memcpy(bytes + frame->outer_port, &port, sizeof port);
}

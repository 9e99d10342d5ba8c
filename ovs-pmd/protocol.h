/* The messages between the driver and viaductd, and the memory that they share.
 *
 * Messages go over a SOCK_SEQPACKET socket, one answer for each request, in order. The driver waits for each answer,
 * except for those about flows for which viaductd has vouched (`ahead`). A message has one request, or as many
 * requests about one flow each as the answer to the hello allows. A message from viaductd has one answer, or as many
 * as the hello allows; an answer with files is sent alone. Numbers are little-endian, header bytes and addresses in
 * network order. crates/ovs/src/protocol.rs is the other side: change both. */
#ifndef VIADUCT_PROTOCOL_H
#define VIADUCT_PROTOCOL_H

#include <stdint.h>

#define VIADUCT_MAGIC 0x53564f56u /* "VOVS" */
#define VIADUCT_VERSION 1
#define VIADUCT_LEVEL 1 /* the highest that the driver knows */
#define VIADUCT_NAME 64      /* bytes of a port's name, with its final zero */
#define VIADUCT_TEXT 192     /* bytes of a reason in words, with its final zero */
#define VIADUCT_MESSAGE 8192 /* longest message, bytes */
#define VIADUCT_COUNTERS (1u << 20) /* most counters */
#define VIADUCT_SLOTS (1u << 16)    /* most slots of a ring */
#define VIADUCT_LONGEST 65557       /* longest packet, bytes */
#define VIADUCT_AHEAD 128           /* most requests whose answers the driver does not wait for */

#define VIADUCT_TOGETHER 16         /* most requests in a message */

enum viaduct_request {
	VIADUCT_HELLO = 1,
	VIADUCT_PORT_OPEN = 2,
	VIADUCT_PORT_CLOSE = 3,
	VIADUCT_PORT_MTU = 4,
	VIADUCT_FLOW_CREATE = 5,
	VIADUCT_FLOW_DESTROY = 6,
	VIADUCT_FLOW_FLUSH = 7,
	VIADUCT_PORT_LINK = 8,
	/* Only to a viaductd of level 1. */
	VIADUCT_PORT_QOS = 9,
	VIADUCT_COUNT = 10, /* brings the file of counters up to date; the request is its header */
	VIADUCT_SETTLED = 11, /* all ports in OVS's database are open; the request is its header */
};

/* The start of each request. */
struct viaduct_header {
	uint32_t kind;
	uint32_t length; /* of the whole request */
};

struct viaduct_hello {
	struct viaduct_header header;
	uint32_t magic;
	uint32_t version;
	uint32_t pid;
	uint32_t answers; /* most answers in a message that the driver takes; 0: one */
	char dpdk[32];
};

/* Also a request to close a port or to flush its flows. */
struct viaduct_port {
	struct viaduct_header header;
	uint32_t port; /* the number that the driver gave it */
	union {
		uint32_t mtu;  /* for VIADUCT_PORT_MTU */
		uint32_t down; /* for VIADUCT_PORT_LINK: 1, OVS has the port down; 0, up */
		uint32_t qos;  /* for VIADUCT_PORT_QOS: VIADUCT_QOS_* */
	};
};

/* What OVS does to packets that it forwards itself: it polices what comes from the port; it has a quality of service for
 * what leaves by the port. */
#define VIADUCT_QOS_IN 1u
#define VIADUCT_QOS_OUT 2u
#define VIADUCT_QOS_UNKNOWN 4u /* the driver can't read OVS's database, so nobody knows */

struct viaduct_port_open {
	struct viaduct_header header;
	uint32_t port; /* the driver's number for the port, by which other requests name it */
	uint32_t down; /* 1: OVS has it down */
	char name[VIADUCT_NAME];
	char device[VIADUCT_NAME]; /* its name in DPDK; only to a viaductd of level 1 */
};

struct viaduct_flow_destroy {
	struct viaduct_header header;
	uint64_t flow;
	uint64_t packets, bytes; /* the value of its counter that OVS has read; only to a viaductd of level 1 */
};

/* Attributes of a flow. */
#define VIADUCT_FLOW_INGRESS 1u
#define VIADUCT_FLOW_EGRESS 2u
#define VIADUCT_FLOW_TRANSFER 4u

/* Followed by the items, then by the actions. */
struct viaduct_flow_create {
	struct viaduct_header header;
	uint32_t port;
	uint32_t attributes;
	uint32_t group;
	uint32_t priority;
	uint16_t items;
	uint16_t actions;
	uint32_t ahead; /* 1: the driver does not wait for the answer */
};

/* One of VIADUCT_ITEM_*, then `length` bytes each of the spec, the mask and `last`, as far as there. */
struct viaduct_item {
	uint16_t kind;
	uint16_t parts; /* VIADUCT_SPEC, VIADUCT_MASK, VIADUCT_LAST */
	uint16_t length;
	uint16_t reserved;
};
#define VIADUCT_SPEC 1
#define VIADUCT_MASK 2
#define VIADUCT_LAST 4

/* The parts are DPDK's structures of these names: a header in network order, then perhaps a word of bits. */
enum viaduct_item_kind {
	VIADUCT_ITEM_OTHER = 0, /* spec: the item's name */
	VIADUCT_ITEM_ETH = 1,   /* 20 bytes: header, 2 that do not count, bit 0: it has a VLAN tag */
	VIADUCT_ITEM_VLAN = 2,  /* 8 bytes: TCI and type, bit 0: it has a second tag */
	VIADUCT_ITEM_IPV4 = 3,  /* 20 bytes */
	VIADUCT_ITEM_IPV6 = 4,  /* 44 bytes: header, bit 2: it has a fragment header */
	VIADUCT_ITEM_IPV6_FRAG = 5, /* 8 bytes */
	VIADUCT_ITEM_TCP = 6,   /* 20 bytes */
	VIADUCT_ITEM_UDP = 7,   /* 8 bytes */
	VIADUCT_ITEM_SCTP = 8,  /* 12 bytes */
	VIADUCT_ITEM_ICMP = 9,  /* 8 bytes */
	VIADUCT_ITEM_ICMP6 = 10, /* 4 bytes */
};

/* One of VIADUCT_ACTION_*, then `length` bytes. */
struct viaduct_action {
	uint16_t kind;
	uint16_t length;
};

enum viaduct_action_kind {
	VIADUCT_ACTION_OTHER = 0, /* the action's name */
	VIADUCT_ACTION_COUNT = 1,
	VIADUCT_ACTION_DROP = 2,
	VIADUCT_ACTION_OUTPUT = 3, /* a port's number; VIADUCT_FOREIGN: a port of a different driver */
	VIADUCT_ACTION_MAC_SRC = 4,
	VIADUCT_ACTION_MAC_DST = 5,
	VIADUCT_ACTION_IPV4_SRC = 6,
	VIADUCT_ACTION_IPV4_DST = 7,
	VIADUCT_ACTION_IPV6_SRC = 8,
	VIADUCT_ACTION_IPV6_DST = 9,
	VIADUCT_ACTION_TTL = 10,
	VIADUCT_ACTION_TP_SRC = 11,
	VIADUCT_ACTION_TP_DST = 12,
	VIADUCT_ACTION_PUSH_VLAN = 13, /* the tag's type */
	VIADUCT_ACTION_VLAN_VID = 14,
	VIADUCT_ACTION_VLAN_PCP = 15,
	VIADUCT_ACTION_POP_VLAN = 16,
	VIADUCT_ACTION_DSCP = 17,
	VIADUCT_ACTION_ENCAP = 18, /* the headers to put in front */
	/* For flows that OVS carries out itself (VIADUCT_FLOW_INGRESS), without their values. */
	VIADUCT_ACTION_MARK = 19,
	VIADUCT_ACTION_RSS = 20,
};
#define VIADUCT_FOREIGN 0xffffffffu

/* The file of counters has one of these for each. Only viaductd writes it. */
struct viaduct_counter {
	uint64_t packets;
	uint64_t bytes;
};

/* The answer to every request. The fields are those for the request's kind; the rest is zero. */
struct viaduct_answer {
	uint32_t status; /* 0, or an errno */
	uint32_t reason; /* why a flow is refused, one of `Refused` */
	/* For a session: how many counters there are in the file that comes with the answer. */
	uint32_t counters;
	/* For a port: its rings are in the first file that comes with the answer; the second file wakes viaductd. */
	uint32_t mtu;
	uint32_t slots; /* of each ring */
	uint8_t mac[6];
	uint16_t level; /* for a session: which requests viaductd understands; 0, from an older one: those without a level */
	/* For a flow. */
	uint32_t counter; /* index of its counter */
	/* How many more flows will be accepted that differ only in the values of items, until the next answer with 0.
	 * */
	uint32_t ahead;
	uint32_t together; /* for a session: most requests about one flow in a message; 0, from an older viaductd: one */
	uint64_t flow;
	union {
		char text[VIADUCT_TEXT];     /* what went wrong, in words */
		struct viaduct_counter seen; /* value of the flow's counter so far */
	};
};

/* The file of a port: this page, then two rings, from and to viaductd, then their slots. */
#define VIADUCT_PAGE 4096
#define VIADUCT_SLOT 2048

struct viaduct_page {
	/* Written by viaductd. */
	uint32_t link; /* 1: up */
	uint32_t reserved;
	uint64_t rx_packets; /* all packets from the guest or wire, no matter who forwarded them */
	uint64_t rx_bytes;
	uint64_t rx_dropped;
	uint64_t tx_packets;
	uint64_t tx_bytes;
	uint64_t tx_dropped;
};

/* The start of a ring; its packets follow. Both counts wrap around at 2^32. */
struct viaduct_ring {
	uint32_t tail __attribute__((aligned(128))); /* slots filled; written by the sender */
	uint32_t asleep;                              /* of the ring to viaductd: it wants to be woken */
	uint32_t head __attribute__((aligned(128)));  /* slots returned; written by the receiver */
} __attribute__((aligned(128)));

/* A packet, at the place of its first slot. It continues in as many further slots as it needs. */
struct viaduct_packet {
	uint32_t length;
	uint8_t flags;    /* from here on, a virtio_net_hdr of VIRTIO 1.2 without num_buffers */
	uint8_t gso_type;
	uint16_t header_length;
	uint16_t gso_size;
	uint16_t csum_start;
	uint16_t csum_offset;
	uint16_t reserved;
};
/* A packet from viaductd, which leaves nothing unfinished. */
struct viaduct_arrival {
	uint32_t length;
	uint8_t flags;
	uint8_t reserved[3];
	uint32_t flow; /* counter of the flow whose mark the packet gets, plus 1; 0: no flow */
	uint32_t reserved2;
};
#define VIADUCT_NEEDS_CSUM 1 /* only to viaductd */
#define VIADUCT_VALID_CSUM 2 /* only from viaductd: the checksum of TCP or UDP is right */
#define VIADUCT_GSO_TCPV4 1
#define VIADUCT_GSO_TCPV6 4

#define VIADUCT_RING(slots) (sizeof(struct viaduct_ring) + (slots) * sizeof(struct viaduct_packet))
#define VIADUCT_FILE(slots) (VIADUCT_PAGE + 2 * (VIADUCT_RING(slots) + (uint64_t)(slots) * VIADUCT_SLOT))

#endif

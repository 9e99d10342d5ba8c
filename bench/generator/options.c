/* The command line. */
#include "generator.h"

#include <arpa/inet.h>
#include <getopt.h>
#include <rte_debug.h>
#include <rte_ip.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind { INT, UNSIGNED, PORT_NUMBER, REAL, FLAG, MAC, ADDRESS, TUNNEL };

/* A key of an option, and the place for its value. */
struct key {
	const char *name;
	enum kind kind;
	size_t offset;
};

#define KEYS_OF_FRAME(type)                                                                                            \
	{"size", UNSIGNED, offsetof(type, spec.size)}, {"flows", UNSIGNED, offsetof(type, spec.flows)},                \
	{"first", UNSIGNED, offsetof(type, spec.first_flow)}, {"random", FLAG, offsetof(type, spec.random)},           \
	{"tcp", FLAG, offsetof(type, spec.tcp)}, {"segment", UNSIGNED, offsetof(type, spec.segment)},                  \
	{"source", MAC, offsetof(type, spec.source)}, {"destination", MAC, offsetof(type, spec.destination)},          \
	{"source-ip", ADDRESS, offsetof(type, spec.source_ip)},                                                        \
	{"destination-ip", ADDRESS, offsetof(type, spec.destination_ip)},                                              \
	{"destination-port", PORT_NUMBER, offsetof(type, spec.destination_port)},                                      \
	{"tunnel", TUNNEL, offsetof(type, spec.encapsulation)}, {"id", UNSIGNED, offsetof(type, spec.id)},             \
	{"outer-source", MAC, offsetof(type, spec.outer_source)},                                                      \
	{"outer-destination", MAC, offsetof(type, spec.outer_destination)},                                            \
	{"outer-source-ip", ADDRESS, offsetof(type, spec.outer_source_ip)},                                            \
	{"outer-destination-ip", ADDRESS, offsetof(type, spec.outer_destination_ip)}

static const struct key stream_keys[] = {
	{"tx", INT, offsetof(struct stream, tx)},
	{"rx", INT, offsetof(struct stream, rx)},
	{"rate", REAL, offsetof(struct stream, rate)},
	{"stamp", FLAG, offsetof(struct stream, stamp)},
	KEYS_OF_FRAME(struct stream),
	{0},
};
static const struct key probe_keys[] = {
	{"a", INT, offsetof(struct probe, a)},
	{"b", INT, offsetof(struct probe, b)},
	{"interval", REAL, offsetof(struct probe, interval)},
	KEYS_OF_FRAME(struct probe),
	{0},
};
static const struct key forward_keys[] = {
	{"from", INT, offsetof(struct forward, from)},
	{"to", INT, offsetof(struct forward, to)},
	{"source", MAC, offsetof(struct forward, source)},
	{"destination", MAC, offsetof(struct forward, destination)},
	{0},
};
static const struct key neighbour_keys[] = {
	{"port", INT, offsetof(struct neighbour, port)},
	{"address", ADDRESS, offsetof(struct neighbour, address)},
	{"mac", MAC, offsetof(struct neighbour, mac)},
	{0},
};
static const struct key announced_keys[] = {
	{"port", INT, offsetof(struct announced, port)},
	{"mac", MAC, offsetof(struct announced, mac)},
	{0},
};

static void set_value(const struct key *key, char *object, const char *value)
{
	void *at = object + key->offset;
	struct in_addr address;
	bool good = true;
	switch (key->kind) {
	case INT: *(int *)at = atoi(value); break;
	case UNSIGNED: *(uint32_t *)at = strtoul(value, NULL, 10); break;
	case PORT_NUMBER: *(uint16_t *)at = strtoul(value, NULL, 10); break;
	case REAL: *(double *)at = atof(value); break;
	case FLAG: *(bool *)at = atoi(value); break;
	case MAC: good = rte_ether_unformat_addr(value, at) == 0; break;
	case ADDRESS:
		good = inet_pton(AF_INET, value, &address) == 1;
		*(uint32_t *)at = good ? ntohl(address.s_addr) : 0;
		break;
	case TUNNEL:
		*(enum encapsulation *)at = !strcmp(value, "vxlan") ? VXLAN : MPLS_OVER_UDP;
		good = !strcmp(value, "vxlan") || !strcmp(value, "mpls-over-udp");
		break;
	}
	if (!good)
		rte_exit(2, "generator: %s=%s makes no sense\n", key->name, value);
}

/* Reads KEY=VALUE,KEY=VALUE into an object. */
static void read_keys(const struct key *keys, void *object, char *text)
{
	char *rest;
	for (char *pair = strtok_r(text, ",", &rest); pair; pair = strtok_r(NULL, ",", &rest)) {
		char *value = strchr(pair, '=');
		const struct key *key = keys;
		if (value)
			*value++ = 0;
		while (key->name && strcmp(key->name, pair))
			key++;
		if (!key->name || !value)
			rte_exit(2, "generator: unknown key %s\n", pair);
		set_value(key, object, value);
	}
}

static const struct frame_spec default_frame = {
	.size = 64,
	.flows = 1,
	.source = {{2, 0, 0, 0, 0, 1}},
	.destination = {{2, 0, 0, 0, 0, 2}},
	.source_ip = RTE_IPV4(10, 1, 0, 1),
	.destination_ip = RTE_IPV4(10, 1, 255, 1),
	.destination_port = 5001,
};

#define NEXT(array, count, limit)                                                                                      \
	({                                                                                                             \
		if ((count) == (limit))                                                                                \
			rte_exit(2, "generator: more than %d of --%s\n", (limit), options[index].name);                \
		&(array)[(count)++];                                                                                   \
	})

void options_parse(struct generator *g, int argc, char **argv)
{
	static const struct option options[] = {
		{"stream", required_argument, NULL, 's'},    {"probe", required_argument, NULL, 'p'},
		{"forward", required_argument, NULL, 'f'},   {"neighbour", required_argument, NULL, 'n'},
		{"announce", required_argument, NULL, 'a'},  {"queue-size", required_argument, NULL, 'q'},
		{"segmentation", no_argument, NULL, 't'},    {0},
	};
	int letter, index = 0;
	g->queue_size = 1024;
	while ((letter = getopt_long(argc, argv, "", options, &index)) != -1) {
		struct stream *stream;
		switch (letter) {
		case 's':
			stream = NEXT(g->streams, g->stream_count, MAX_STREAMS);
			stream->spec = default_frame;
			stream->rx = -1;
			read_keys(stream_keys, stream, optarg);
			break;
		case 'p':
			g->probe.spec = default_frame;
			g->has_probe = true;
			read_keys(probe_keys, &g->probe, optarg);
			break;
		case 'f': read_keys(forward_keys, NEXT(g->forwards, g->forward_count, MAX_FORWARDS), optarg); break;
		case 'n':
			read_keys(neighbour_keys, NEXT(g->neighbours, g->neighbour_count, MAX_NEIGHBOURS), optarg);
			break;
		case 'a':
			read_keys(announced_keys, NEXT(g->announced, g->announced_count, MAX_ANNOUNCED), optarg);
			break;
		case 'q': g->queue_size = atoi(optarg); break;
		case 't': g->segmentation = true; break;
		default: rte_exit(2, "generator: see generator.h for its options\n");
		}
	}
}

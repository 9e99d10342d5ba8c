/* Flows: encodes them for viaductd, which alone decides what it can do, and reads their counters. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "viaduct.h"

/* DPDK's items and actions that are sent as they are: `size` bytes of their structures. */
static const struct known {
	int type;
	uint16_t kind;
	uint16_t size;
} items[] = {
	{RTE_FLOW_ITEM_TYPE_ETH, VIADUCT_ITEM_ETH, sizeof(struct rte_flow_item_eth)},
	{RTE_FLOW_ITEM_TYPE_VLAN, VIADUCT_ITEM_VLAN, sizeof(struct rte_flow_item_vlan)},
	{RTE_FLOW_ITEM_TYPE_IPV4, VIADUCT_ITEM_IPV4, sizeof(struct rte_flow_item_ipv4)},
	{RTE_FLOW_ITEM_TYPE_IPV6, VIADUCT_ITEM_IPV6, sizeof(struct rte_flow_item_ipv6)},
	{RTE_FLOW_ITEM_TYPE_IPV6_FRAG_EXT, VIADUCT_ITEM_IPV6_FRAG, sizeof(struct rte_flow_item_ipv6_frag_ext)},
	{RTE_FLOW_ITEM_TYPE_TCP, VIADUCT_ITEM_TCP, sizeof(struct rte_flow_item_tcp)},
	{RTE_FLOW_ITEM_TYPE_UDP, VIADUCT_ITEM_UDP, sizeof(struct rte_flow_item_udp)},
	{RTE_FLOW_ITEM_TYPE_SCTP, VIADUCT_ITEM_SCTP, sizeof(struct rte_flow_item_sctp)},
	{RTE_FLOW_ITEM_TYPE_ICMP, VIADUCT_ITEM_ICMP, sizeof(struct rte_flow_item_icmp)},
	{RTE_FLOW_ITEM_TYPE_ICMP6, VIADUCT_ITEM_ICMP6, sizeof(struct rte_flow_item_icmp6)},
}, actions[] = {
	{RTE_FLOW_ACTION_TYPE_COUNT, VIADUCT_ACTION_COUNT, 0},
	{RTE_FLOW_ACTION_TYPE_DROP, VIADUCT_ACTION_DROP, 0},
	{RTE_FLOW_ACTION_TYPE_SET_MAC_SRC, VIADUCT_ACTION_MAC_SRC, 6},
	{RTE_FLOW_ACTION_TYPE_SET_MAC_DST, VIADUCT_ACTION_MAC_DST, 6},
	{RTE_FLOW_ACTION_TYPE_SET_IPV4_SRC, VIADUCT_ACTION_IPV4_SRC, 4},
	{RTE_FLOW_ACTION_TYPE_SET_IPV4_DST, VIADUCT_ACTION_IPV4_DST, 4},
	{RTE_FLOW_ACTION_TYPE_SET_IPV6_SRC, VIADUCT_ACTION_IPV6_SRC, 16},
	{RTE_FLOW_ACTION_TYPE_SET_IPV6_DST, VIADUCT_ACTION_IPV6_DST, 16},
	{RTE_FLOW_ACTION_TYPE_SET_TTL, VIADUCT_ACTION_TTL, 1},
	{RTE_FLOW_ACTION_TYPE_SET_IPV4_DSCP, VIADUCT_ACTION_DSCP, 1},
	{RTE_FLOW_ACTION_TYPE_SET_IPV6_DSCP, VIADUCT_ACTION_DSCP, 1},
	{RTE_FLOW_ACTION_TYPE_SET_TP_SRC, VIADUCT_ACTION_TP_SRC, 2},
	{RTE_FLOW_ACTION_TYPE_SET_TP_DST, VIADUCT_ACTION_TP_DST, 2},
	{RTE_FLOW_ACTION_TYPE_OF_PUSH_VLAN, VIADUCT_ACTION_PUSH_VLAN, 2},
	{RTE_FLOW_ACTION_TYPE_OF_SET_VLAN_VID, VIADUCT_ACTION_VLAN_VID, 2},
	{RTE_FLOW_ACTION_TYPE_OF_SET_VLAN_PCP, VIADUCT_ACTION_VLAN_PCP, 1},
	{RTE_FLOW_ACTION_TYPE_OF_POP_VLAN, VIADUCT_ACTION_POP_VLAN, 0},
	{RTE_FLOW_ACTION_TYPE_MARK, VIADUCT_ACTION_MARK, 0},
	{RTE_FLOW_ACTION_TYPE_RSS, VIADUCT_ACTION_RSS, 0},
};

/* Headers that VXLAN_ENCAP lists; other items in it only mark headers that are absent. */
static const struct known headers[] = {
	{RTE_FLOW_ITEM_TYPE_ETH, 0, sizeof(struct rte_ether_hdr)},
	{RTE_FLOW_ITEM_TYPE_VLAN, 0, sizeof(struct rte_vlan_hdr)},
	{RTE_FLOW_ITEM_TYPE_IPV4, 0, sizeof(struct rte_ipv4_hdr)},
	{RTE_FLOW_ITEM_TYPE_IPV6, 0, sizeof(struct rte_ipv6_hdr)},
	{RTE_FLOW_ITEM_TYPE_UDP, 0, sizeof(struct rte_udp_hdr)},
	{RTE_FLOW_ITEM_TYPE_VXLAN, 0, sizeof(struct rte_vxlan_hdr)},
};

static const struct known *find(const struct known *table, size_t count, int type)
{
	for (size_t i = 0; i < count; i++)
		if (table[i].type == type)
			return &table[i];
	return NULL;
}
#define FIND(table, type) find(table, RTE_DIM(table), type)

/* A message that is being written. */
struct writer {
	uint8_t bytes[VIADUCT_MESSAGE];
	size_t length;
	bool full;
};

static void put(struct writer *out, const void *bytes, size_t length)
{
	if (length > sizeof(out->bytes) - out->length) {
		out->full = true;
		return;
	}
	memcpy(out->bytes + out->length, bytes, length);
	out->length += length;
}

static void put_item(struct writer *out, const struct rte_flow_item *item)
{
	const struct known *known = FIND(items, item->type);
	const void *parts[] = {item->spec, item->mask, item->last};
	struct viaduct_item to = {0};
	const char *name = NULL;

	if (known == NULL) {
		if (rte_flow_conv(RTE_FLOW_CONV_OP_ITEM_NAME_PTR, &name, sizeof(name),
				  (void *)(uintptr_t)item->type, NULL) <= 0)
			name = "unknown";
		to = (struct viaduct_item){.parts = VIADUCT_SPEC, .length = strlen(name)};
		put(out, &to, sizeof(to));
		put(out, name, to.length);
		return;
	}
	to.kind = known->kind;
	to.length = known->size;
	for (int i = 0; i < 3; i++)
		to.parts |= parts[i] != NULL ? 1 << i : 0;
	put(out, &to, sizeof(to));
	for (int i = 0; i < 3; i++)
		if (parts[i] != NULL)
			put(out, parts[i], known->size);
}

static void put_action(struct writer *out, uint16_t kind, const void *bytes, size_t length)
{
	struct viaduct_action to = {.kind = kind, .length = length};

	put(out, &to, sizeof(to));
	if (length > 0)
		put(out, bytes, length);
}

static void put_output(struct writer *out, uint32_t dpdk_id)
{
	struct port *port = dpdk_id <= UINT16_MAX ? port_of(dpdk_id) : NULL;
	uint32_t handle = port == NULL ? VIADUCT_FOREIGN : dpdk_id;

	put_action(out, VIADUCT_ACTION_OUTPUT, &handle, sizeof(handle));
}

/* Writes VXLAN_ENCAP as the header bytes in its items. */
static void put_vxlan(struct writer *out, const struct rte_flow_action_vxlan_encap *encap)
{
	struct writer inner = {.length = 0};
	const struct rte_flow_item *item = encap->definition;

	for (; item->type != RTE_FLOW_ITEM_TYPE_END; item++) {
		const struct known *known = FIND(headers, item->type);

		if (known != NULL && item->spec != NULL)
			put(&inner, item->spec, known->size);
	}
	out->full |= inner.full;
	put_action(out, VIADUCT_ACTION_ENCAP, inner.bytes, inner.length);
}

static void put_one_action(struct writer *out, const struct rte_flow_action *action)
{
	const struct known *known = FIND(actions, action->type);
	const void *conf = action->conf;
	const char *name = NULL;

	if (known != NULL && (known->size == 0 || conf != NULL)) {
		put_action(out, known->kind, conf, known->size);
	} else if (action->type == RTE_FLOW_ACTION_TYPE_PORT_ID && conf != NULL) {
		const struct rte_flow_action_port_id *id = conf;
		/* `original` is the port itself. No port has this number, so the flow is refused. */
		put_output(out, id->original ? UINT32_MAX : id->id);
	} else if (action->type == RTE_FLOW_ACTION_TYPE_REPRESENTED_PORT && conf != NULL) {
		put_output(out, ((const struct rte_flow_action_ethdev *)conf)->port_id);
	} else if (action->type == RTE_FLOW_ACTION_TYPE_RAW_ENCAP && conf != NULL) {
		const struct rte_flow_action_raw_encap *encap = conf;
		put_action(out, VIADUCT_ACTION_ENCAP, encap->data, encap->size);
	} else if (action->type == RTE_FLOW_ACTION_TYPE_VXLAN_ENCAP && conf != NULL) {
		put_vxlan(out, conf);
	} else {
		if (rte_flow_conv(RTE_FLOW_CONV_OP_ACTION_NAME_PTR, &name, sizeof(name),
				  (void *)(uintptr_t)action->type, NULL) <= 0)
			name = "unknown";
		put_action(out, VIADUCT_ACTION_OTHER, name, strlen(name));
	}
}

/* Makes the request that creates a flow. NULL: it is too long for a message, or there is no memory. */
static struct viaduct_flow_create *encode(const struct rte_flow_attr *attr, const struct rte_flow_item *item,
					  const struct rte_flow_action *action)
{
	struct writer out = {.length = sizeof(struct viaduct_flow_create)};
	struct viaduct_flow_create create = {.header.kind = VIADUCT_FLOW_CREATE}, *copy;

	create.attributes = (attr->ingress ? VIADUCT_FLOW_INGRESS : 0) | (attr->egress ? VIADUCT_FLOW_EGRESS : 0) |
			    (attr->transfer ? VIADUCT_FLOW_TRANSFER : 0);
	create.group = attr->group;
	create.priority = attr->priority;
	for (; item->type != RTE_FLOW_ITEM_TYPE_END; item++) {
		if (item->type == RTE_FLOW_ITEM_TYPE_VOID)
			continue;
		put_item(&out, item);
		create.items++;
	}
	for (; action->type != RTE_FLOW_ACTION_TYPE_END; action++) {
		if (action->type == RTE_FLOW_ACTION_TYPE_VOID)
			continue;
		put_one_action(&out, action);
		create.actions++;
	}
	create.header.length = out.length;
	copy = out.full ? NULL : malloc(out.length);
	if (copy != NULL) {
		memcpy(copy, out.bytes, out.length);
		*copy = create;
	}
	return copy;
}

/* Is true if viaductd surely refuses a flow: it has an item or action that the driver does not know, or sends to a port
 * of a different driver. `handle` is that of a closed port or VIADUCT_FOREIGN. */
static bool has_output(const struct viaduct_flow_create *create, uint32_t handle, bool unknown)
{
	const uint8_t *at = (const void *)(create + 1);

	for (int i = 0; i < create->items; i++) {
		struct viaduct_item item;

		memcpy(&item, at, sizeof(item));
		if (unknown && item.kind == VIADUCT_ITEM_OTHER)
			return true;
		at += sizeof(item) + (size_t)item.length * __builtin_popcount(item.parts);
	}
	for (int i = 0; i < create->actions; i++) {
		struct viaduct_action action;
		uint32_t to;

		memcpy(&action, at, sizeof(action));
		at += sizeof(action);
		if (unknown && action.kind == VIADUCT_ACTION_OTHER)
			return true;
		if (action.kind == VIADUCT_ACTION_OUTPUT) {
			memcpy(&to, at, sizeof(to));
			if (to == handle)
				return true;
		}
		at += action.length;
	}
	return false;
}

/* Hashes bytes by FNV-1a. */
static uint64_t mix(uint64_t hash, const void *bytes, size_t length)
{
	const uint8_t *at = bytes;

	for (; length > 0; at++, length--)
		hash = (hash ^ *at) * 0x100000001b3;
	return hash;
}

/* Hashes what a flow has in common with flows of its port that differ only in the values of items; not 0. */
static uint64_t form_of(const struct port *port, const struct viaduct_flow_create *create)
{
	const uint32_t head[] = {port->handle, create->attributes, create->group, create->priority, create->items};
	const uint8_t *at = (const void *)(create + 1), *end = (const uint8_t *)create + create->header.length;
	uint64_t form = mix(0xcbf29ce484222325, head, sizeof(head));

	for (int i = 0; i < create->items; i++) {
		struct viaduct_item item;

		memcpy(&item, at, sizeof(item));
		form = mix(form, at, sizeof(item));
		at += sizeof(item);
		for (int part = VIADUCT_SPEC; part <= VIADUCT_LAST; part <<= 1) {
			if (!(item.parts & part))
				continue;
			if (part != VIADUCT_SPEC)
				form = mix(form, at, item.length);
			at += item.length;
		}
	}
	return mix(form, at, end - at) | 1;
}

static struct port *of(struct rte_eth_dev *dev)
{
	return DATA(dev, dev_private, struct port *);
}

/* Brings the sum up to date. The caller holds the session's view. */
static void count(struct rte_flow *flow)
{
	const struct viaduct_counter *at;

	if (!flow->live || flow->counters == NULL)
		return;
	at = &flow->counters->at[flow->counter];
	count_on(&flow->sum.packets, &flow->seen.packets, &at->packets);
	count_on(&flow->sum.bytes, &flow->seen.bytes, &at->bytes);
}

/* Notes that the session with this flow is over. Here and below, the caller holds the session's lock. */
void flow_lost(struct rte_flow *flow)
{
	struct counters *counters = flow->counters;

	pthread_mutex_lock(&flow->port->session->view);
	count(flow);
	flow->live = flow->waits = false;
	flow->counters = NULL;
	pthread_mutex_unlock(&flow->port->session->view);
	counters_release(counters);
}

/* Returns the place in which the session notes that viaductd vouches for flows of this form. */
static uint64_t *vouch(const struct rte_flow *flow)
{
	struct session *session = flow->port->session;

	return &session->vouched[flow->form / 2 % RTE_DIM(session->vouched)];
}

/* Takes over viaductd's answer. Returns 0, or an errno with the reason in `answer`. */
static int take_over(struct rte_flow *flow, struct viaduct_answer *answer)
{
	struct session *session = flow->port->session;
	bool waits = flow->waits;

	/* viaductd vouches for no more flows, or refused one for which it had vouched. */
	if (answer->status == 0 ? answer->ahead == 0 : waits)
		memset(session->vouched, 0, sizeof(session->vouched));
	pthread_mutex_lock(&session->view);
	flow->waits = false;
	pthread_mutex_unlock(&session->view);
	if (answer->status != 0)
		return answer->status;
	if (answer->counter >= session->counters->count) {
		snprintf(answer->text, sizeof(answer->text), "viaductd gave a counter that is not there");
		return EPROTO;
	}
	pthread_mutex_lock(&session->view);
	flow->id = answer->flow;
	flow->counter = answer->counter;
	flow->counters = session->counters;
	flow->counters->users++;
	/* Some packets may have been counted since then. */
	flow->seen = waits || session->level > 0 ? answer->seen : flow->counters->at[flow->counter];
	flow->live = true;
	pthread_mutex_unlock(&session->view);
	if (answer->ahead != 0)
		*vouch(flow) = flow->form;
	mark_put(flow);
	return 0;
}

/* Takes the answer to a request for which nobody waited. */
void flow_answered(struct rte_flow *flow, struct viaduct_answer *answer)
{
	if (take_over(flow, answer) != 0)
		LOG(WARNING, "port %s: a flow is not taken after all: %s\n", flow->port->name, answer->text);
}

/* Asks for a flow. Returns 0, or an errno with the reason in `answer`. */
static int ask_for(struct rte_flow *flow, struct viaduct_answer *answer)
{
	struct session *session = flow->port->session;
	size_t length = flow->request->header.length;
	bool ahead = flow->mark == 0 && *vouch(flow) == flow->form;
	int error;

	flow->request->port = flow->port->handle;
	flow->request->ahead = ahead;
	pthread_mutex_lock(&session->view);
	flow->waits = ahead;
	pthread_mutex_unlock(&session->view);
	error = ahead ? session_send(session, flow->request, length, flow) :
			session_ask(session, flow->request, length, answer, NULL);
	if (error != 0) {
		snprintf(answer->text, sizeof(answer->text), "viaductd: %s", strerror(error));
		return error;
	}
	return ahead ? 0 : take_over(flow, answer);
}

/* Creates a flow again, in a new session. If viaductd refuses it now, OVS forwards its packets. */
void flow_replay(struct rte_flow *flow)
{
	struct viaduct_answer answer;

	if (ask_for(flow, &answer) != 0)
		LOG(INFO, "port %s: a flow is not taken again: %s\n", flow->port->name, answer.text);
}

static void flow_free(struct rte_flow *flow)
{
	struct session *session = flow->port->session;

	for (uint32_t i = 0; flow->waits && i < VIADUCT_AHEAD; i++)
		if (session->under_way[i] == flow)
			session->under_way[i] = NULL;
	LIST_REMOVE(flow, next);
	mark_withdraw(flow);
	counters_release(flow->counters);
	free(flow->request);
	free(flow);
}

/* Gives the flows of a port that send to a closed port back to OVS, which may soon have a different port of this
 * number. */
void flows_cut(struct port *port, uint32_t handle)
{
	struct rte_flow *flow;

	LIST_FOREACH (flow, &port->flows, next)
		flow->cut |= has_output(flow->request, handle, false);
}

void flow_forget_all(struct port *port)
{
	while (!LIST_EMPTY(&port->flows))
		flow_free(LIST_FIRST(&port->flows));
}

static int refused(struct rte_flow_error *error, int code, const char *text)
{
	/* The error has only a pointer to this text; each thread reads its own before the next call. */
	static __thread char last[VIADUCT_TEXT];

	snprintf(last, sizeof(last), "%s", text);
	return rte_flow_error_set(error, code, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, last);
}

/* Returns the mark that a flow's packets are to get; 0: none. */
static uint32_t mark_in(const struct rte_flow_action *action)
{
	for (; action->type != RTE_FLOW_ACTION_TYPE_END; action++)
		if (action->type == RTE_FLOW_ACTION_TYPE_MARK && action->conf != NULL)
			return ((const struct rte_flow_action_mark *)action->conf)->id;
	return 0;
}

static struct rte_flow *flow_create(struct rte_eth_dev *dev, const struct rte_flow_attr *attr,
				    const struct rte_flow_item pattern[], const struct rte_flow_action actions[],
				    struct rte_flow_error *error)
{
	struct port *port = of(dev);
	struct viaduct_flow_create *request = encode(attr, pattern, actions);
	struct rte_flow *flow = calloc(1, sizeof(*flow));
	struct viaduct_answer answer = {.text = "not connected to viaductd"};
	int code = ENOTCONN;

	if (request == NULL || flow == NULL) {
		free(request);
		free(flow);
		refused(error, ENOMEM, "no memory, or a flow that is too long for a message");
		return NULL;
	}
	flow->port = port;
	flow->request = request;
	flow->form = form_of(port, request);
	flow->mark = mark_in(actions);
	if (flow->mark != 0 && !mark_wait()) {
		free(request);
		free(flow);
		refused(error, EBUSY, "packets with the mark of another flow may be under way");
		return NULL;
	}
	pthread_mutex_lock(&port->session->lock);
	if (port->open)
		code = ask_for(flow, &answer);
	/* The next viaductd gets it. Until then OVS forwards its packets, and after that it would not ask again. */
	if ((!port->open || port->session->broken) && flow->mark == 0 &&
	    !has_output(request, VIADUCT_FOREIGN, true))
		code = 0;
	if (code == 0)
		LIST_INSERT_HEAD(&port->flows, flow, next);
	pthread_mutex_unlock(&port->session->lock);
	if (code != 0) {
		free(request);
		free(flow);
		refused(error, code, answer.text);
		return NULL;
	}
	return flow;
}

/* Destroys a flow. A flow that no session has any more is already gone from viaductd. */
static int flow_destroy(struct rte_eth_dev *dev, struct rte_flow *flow, struct rte_flow_error *error)
{
	struct session *session = of(dev)->session;
	struct viaduct_flow_destroy request = {.header.kind = VIADUCT_FLOW_DESTROY};
	struct viaduct_answer answer;
	size_t length = sizeof(request);

	(void)error;
	pthread_mutex_lock(&session->lock);
	if (flow->waits)
		session_collect(session, true);
	request.flow = flow->id;
	/* viaductd adds what OVS does not read any more to the next such flow. */
	request.packets = flow->seen.packets - (flow->sum.packets - flow->told.packets);
	request.bytes = flow->seen.bytes - (flow->sum.bytes - flow->told.bytes);
	if (session->level == 0)
		length = offsetof(struct viaduct_flow_destroy, packets);
	/* The next flow may get the mark of this one only after the answer. */
	if (flow->live && flow->mark != 0)
		session_ask(session, &request, length, &answer, NULL);
	else if (flow->live)
		session_send(session, &request, length, NULL);
	flow_free(flow);
	pthread_mutex_unlock(&session->lock);
	return 0;
}

static int flow_flush(struct rte_eth_dev *dev, struct rte_flow_error *error)
{
	struct port *port = of(dev);
	struct viaduct_port request = {.header.kind = VIADUCT_FLOW_FLUSH, .port = port->handle};
	struct viaduct_answer answer;

	(void)error;
	pthread_mutex_lock(&port->session->lock);
	if (port->open)
		session_ask(port->session, &request, sizeof(request), &answer, NULL);
	flow_forget_all(port);
	pthread_mutex_unlock(&port->session->lock);
	return 0;
}

static int flow_query(struct rte_eth_dev *dev, struct rte_flow *flow, const struct rte_flow_action *actions, void *data,
		      struct rte_flow_error *error)
{
	struct session *session = of(dev)->session;
	struct rte_flow_query_count *answer = data;
	bool waits = false;

	session_count(session);
	for (; actions->type != RTE_FLOW_ACTION_TYPE_END; actions++) {
		if (actions->type == RTE_FLOW_ACTION_TYPE_VOID)
			continue;
		if (actions->type != RTE_FLOW_ACTION_TYPE_COUNT)
			return refused(error, ENOTSUP, "only counters can be queried");
		pthread_mutex_lock(&session->view);
		count(flow);
		answer->hits = flow->sum.packets;
		answer->bytes = flow->sum.bytes;
		if (answer->reset)
			flow->sum = (struct viaduct_counter){0};
		flow->told = flow->sum;
		waits = flow->waits;
		pthread_mutex_unlock(&session->view);
		answer->hits_set = 1;
		answer->bytes_set = 1;
	}
	/* The next query then includes what the flow counted. */
	if (waits && pthread_mutex_trylock(&session->lock) == 0) {
		session_collect(session, false);
		pthread_mutex_unlock(&session->lock);
	}
	return 0;
}

/* Returns the functions for DPDK, in its structure of this version. */
const struct rte_flow_ops *flow_ops(void)
{
	static uint64_t ops[VIADUCT_SIZE_rte_flow_ops / 8];

	MEMBER(rte_flow_ops, ops, create, void *) = flow_create;
	MEMBER(rte_flow_ops, ops, destroy, void *) = flow_destroy;
	MEMBER(rte_flow_ops, ops, flush, void *) = flow_flush;
	MEMBER(rte_flow_ops, ops, query, void *) = flow_query;
	return (const void *)ops;
}

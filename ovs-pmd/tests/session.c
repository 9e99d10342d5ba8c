/* Tests the driver against a viaductd that misbehaves, a thread of this program. Runs without DPDK's environment. */
#include <assert.h>
#include <netinet/in.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "../ethdev.c"
#include "../ring.c"
#include "../session.c"
#include "../ovsdb.c"

#define SLOTS 16
#define COUNTERS 1024

/* The ways in which viaductd misbehaves. */
static struct {
	uint32_t unsealed, too_short; /* the file for this kind of request */
	uint32_t counters, slots;
	bool silent; /* answers a request for an MTU only when `go_on` is posted */
	bool mute;   /* answers no request for a flow */
	bool stopped; /* greets nobody before `go_on` is posted */
	bool busy;    /* brings counters up to date only when `go_on` is posted */
} wrong;
/* Answers about flows: for how many more it vouches, and whether it refuses them. */
static uint32_t vouches, refuses;
/* Most answers that it puts into a message, and how many it did put into one. */
static uint32_t together = 1, most_together;
/* Most requests that it takes in a message, and how many it got in one. */
static uint32_t requests_together, most_requests;
/* How many flows it was asked for, for how many of them the driver does not wait, and how many were destroyed. */
static _Atomic uint32_t creates, aheads, destroys;
static sem_t go_on, asked;
static struct viaduct_port last_mtu, last_link, last_qos;
static _Atomic uint32_t settled; /* how often it was told that all ports are open */
static struct viaduct_flow_destroy last_destroy;
/* Level of its protocol, how often it was asked for counters, and what it then sets them to. */
static uint16_t level = VIADUCT_LEVEL;
static _Atomic uint32_t counts_asked;
static struct viaduct_counter fresh;
static struct viaduct_port_open last_open;
static struct viaduct_page *page;
static uint64_t counted = 5; /* by viaductd for the port, before OVS */
static struct viaduct_counter *counters;
static size_t there, taken; /* bytes of the message under way */
static struct viaduct_counter of_flow = {UINT64_MAX - 1, UINT64_MAX - 99}; /* before the flow is made */

static int file_of(uint32_t kind, uint64_t length)
{
	int file = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert(file >= 0 && ftruncate(file, wrong.too_short == kind ? length - 1 : length) == 0);
	if (wrong.unsealed != kind)
		assert(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	return file;
}

static void answer(int to, struct viaduct_answer *said, uint32_t answers, const int *files, int count)
{
	union {
		char bytes[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct iovec part = {said, answers * sizeof(*said)};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	if (count > 0) {
		struct cmsghdr *c = &control.align;

		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(c), files, count * sizeof(int));
	}
	/* The driver may have ended the session meanwhile. */
	assert(sendmsg(to, &message, MSG_NOSIGNAL) == (ssize_t)part.iov_len || errno == EPIPE);
	for (int i = 0; i < count; i++)
		close(files[i]);
}

/* Takes the next request of the message, or waits for the next message and takes its first. */
static bool next_request(int socket, void *request)
{
	static uint8_t message[VIADUCT_MESSAGE];
	static uint32_t in_message;
	struct viaduct_header header;

	if (taken == there) {
		ssize_t got = recv(socket, message, sizeof(message), 0);

		taken = in_message = 0;
		there = got < 0 ? 0 : got;
		if (got <= 0)
			return false;
	}
	assert(there - taken >= sizeof(header));
	memcpy(&header, message + taken, sizeof(header));
	assert(header.length <= there - taken);
	memcpy(request, message + taken, header.length);
	taken += header.length;
	most_requests = RTE_MAX(++in_message, most_requests);
	return true;
}

/* Serves one session until the driver ends it. */
static void serve(int socket)
{
	uint32_t buffer[VIADUCT_MESSAGE / 4];
	struct viaduct_header *request = (void *)buffer;
	struct viaduct_answer answers[VIADUCT_AHEAD];
	uint32_t gathered = 0;

	while (next_request(socket, buffer)) {
		struct viaduct_answer said = {.counters = COUNTERS, .slots = SLOTS};
		int files[2], count = 0;

		if (request->kind == VIADUCT_HELLO) {
			assert(((struct viaduct_hello *)buffer)->answers == VIADUCT_AHEAD);
			if (wrong.stopped) {
				sem_post(&asked);
				sem_wait(&go_on);
			}
			said.together = requests_together;
			said.level = level;
			said.counters = wrong.counters ? wrong.counters : COUNTERS;
			files[count++] = file_of(VIADUCT_HELLO, COUNTERS * sizeof(*counters));
			counters = mmap(NULL, COUNTERS * sizeof(*counters), PROT_READ | PROT_WRITE, MAP_SHARED, files[0], 0);
			assert(counters != MAP_FAILED);
		} else if (request->kind == VIADUCT_PORT_OPEN) {
			assert(request->length ==
			       (level > 0 ? sizeof(last_open) : offsetof(struct viaduct_port_open, device)));
			memcpy(&last_open, buffer, request->length);
			said.slots = wrong.slots ? wrong.slots : SLOTS;
			files[count++] = file_of(VIADUCT_PORT_OPEN, VIADUCT_FILE(SLOTS));
			page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, files[0], 0);
			assert(page != MAP_FAILED);
			page->rx_packets = counted;
			files[count++] = memfd_create("bell", MFD_CLOEXEC);
		} else if (request->kind == VIADUCT_FLOW_CREATE) {
			creates++;
			aheads += ((struct viaduct_flow_create *)buffer)->ahead;
			said.status = refuses;
			said.flow = 1;
			said.counter = COUNTERS - 1;
			said.ahead = vouches;
			counters[said.counter] = of_flow;
			if (refuses)
				strcpy(said.text, "full");
			else
				said.seen = of_flow;
			if (wrong.mute)
				continue;
		} else if (request->kind == VIADUCT_FLOW_DESTROY) {
			assert(request->length ==
			       (level > 0 ? sizeof(last_destroy) : offsetof(struct viaduct_flow_destroy, packets)));
			memcpy(&last_destroy, buffer, request->length);
			destroys++;
		} else if (request->kind == VIADUCT_COUNT) {
			assert(level > 0);
			counts_asked++;
			if (wrong.busy)
				sem_wait(&go_on);
			if (fresh.packets != 0)
				counters[COUNTERS - 1] = fresh;
		} else if (request->kind == VIADUCT_SETTLED) {
			assert(level > 0 && taken == there);
			settled++;
		} else if (request->kind == VIADUCT_PORT_QOS) {
			assert(level > 0);
			memcpy(&last_qos, buffer, sizeof(last_qos));
		} else if (request->kind == VIADUCT_PORT_LINK) {
			memcpy(&last_link, buffer, sizeof(last_link));
		} else if (request->kind == VIADUCT_PORT_MTU) {
			memcpy(&last_mtu, buffer, sizeof(last_mtu));
			sem_post(&asked);
			if (wrong.silent)
				sem_wait(&go_on);
		}
		answers[gathered++] = said;
		/* Go on as long as more requests come. */
		if (gathered < together && (taken < there || poll(&(struct pollfd){.fd = socket, .events = POLLIN}, 1, 20) > 0))
			continue;
		answer(socket, answers, gathered, files, count);
		most_together = RTE_MAX(gathered, most_together);
		gathered = 0;
	}
	close(socket);
}

static void *serve_all(void *listener)
{
	for (;;) {
		int socket = accept(*(int *)listener, NULL, NULL);

		assert(socket >= 0);
		serve(socket);
	}
	return NULL;
}

static struct rte_eth_dev *device_with(struct port *port)
{
	static uint64_t device[VIADUCT_SIZE_rte_eth_dev / 8], data[VIADUCT_SIZE_rte_eth_dev_data / 8];
	struct rte_eth_dev *dev = (void *)device;

	DEV(dev, data, void *) = data;
	DATA(dev, dev_private, void *) = port;
	return dev;
}

/* Makes a session and a port, with what is wrong now. */
static int try(const char *path, struct port **port)
{
	/* Each try has its own session. */
	struct session *session = calloc(1, sizeof(*session));
	int error;

	assert(session != NULL);
	pthread_mutex_init(&session->lock, NULL);
	pthread_mutex_init(&session->view, NULL);
	LIST_INIT(&session->ports);
	strcpy(session->path, path);
	session->socket = -1;
	session->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	error = start(session);
	if (error != 0)
		return error;
	*port = calloc(1, sizeof(**port));
	strcpy((*port)->name, "vm1");
	LIST_INIT(&(*port)->flows);
	(*port)->rx.port = (*port)->tx.port = *port;
	(*port)->dev = device_with(*port);
	error = session_add(session, *port);
	if (error != 0)
		close(session->socket);
	return error;
}

static void *ask_mtu(void *argument)
{
	struct port *port = argument;

	pthread_mutex_lock(&port->session->lock);
	assert(session_mtu(port, 1400) == 0);
	pthread_mutex_unlock(&port->session->lock);
	return NULL;
}

static struct rte_flow_query_count ask_count(struct rte_eth_dev *dev, struct rte_flow *flow, bool reset)
{
	const struct rte_flow_action count[] = {{.type = RTE_FLOW_ACTION_TYPE_COUNT}, {.type = RTE_FLOW_ACTION_TYPE_END}};
	struct rte_flow_query_count answer = {.reset = reset};
	int (*query)(struct rte_eth_dev *, struct rte_flow *, const struct rte_flow_action *, void *,
		     struct rte_flow_error *) = MEMBER(rte_flow_ops, flow_ops(), query, void *);

	assert(query(dev, flow, count, &answer, NULL) == 0 && answer.hits_set && answer.bytes_set);
	return answer;
}

static struct rte_flow *create(struct rte_eth_dev *dev, struct rte_flow_attr attr, struct rte_flow_action action,
			       struct rte_flow_error *error)
{
	const struct rte_flow_item items[] = {{.type = RTE_FLOW_ITEM_TYPE_END}};
	const struct rte_flow_action actions[] = {action, {.type = RTE_FLOW_ACTION_TYPE_END}};
	struct rte_flow *(*make)(struct rte_eth_dev *, const struct rte_flow_attr *, const struct rte_flow_item *,
				 const struct rte_flow_action *, struct rte_flow_error *);

	make = MEMBER(rte_flow_ops, flow_ops(), create, void *);
	return make(dev, &attr, items, actions, error);
}

/* Checks that OVS is told exactly what was counted, when counters wrap around and when they begin anew. */
static void wrap(struct session *session, struct port *port)
{
	struct rte_eth_dev *dev = device_with(port);
	struct viaduct_page before = counts(port);
	struct rte_flow_query_count seen;
	struct rte_flow *flow;

	page->rx_packets = UINT64_MAX - 1;
	assert(counts(port).rx_packets == before.rx_packets);
	page->rx_packets = 3;
	assert(counts(port).rx_packets == before.rx_packets + 5);
	page->rx_packets = 1;
	assert(counts(port).rx_packets == before.rx_packets + 5);
	page->rx_packets = 2;
	assert(counts(port).rx_packets == before.rx_packets + 6);

	flow = create(dev, (struct rte_flow_attr){.transfer = 1}, (struct rte_flow_action){RTE_FLOW_ACTION_TYPE_DROP, NULL},
		      NULL);
	assert(flow != NULL);
	seen = ask_count(dev, flow, true);
	assert(seen.hits == 0 && seen.bytes == 0);
	counters[COUNTERS - 1] = (struct viaduct_counter){1, 100};
	seen = ask_count(dev, flow, false);
	assert(seen.hits == 3 && seen.bytes == 200);
	counters[COUNTERS - 1] = (struct viaduct_counter){0, 0};
	seen = ask_count(dev, flow, true);
	assert(seen.hits == 3 && seen.bytes == 200);
	counters[COUNTERS - 1] = (struct viaduct_counter){2, 128};
	seen = ask_count(dev, flow, true);
	assert(seen.hits == 2 && seen.bytes == 128);
	/* The next viaductd has a different counter for the flow. What the last one counted is not lost. */
	counters[COUNTERS - 1].packets = 4;
	of_flow = (struct viaduct_counter){10, 1000};
	end(session);
	assert(start(session) == 0 && resume(session));
	seen = ask_count(dev, flow, true);
	assert(seen.hits == 2 && seen.bytes == 0);
}

/* Checks that packets have the mark of their flow, not that of a flow that had its counter before, and that a mark
 * goes to a new flow only after OVS has looked at all packets that have it. */
static void marks(struct session *session, struct port *port)
{
	const uint32_t counter = COUNTERS - 1;
	const uint64_t first = (1ull << 32) + 3; /* place of the next packet, past the end of what the ring counts */
	struct rte_eth_dev *dev = device_with(port);
	struct rte_flow_action_mark conf = {.id = 7};
	struct rte_flow_action action = {RTE_FLOW_ACTION_TYPE_MARK, &conf};
	struct rte_flow_attr attr = {.ingress = 1};
	struct rte_flow_error error;
	struct rte_flow *flow;
	int (*destroy)(struct rte_eth_dev *, struct rte_flow *, struct rte_flow_error *);

	destroy = MEMBER(rte_flow_ops, flow_ops(), destroy, void *);
	port->rings->taken = first - 5;
	port->rings->rx.shared->tail = (uint32_t)first;
	assert(mark_of(session->marks, counter, 0, first) == 0);
	flow = create(dev, attr, action, &error);
	assert(flow != NULL);
	assert(mark_of(session->marks, counter, 0, first) == 7 && mark_of(session->marks, counter, 0, first - 1) == 0);
	assert(mark_of(session->marks, counter, 1, first) == 0);
	assert(mark_of(session->marks, counter - 1, 0, first) == 0 && mark_of(session->marks, COUNTERS, 0, first) == 0);

	/* The next session has new rings. */
	end(session);
	assert(start(session) == 0 && resume(session));
	assert(mark_of(session->marks, counter, 0, 0) == 7);

	assert(destroy(dev, flow, &error) == 0);
	assert(mark_of(session->marks, counter, 0, first) == 0);
	assert(create(dev, attr, action, &error) == NULL && rte_errno == EBUSY);
	flow = create(dev, (struct rte_flow_attr){.transfer = 1}, (struct rte_flow_action){RTE_FLOW_ACTION_TYPE_DROP, NULL},
		      &error);
	assert(flow != NULL && destroy(dev, flow, &error) == 0);
	mark_burst(port);
	conf.id = 9;
	flow = create(dev, attr, action, &error);
	assert(flow != NULL && mark_of(session->marks, counter, 0, first) == 9);
	assert(destroy(dev, flow, &error) == 0);
	mark_close(port);
	flow = create(dev, attr, action, &error);
	assert(flow != NULL);
}

/* Checks that the driver waits for no answer about flows as long as viaductd vouches for them, and that counts,
 * refusals and losses meanwhile have the same effect as if it had waited. */
static void ahead(struct session *session, struct port *port)
{
	const struct rte_flow_attr attr = {.transfer = 1};
	const struct rte_flow_action drop = {RTE_FLOW_ACTION_TYPE_DROP, NULL};
	struct rte_eth_dev *dev = device_with(port);
	struct rte_flow *flows[3 * VIADUCT_AHEAD], *flow;
	int (*destroy)(struct rte_eth_dev *, struct rte_flow *, struct rte_flow_error *);
	struct rte_flow_error error;
	uint32_t before;

	destroy = MEMBER(rte_flow_ops, flow_ops(), destroy, void *);
	vouches = VIADUCT_AHEAD;
	creates = aheads = destroys = 0;
	of_flow = (struct viaduct_counter){100, 10000};
	for (unsigned i = 0; i < RTE_DIM(flows); i++) {
		flows[i] = create(dev, attr, drop, &error);
		assert(flows[i] != NULL && flows[i]->waits == (i > 0) && session->waiting <= VIADUCT_AHEAD);
	}
	flow = flows[RTE_DIM(flows) - 1];
	session_collect(session, true);
	assert(creates == RTE_DIM(flows) && aheads == creates - 1 && session->waiting == 0 && flow->live);
	/* The driver waits for a flow of a different form, and for one that gets a mark. */
	assert(create(dev, attr, (struct rte_flow_action){RTE_FLOW_ACTION_TYPE_OF_POP_VLAN, NULL}, &error) != NULL);
	assert(creates == RTE_DIM(flows) + 1 && aheads == creates - 2);
	/* Packets were counted before the answer was read. */
	counters[COUNTERS - 1].packets = 103;
	assert(ask_count(dev, flow, true).hits == 3);

	/* One flow is destroyed before its answer is read, and one goes with the others of its port. */
	flow = create(dev, attr, drop, &error);
	assert(flow != NULL && flow->waits && destroy(dev, flow, &error) == 0);
	flow = create(dev, attr, drop, &error);
	assert(flow != NULL && flow->waits);
	pthread_mutex_lock(&session->lock);
	flow_forget_all(port);
	session_collect(session, true);
	pthread_mutex_unlock(&session->lock);
	assert(destroys == 1 && session->waiting == 0 && !session->broken);

	/* One is refused after all: OVS forwards its packets, and the next one is refused to OVS. */
	refuses = ENOSPC;
	flow = create(dev, attr, drop, &error);
	assert(flow != NULL && flow->waits);
	session_collect(session, true);
	assert(!flow->live && !flow->waits && ask_count(dev, flow, false).hits == 0);
	assert(create(dev, attr, drop, &error) == NULL && rte_errno == ENOSPC);
	assert(destroy(dev, flow, &error) == 0 && destroys == 1);

	/* viaductd says that there may be no more room. */
	refuses = vouches = 0;
	for (int i = 0; i < 2; i++) {
		flow = create(dev, attr, drop, &error);
		assert(flow != NULL && !flow->waits);
	}

	/* The session ends while answers are under way, so the next viaductd is asked again. */
	vouches = VIADUCT_AHEAD;
	assert(create(dev, attr, drop, &error) != NULL);
	before = creates;
	wrong.mute = true;
	flow = create(dev, attr, drop, &error);
	assert(flow != NULL && flow->waits);
	session_collect(session, false);
	while (creates == before)
		sched_yield();
	end(session);
	assert(!flow->waits && !flow->live && session->waiting == 0);
	assert(start(session) == 0);
	/* Once it greets, it has read all that the ended session asked. */
	wrong.mute = false;
	creates = 0;
	assert(resume(session) && resume(session));
	session_collect(session, true);
	assert(flow->live && creates == 4);
	/* It no longer answers: not any number of flows is created. */
	wrong.mute = true;
	shutdown(session->socket, SHUT_RD);
	for (int i = 0; i < VIADUCT_AHEAD; i++)
		assert(create(dev, attr, drop, &error) != NULL);
	/* The next viaductd gets this one. */
	flow = create(dev, attr, drop, &error);
	assert(flow != NULL && session->broken && !flow->live);
	end(session);
	assert(start(session) == 0);
	wrong.mute = false;
	vouches = 0;
	assert(resume(session) && flow->live);
}

/* Checks that counters are brought up to date before OVS reads them, but not for each flow; that viaductd is told what
 * OVS has read of a flow that goes; and that an older viaductd is asked for nothing that it does not know. */
static void counting(struct session *session, struct port *port)
{
	const struct rte_flow_attr attr = {.transfer = 1};
	const struct rte_flow_action drop = {RTE_FLOW_ACTION_TYPE_DROP, NULL};
	struct rte_eth_dev *dev = device_with(port);
	int (*destroy)(struct rte_eth_dev *, struct rte_flow *, struct rte_flow_error *);
	struct rte_flow_error error;
	struct rte_flow *flow;

	destroy = MEMBER(rte_flow_ops, flow_ops(), destroy, void *);
	of_flow = (struct viaduct_counter){100, 10000};
	flow = create(dev, attr, drop, &error);
	assert(flow != NULL && flow->live);
	session->next_count = counts_asked = 0;
	fresh = (struct viaduct_counter){107, 10700};
	assert(ask_count(dev, flow, true).hits == 7 && counts_asked == 1);
	for (int i = 0; i < 100; i++)
		ask_count(dev, flow, true);
	assert(counts_asked < 50);
	/* While OVS reads many, it does not wait for each look. */
	session_collect(session, true);
	session->counting = false;
	wrong.busy = true;
	fresh = (struct viaduct_counter){109, 10900};
	session->next_count = 0;
	session->counted_at = milliseconds() + 1000;
	assert(ask_count(dev, flow, true).hits == 0 && session->counting);
	assert(session->next_count <= milliseconds() + 1);
	sem_post(&go_on);
	session_collect(session, true);
	wrong.busy = false;
	session->next_count = 0;
	assert(ask_count(dev, flow, true).hits == 2);
	fresh.packets = 0;
	counters[COUNTERS - 1] = (struct viaduct_counter){110, 11000};
	assert(destroy(dev, flow, &error) == 0);
	session_collect(session, true);
	assert(last_destroy.packets == 109 && last_destroy.bytes == 10900);

	end(session);
	level = 0;
	assert(start(session) == 0 && resume(session));
	flow = create(dev, attr, drop, &error);
	session->next_count = counts_asked = 0;
	ask_count(dev, flow, true);
	assert(counts_asked == 0 && destroy(dev, flow, &error) == 0);
	session_collect(session, true);
	end(session);
	level = VIADUCT_LEVEL;
	assert(start(session) == 0 && resume(session));
}

/* Checks that flows which send to a closed port are not made again, even if another port gets its number. */
static void closed(struct session *session, struct port *port)
{
	const struct {
		struct viaduct_flow_create head;
		struct viaduct_action action;
		uint32_t to;
	} __attribute__((packed)) sends = {
		{.header = {VIADUCT_FLOW_CREATE, sizeof(sends)}, .actions = 1}, {VIADUCT_ACTION_OUTPUT, 4}, 7};
	struct viaduct_flow_create *request = malloc(sizeof(sends));
	struct rte_flow *flow = calloc(1, sizeof(*flow));
	struct port *other = calloc(1, sizeof(*other));

	memcpy(request, &sends, sizeof(sends));
	*flow = (struct rte_flow){.port = port, .request = request, .form = 1};
	LIST_INSERT_HEAD(&port->flows, flow, next);
	LIST_INIT(&other->flows);
	other->rx.port = other->tx.port = other;
	other->dev = device_with(port);
	other->handle = 7;
	assert(session_add(session, other) == 0);
	assert(resume(session));
	assert(flow->live);
	session_remove(other);
	end(session);
	assert(session_add(session, other) == 0 && resume(session) && !flow->live);
	session_remove(other);
}

/* Checks that the database is read as it is, and that viaductd hears of a port's policing, and the next one, too. */
static void quality(struct session *session, struct port *port)
{
	const char *answer =
		"{\"id\":\"ask\",\"error\":null,\"result\":[{\"rows\":["
		"{\"_uuid\":[\"uuid\",\"a-1\"],\"ingress_policing_rate\":800,\"ingress_policing_kpkts_rate\":0,"
		"\"options\":[\"map\",[[\"a\\\"]\",\"b\"],[\"dpdk-devargs\",\"net_viaduct1,port=c1\"]]]},"
		"{\"_uuid\":[\"uuid\",\"a-2\"],\"ingress_policing_rate\":0,\"ingress_policing_kpkts_rate\":0,"
		"\"options\":[\"map\",[[\"dpdk-devargs\",\"net_viaduct2\"]]]},"
		"{\"_uuid\":[\"uuid\",\"a-3\"],\"ingress_policing_rate\":0,\"ingress_policing_kpkts_rate\":2,"
		"\"options\":[\"map\",[[\"dpdk-devargs\",\"\"]]]}]},"
		"{\"rows\":[{\"interfaces\":[\"set\",[[\"uuid\",\"a-9\"],[\"uuid\",\"a-2\"]]],\"qos\":[\"uuid\",\"q\"]}]}]} {";
	const char *end_of = skip(answer, 0);
	char deep[2 * DEEPEST + 2] = {0};

	assert(end_of != NULL && strcmp(end_of, " {") == 0);
	for (size_t length = 0; length < (size_t)(end_of - answer); length++) {
		char *part = strndup(answer, length);

		assert(skip(part, 0) == NULL);
		free(part);
	}
	memset(deep, '[', sizeof(deep) - 1);
	assert(skip(deep, 0) == NULL);
	assert(handle(-1, answer));
	assert(ovsdb_qos("net_viaduct1") == VIADUCT_QOS_IN && ovsdb_qos("net_viaduct2") == VIADUCT_QOS_OUT);
	assert(ovsdb_qos("net_viaduct") == 0 && ovsdb_qos("") == 0);

	port->qos = VIADUCT_QOS_OUT;
	end(session);
	assert(start(session) == 0 && resume(session));
	assert(last_qos.port == port->handle && last_qos.qos == VIADUCT_QOS_OUT);
	look_at_qos(session);
	assert(port->qos == 0 && last_qos.qos == 0);

	/* viaductd hears of a database that can't be read, and that it can be read again. */
	LIST_INSERT_HEAD(&sessions, session, next);
	do_without();
	assert(last_qos.qos == VIADUCT_QOS_UNKNOWN && ovsdb_qos("net_viaduct2") == (VIADUCT_QOS_OUT | VIADUCT_QOS_UNKNOWN));
	assert(handle(-1, answer) && last_qos.qos == 0);

	/* It hears once that no port is missing that the database has. */
	session_collect(session, true);
	assert(settled == 0);
	for (int i = 0; i < 2; i++)
		assert(handle(-1, "{\"id\":\"ask\",\"error\":null,\"result\":[{\"rows\":[]},{\"rows\":[]}]}"));
	session_collect(session, true);
	assert(settled == 1);
	LIST_REMOVE(session, next);
}

/* Checks that a database by TCP is found in the forms that Open vSwitch takes. */
static void by_tcp(void)
{
	struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;
	socklen_t length = sizeof(here);
	const char *const forms[] = {"127.0.0.1:%d", "[127.0.0.1]:%d", "localhost:%d"};
	char where[64];

	assert(bind(listener, (void *)&here, length) == 0 && listen(listener, 4) == 0);
	assert(getsockname(listener, (void *)&here, &length) == 0);
	for (size_t i = 0; i < RTE_DIM(forms); i++) {
		snprintf(where, sizeof(where), forms[i], ntohs(here.sin_port));
		fd = connect_tcp(where);
		assert(fd >= 0 && close(fd) == 0);
	}
	close(listener);
	assert(connect_tcp(where) < 0 && connect_tcp("[") < 0 && connect_tcp("") < 0);
	assert(find_database() == NULL);
}

/* Checks that the session's thread sends requests that are too few to fill a message. */
static void gathered(struct port *port)
{
	const struct rte_flow_action drop = {RTE_FLOW_ACTION_TYPE_DROP, NULL};
	struct rte_flow_error error;

	vouches = VIADUCT_AHEAD;
	creates = 0;
	for (uint32_t wanted = 1; wanted <= 4; wanted++) {
		assert(create(device_with(port), (struct rte_flow_attr){.transfer = 1}, drop, &error) != NULL);
		while (creates < wanted)
			sched_yield();
	}
	assert(aheads > 0);
}

/* Checks that viaductd, and the next one, hear that OVS sets a port down or up, and that the link is down meanwhile.
 * */
static void links(struct session *session, struct port *port)
{
	struct rte_eth_dev *dev = device_with(port);
	struct rte_eth_link link;

	for (int down = 1; down >= 0; down--) {
		memset(&last_link, 0xff, sizeof(last_link));
		assert((down ? set_link_down(dev) : set_link_up(dev)) == 0);
		assert(last_link.port == port->handle && last_link.down == (uint32_t)down);
		end(session);
		assert((down ? set_link_down(dev) : set_link_up(dev)) == 0);
		assert(start(session) == 0 && resume(session) && last_open.down == (uint32_t)down);
		page->link = 1;
		link_update(dev, 0);
		memcpy(&link, &DATA(dev, dev_link, uint64_t), sizeof(link));
		assert(link.link_status == (down ? RTE_ETH_LINK_DOWN : RTE_ETH_LINK_UP));
	}
	/* There is no viaductd at the time. */
	end(session);
	assert(set_link_down(dev) == 0 && start(session) == 0 && resume(session) && last_open.down == 1);
	assert(set_link_up(dev) == 0 && last_link.down == 0);
}

/* Checks that a port which comes between two attempts to connect makes the driver connect at once. */
static void comes(struct session *session, struct port *other)
{
	struct port *port = calloc(1, sizeof(*port));

	LIST_INIT(&port->flows);
	port->rx.port = port->tx.port = port;
	port->dev = device_with(port);
	end(session);
	assert(session_add(session, port) == 0 && port->open && other->open);
	session_remove(port);
}

static bool is_open(struct session *session, const struct port *port)
{
	bool is;

	pthread_mutex_lock(&session->lock);
	is = port->open;
	pthread_mutex_unlock(&session->lock);
	return is;
}

/* Checks that, once viaductd has not answered in time because a signal stopped it, only the thread waits for it. */
static void stopped(struct session *session, struct port *port)
{
	struct port *other = calloc(1, sizeof(*other));
	struct rte_flow_error error;
	struct rte_flow *flow;
	pthread_t thread;

	LIST_INIT(&other->flows);
	other->rx.port = other->tx.port = other;
	other->dev = device_with(port);
	while (sem_trywait(&asked) == 0)
		;
	wrong.stopped = true;
	lose(session, EAGAIN);
	pthread_create(&thread, NULL, run, session);
	sem_wait(&asked);
	assert(pthread_mutex_trylock(&session->lock) == 0);
	pthread_mutex_unlock(&session->lock);
	/* A flow waits for the next viaductd, unless viaductd would refuse it anyway. */
	flow = create(device_with(port), (struct rte_flow_attr){.transfer = 1},
		      (struct rte_flow_action){RTE_FLOW_ACTION_TYPE_DROP, NULL}, &error);
	assert(flow != NULL && !flow->live);
	assert(create(device_with(port), (struct rte_flow_attr){.transfer = 1},
		      (struct rte_flow_action){RTE_FLOW_ACTION_TYPE_METER, NULL}, &error) == NULL && rte_errno == ENOTCONN);
	assert(session->silent && session_add(session, other) == 0 && !other->open);
	wrong.stopped = false;
	sem_post(&go_on);
	while (!is_open(session, port) || !is_open(session, other))
		sched_yield();
	assert(!session->silent);
	pthread_mutex_lock(&session->lock);
	session_collect(session, true);
	assert(flow->live);
	pthread_mutex_unlock(&session->lock);
}

/* Returns the hash of the first bytes of a frame; 0: it gets none. */
static uint32_t hash_of(uint8_t *frame, uint16_t length)
{
	struct rte_mbuf mbuf = {.buf_addr = frame, .data_len = length};

	hash(&mbuf);
	return mbuf.ol_flags & RTE_MBUF_F_RX_RSS_HASH ? mbuf.hash.rss : 0;
}

/* Checks that packets of a connection have the same hash, no matter what else differs, that other connections have
 * other hashes, and that a packet without a whole header of TCP or UDP has none. */
static void hashes(void)
{
	const uint8_t v4[24] = {0x45, [8] = 64, 17, [12] = 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9};
	const uint8_t v6[44] = {0x60, [6] = 6, 64, [23] = 1, [39] = 2, 0, 7, 0, 9};
	const struct {
		const uint8_t *packet;
		uint32_t length, protocol;
		uint8_t type[2];
	} kinds[] = {{v4, sizeof(v4), 9, {0x08, 0x00}}, {v6, sizeof(v6), 6, {0x86, 0xdd}}};

	for (int i = 0; i < 2; i++) {
		uint32_t at = sizeof(struct rte_ether_hdr), length = at + kinds[i].length, first;
		uint8_t frame[64] = {0}, tagged[64] = {0};

		memcpy(frame + 12, kinds[i].type, 2);
		memcpy(frame + at, kinds[i].packet, kinds[i].length);
		first = hash_of(frame, length);
		assert(first != 0);
		for (uint32_t cut = at; cut < length; cut++)
			assert(hash_of(frame, cut) == 0);
		memcpy(tagged + 12, (uint8_t[]){0x81, 0x00, 0x20, 0x05}, 4);
		memcpy(tagged + 16, frame + 12, length - 12);
		assert(hash_of(tagged, length + 4) == first);
		frame[0] = frame[at + (i == 0 ? 8 : 7)] = 9; /* a different MAC and TTL */
		assert(hash_of(frame, length) == first);
		for (int reads = 1; reads <= (i == 0 ? 12 : 36); reads++) {
			frame[length - reads]++;
			assert(hash_of(frame, length) != first);
			frame[length - reads]--;
		}
		frame[at + kinds[i].protocol] = 132; /* SCTP */
		assert(hash_of(frame, length) == 0);
		frame[at + kinds[i].protocol] = kinds[i].packet[kinds[i].protocol];
		if (i == 0) {
			frame[at + 6] = 0x20; /* a fragment */
			assert(hash_of(frame, length) == 0);
			frame[at + 6] = 0x40;
			assert(hash_of(frame, length) == first);
		}
	}
}

int main(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct session *session;
	struct port *port;
	pthread_t thread;
	int listener;

	snprintf(address.sun_path, sizeof(address.sun_path), "/tmp/viaduct-driver-%d.sock", getpid());
	unlink(address.sun_path);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert(bind(listener, (void *)&address, sizeof(address)) == 0 && listen(listener, 4) == 0);
	sem_init(&go_on, 0, 0);
	sem_init(&asked, 0, 0);
	pthread_create(&thread, NULL, serve_all, &listener);

	hashes();

	/* Files that are too short or could become shorter: reading them would end the program. */
	for (uint32_t kind = VIADUCT_HELLO; kind <= VIADUCT_PORT_OPEN; kind++) {
		wrong.unsealed = kind;
		assert(try(address.sun_path, &port) == EPROTO);
		wrong.unsealed = 0;
		wrong.too_short = kind;
		assert(try(address.sun_path, &port) == EPROTO);
		wrong.too_short = 0;
	}
	for (uint32_t count = COUNTERS + 1; count != 0; count = count == UINT32_MAX ? 0 : UINT32_MAX) {
		wrong.counters = count;
		assert(try(address.sun_path, &port) == EPROTO);
	}
	wrong.counters = 0;
	for (uint32_t slots = 3; slots != 0; slots = slots == 3 ? 2 * SLOTS : slots == 2 * SLOTS ? 1u << 17 : 0) {
		wrong.slots = slots;
		assert(try(address.sun_path, &port) == EPROTO);
	}
	wrong.slots = 0;
	assert(try(address.sun_path, &port) == 0 && port->open);

	/* While viaductd does not answer, links and counters can be read. */
	session = port->session;
	assert(counts(port).rx_packets == 0);
	page->rx_packets = counted += 7;
	wrong.silent = true;
	pthread_create(&thread, NULL, ask_mtu, port);
	sem_wait(&asked);
	assert(counts(port).rx_packets == 7);
	sem_post(&go_on);
	pthread_join(thread, NULL);
	wrong.silent = false;

	/* The next viaductd hears of the MTU. */
	port->mtu = 1400;
	end(session);
	memset(&last_mtu, 0, sizeof(last_mtu));
	assert(start(session) == 0 && resume(session));
	assert(sem_trywait(&asked) == 0 && last_mtu.mtu == 1400 && port->open);
	/* First it is the same viaductd, which counted nothing meanwhile, then one that begins anew. */
	assert(counts(port).rx_packets == 7);
	end(session);
	counted = 0;
	assert(start(session) == 0 && resume(session));
	page->rx_packets = 2;
	assert(counts(port).rx_packets == 9);
	links(session, port);
	wrap(session, port);
	ahead(session, port);
	assert(most_together == 1 && most_requests == 1);
	together = VIADUCT_AHEAD;
	ahead(session, port);
	assert(most_together > VIADUCT_AHEAD / 2 && most_requests == 1);
	/* The driver does not trust viaductd's number. */
	requests_together = UINT32_MAX;
	end(session);
	assert(start(session) == 0 && resume(session));
	ahead(session, port);
	assert(most_requests == VIADUCT_TOGETHER);
	together = 1;
	marks(session, port);
	comes(session, port);
	counting(session, port);
	closed(session, port);
	quality(session, port);
	by_tcp();
	stopped(session, port);
	aheads = 0;
	gathered(port);
	unlink(address.sun_path);
	return 0;
}

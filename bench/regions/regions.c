/* What ibv_reg_mr and ibv_dereg_mr take in a program whose memory peers write to.
 *
 *   regions listen PEERS BYTES REPEATS   says "listening", waits for so many peers; times regions of so many bytes,
 *                                        prints a JSON object
 *   regions connect ADDRESS              a peer: connects, writes to the other's memory once, stays connected until it
 *                                        is killed
 *
 * Times are medians in microseconds.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../timing.h"

#define PORT "18519"
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

/* The memory that a peer is told when its connection is accepted. */
struct place {
	uint64_t address;
	uint32_t rkey;
};

static void fail(const char *what)
{
	fprintf(stderr, "regions: %s: %s\n", what, strerror(errno));
	exit(1);
}

static struct rdma_addrinfo *resolve(const char *address, int flags)
{
	struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *found;
	if (rdma_getaddrinfo(address, PORT, &hints, &found))
		fail("rdma_getaddrinfo");
	return found;
}

static struct ibv_qp_init_attr queue_pair(void)
{
	return (struct ibv_qp_init_attr){
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
}

/* Accepts a peer, which writes to memory, and sends a byte there afterwards. */
static struct rdma_cm_id *accept_peer(struct rdma_cm_id *listener, uint8_t *memory)
{
	struct rdma_cm_id *id;
	struct ibv_wc came;
	if (rdma_get_request(listener, &id))
		fail("rdma_get_request");
	struct ibv_mr *region = rdma_reg_write(id, memory, 4096);
	if (!region || rdma_post_recv(id, NULL, memory, 1, region))
		fail("rdma_post_recv");
	struct place place = {(uintptr_t)memory, region->rkey};
	struct rdma_conn_param told = {.private_data = &place, .private_data_len = sizeof place};
	if (rdma_accept(id, &told))
		fail("rdma_accept");
	if (rdma_get_recv_comp(id, &came) != 1 || came.status != IBV_WC_SUCCESS)
		fail("the peer's message");
	return id;
}

static void listen_and_measure(int peers, size_t bytes, int repeats)
{
	struct rdma_addrinfo *here = resolve(NULL, RAI_PASSIVE);
	struct ibv_qp_init_attr attributes = queue_pair();
	struct rdma_cm_id *listener, *id = NULL;
	if (rdma_create_ep(&listener, here, NULL, &attributes) || rdma_listen(listener, peers))
		fail("rdma_listen");
	char *memory, *own;
	double *registered = calloc(repeats, sizeof *registered), *deregistered = calloc(repeats, sizeof *deregistered);
	if (posix_memalign((void **)&memory, 4096, 4096) || posix_memalign((void **)&own, 4096, bytes) || !registered ||
	    !deregistered)
		fail("memory");
	puts("listening");
	fflush(stdout);
	memset(memory, 0, 4096);
	memset(own, 1, bytes);
	for (int peer = 0; peer < peers; peer++)
		id = accept_peer(listener, (uint8_t *)memory);
	for (int each = 0; each < repeats; each++) {
		double start = now_us();
		struct ibv_mr *region = ibv_reg_mr(id->pd, own, bytes, ACCESS);
		double then = now_us();
		if (!region || ibv_dereg_mr(region))
			fail("ibv_dereg_mr");
		registered[each] = then - start;
		deregistered[each] = now_us() - then;
	}
	printf("{\"register\": %.3f, \"deregister\": %.3f}\n", median(registered, repeats), median(deregistered, repeats));
}

static void connect_and_write(const char *address)
{
	struct rdma_addrinfo *there = resolve(address, 0);
	struct ibv_qp_init_attr attributes = queue_pair();
	struct rdma_cm_id *id;
	if (rdma_create_ep(&id, there, NULL, &attributes) || rdma_connect(id, NULL))
		fail("rdma_connect");
	struct place place;
	memcpy(&place, id->event->param.conn.private_data, sizeof place);
	static uint8_t one = 1;
	struct ibv_mr *region = rdma_reg_msgs(id, &one, sizeof one);
	struct ibv_wc done;
	if (!region || rdma_post_write(id, NULL, &one, sizeof one, region, 0, place.address, place.rkey))
		fail("rdma_post_write");
	if (rdma_post_send(id, NULL, &one, sizeof one, region, 0))
		fail("rdma_post_send");
	for (int each = 0; each < 2; each++)
		if (rdma_get_send_comp(id, &done) != 1 || done.status != IBV_WC_SUCCESS)
			fail("a completion");
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "listen") && atoi(argv[2]) > 0 && atoi(argv[4]) > 0) {
		listen_and_measure(atoi(argv[2]), strtoull(argv[3], NULL, 0), atoi(argv[4]));
	} else if (argc == 3 && !strcmp(argv[1], "connect")) {
		connect_and_write(argv[2]);
	} else {
		fprintf(stderr, "usage: regions listen PEERS BYTES REPEATS | regions connect ADDRESS\n");
		return 2;
	}
	return 0;
}

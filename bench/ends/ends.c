/* Messages between two verbs devices, both of whose programs are this one thread: what lies between them may have the
 * other CPUs. Prints a JSON object.
 *
 *   ends HOW MILLISECONDS CPU   HOW: send, write, read; 8 bytes: us, half a round trip, of a read all of it
 *
 * The devices are the first two of VIADUCT_RDMA. Times are medians of batches.
 */
#include <err.h>
#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../timing.h"

#define MOST_BATCHES 1000000
#define BATCH 64
#define BYTES 8
#define RECEIVES 64
#define SENDS 128
/* One of so many sends is completed. */
#define SIGNALED 32
#define PAGE 4096
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static double batches[MOST_BATCHES];

/* A device, with the objects that a program has there. */
struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *sends, *receives;
	struct ibv_qp *qp;
	struct ibv_mr *region;
	union ibv_gid gid;
	/* A page: the first word is received, the second one sent. */
	_Atomic uint64_t *words;
	uint64_t posted;
};

static void open_end(struct end *end, struct ibv_device *device)
{
	end->context = ibv_open_device(device);
	if (!end->context || !(end->pd = ibv_alloc_pd(end->context)))
		err(1, "ibv_open_device");
	end->sends = ibv_create_cq(end->context, SENDS, NULL, NULL, 0);
	end->receives = ibv_create_cq(end->context, RECEIVES, NULL, NULL, 0);
	if (!end->sends || !end->receives)
		err(1, "ibv_create_cq");
	struct ibv_qp_init_attr wanted = {
		.send_cq = end->sends,
		.recv_cq = end->receives,
		.cap = {SENDS, RECEIVES, 1, 1, BYTES},
		.qp_type = IBV_QPT_RC,
	};
	if (!(end->qp = ibv_create_qp(end->pd, &wanted)))
		err(1, "ibv_create_qp");
	void *page;
	if (posix_memalign(&page, PAGE, PAGE))
		err(1, "posix_memalign");
	memset(page, 0, PAGE);
	end->words = page;
	if (!(end->region = ibv_reg_mr(end->pd, page, PAGE, ACCESS)))
		err(1, "ibv_reg_mr");
	if (ibv_query_gid(end->context, 1, 1, &end->gid))
		err(1, "ibv_query_gid");
}

static void connect_end(struct end *end, const struct end *peer)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS};
	if (ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		err(1, "INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .sgid_index = 1, .hop_limit = 1}},
	};
	if (ibv_modify_qp(end->qp, &attr,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		err(1, "RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	if (ibv_modify_qp(end->qp, &attr,
			  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				  IBV_QP_MAX_QP_RD_ATOMIC))
		err(1, "RTS");
}

/* Waits for the next completion. */
static void await(struct ibv_cq *cq)
{
	struct ibv_wc done;
	int count;
	while (!(count = ibv_poll_cq(cq, 1, &done)))
		;
	if (count < 0 || done.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "ends: %s\n", count < 0 ? "ibv_poll_cq" : ibv_wc_status_str(done.status));
		exit(1);
	}
}

static void post_receive(struct end *end)
{
	struct ibv_sge list = {(uintptr_t)&end->words[0], BYTES, end->region->lkey};
	struct ibv_recv_wr wanted = {.sg_list = &list, .num_sge = 1}, *bad;
	if (ibv_post_recv(end->qp, &wanted, &bad))
		err(1, "ibv_post_recv");
}

static void post(struct end *end, const struct end *peer, enum ibv_wr_opcode opcode)
{
	_Bool is_read = opcode == IBV_WR_RDMA_READ, is_last = ++end->posted % SIGNALED == 0;
	struct ibv_sge list = {(uintptr_t)&end->words[is_read ? 0 : 64], BYTES, end->region->lkey};
	struct ibv_send_wr wanted = {
		.sg_list = &list,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = is_read ? IBV_SEND_SIGNALED : IBV_SEND_INLINE | (is_last ? IBV_SEND_SIGNALED : 0),
		.wr.rdma = {(uintptr_t)&peer->words[is_read ? 64 : 0], peer->region->rkey},
	}, *bad;
	if (ibv_post_send(end->qp, &wanted, &bad))
		err(1, "ibv_post_send");
	if (is_read || is_last)
		await(end->sends);
}

/* Sends a message with this number from one end to the other. */
static void pass(struct end *from, struct end *to, enum ibv_wr_opcode opcode, uint64_t number)
{
	atomic_store_explicit(&from->words[64], number, memory_order_relaxed);
	post(from, to, opcode);
	if (opcode == IBV_WR_SEND) {
		await(to->receives);
		post_receive(to);
	} else if (opcode == IBV_WR_RDMA_WRITE) {
		while (atomic_load_explicit(&to->words[0], memory_order_acquire) != number)
			;
	} else {
		return;
	}
	if (atomic_load_explicit(&to->words[0], memory_order_relaxed) != number) {
		fprintf(stderr, "ends: another message arrived\n");
		exit(1);
	}
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: ends send|write|read MILLISECONDS CPU\n");
		return 2;
	}
	enum ibv_wr_opcode opcode = !strcmp(argv[1], "send")    ? IBV_WR_SEND
				    : !strcmp(argv[1], "write") ? IBV_WR_RDMA_WRITE
								: IBV_WR_RDMA_READ;
	pin(atoi(argv[3]));
	int count;
	struct ibv_device **devices = ibv_get_device_list(&count);
	if (!devices || count < 2)
		errx(1, "VIADUCT_RDMA does not name two devices");
	static struct end ends[2];
	for (int each = 0; each < 2; each++)
		open_end(&ends[each], devices[each]);
	for (int each = 0; each < 2; each++)
		connect_end(&ends[each], &ends[!each]);
	for (int each = 0; each < RECEIVES; each++) {
		post_receive(&ends[0]);
		post_receive(&ends[1]);
	}
	uint64_t number = 0;
	size_t rounds = 0;
	/* The first tenth is for warming up. */
	double length = atof(argv[2]) * 1e3, then = now_us(), begin = then + length / 10, end = then + length;
	while (then < end && rounds < MOST_BATCHES) {
		for (int each = 0; each < BATCH; each++) {
			pass(&ends[0], &ends[1], opcode, ++number);
			pass(&ends[1], &ends[0], opcode, ++number);
		}
		double now = now_us();
		if (then >= begin)
			batches[rounds++] = (now - then) / BATCH / 2;
		then = now;
	}
	if (!rounds)
		errx(1, "there is no time for a batch");
	printf("{\"latency\": %.4f}\n", median(batches, rounds));
	/* The devices end with the program. */
	return 0;
}

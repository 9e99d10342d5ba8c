/* A program that opens its device twice and has regions of both contexts in one page. They exchange messages while
 * regions come and go in turns, and while a child has its own copy and its own contexts. The exit status is 0 if all
 * is right. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)
enum { PAGE = 4096, LEN = 3000, LOCAL = 500, REMOTE = PAGE - 200, ALL = 15 };

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	size_t at;
};

static char *memory;

static void reg(struct end *end)
{
	CHECK(end->mr = ibv_reg_mr(end->pd, memory + end->at, LEN, ALL));
}

static struct end opened(size_t at)
{
	struct end end = {.at = at};
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr attr = {.cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_RC};

	CHECK(list && list[0] && (end.context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	CHECK(end.pd = ibv_alloc_pd(end.context));
	CHECK(end.cq = attr.send_cq = attr.recv_cq = ibv_create_cq(end.context, 16, NULL, NULL, 0));
	CHECK(end.qp = ibv_create_qp(end.pd, &attr));
	reg(&end);
	return end;
}

static void closed(struct end *end)
{
	CHECK(!ibv_dereg_mr(end->mr) && !ibv_destroy_qp(end->qp) && !ibv_destroy_cq(end->cq));
	CHECK(!ibv_dealloc_pd(end->pd) && !ibv_close_device(end->context));
}

static void connected(struct end *from, struct end *to)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

	CHECK(!ibv_modify_qp(from->qp, &attr, IBV_QP_STATE));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL};
	CHECK(!ibv_modify_qp(from->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 64}}};
	CHECK(!ibv_query_gid(to->context, 1, 1, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(from->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(from->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Writes one end's region into the other's, and checks it and what is around. */
static void written(struct end *from, struct end *to, int number)
{
	static char expected[3 * PAGE];
	struct ibv_sge sge = {(uintptr_t)from->mr->addr, LEN, from->mr->lkey};
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {(uintptr_t)to->mr->addr, to->mr->rkey}};
	struct ibv_wc wc;

	memset(memory + from->at, number, LEN);
	memcpy(expected, memory, sizeof expected);
	memset(expected + to->at, number, LEN);
	CHECK(!ibv_post_send(from->qp, &wr, &bad));
	while (!ibv_poll_cq(from->cq, 1, &wc))
		;
	if (wc.status || memcmp(expected, memory, sizeof expected)) {
		printf("%d: %s\n", number, ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static void rounds(struct end *one, struct end *other, int number)
{
	for (int round = 0; round < 6; round++) {
		struct end *turn = round % 2 ? one : other;

		written(one, other, number + round);
		CHECK(!ibv_dereg_mr(turn->mr));
		reg(turn);
		written(other, one, number + round + 50);
	}
}

static void both(int number, int forks)
{
	/* The end of one region and the beginning of the other are in one page. */
	struct end one = opened(LOCAL), other = opened(REMOTE);
	int status = 1;

	connected(&one, &other), connected(&other, &one);
	rounds(&one, &other, number);
	if (forks) {
		pid_t child = fork();

		if (!child) {
			both(number + 20, 0);
			_exit(0);
		}
		rounds(&one, &other, number + 6);
		CHECK(waitpid(child, &status, 0) == child && !status);
		written(&one, &other, number + 12);
	}
	/* The one that moved the page ends first. */
	closed(&one);
	one = opened(LOCAL);
	connected(&one, &other), connected(&other, &one);
	written(&other, &one, number + 13);
	closed(&other), closed(&one);
}

int main(void)
{
	CHECK(!posix_memalign((void **)&memory, PAGE, 3 * PAGE));
	memset(memory, 1, 3 * PAGE);
	both(1, 1);
	puts("two contexts, one page: right");
	return 0;
}

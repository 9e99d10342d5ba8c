/* Ends of connections within one program, for the programs of this directory. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)
enum { PAGE = 4096, ALL = 15 };

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	size_t at, len;
};

static char *memory;

static void reg(struct end *end)
{
	CHECK(end->mr = ibv_reg_mr(end->pd, memory + end->at, end->len, ALL));
}

static struct end opened(size_t at, size_t len)
{
	struct end end = {.at = at, .len = len};
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

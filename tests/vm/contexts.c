/* A program that opens its device twice and has regions of both contexts in one page. They exchange messages while
 * regions come and go in turns, and while a child has its own copy and its own contexts. A child has its own heap, too.
 * The exit status is 0 if all is right. */
#include "ends.h"
#include <sys/wait.h>

enum { LEN = 3000, LOCAL = 500, REMOTE = PAGE - 200 };

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
	struct end one = opened(LOCAL, LEN), other = opened(REMOTE, LEN);
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
	one = opened(LOCAL, LEN);
	connected(&one, &other), connected(&other, &one);
	written(&other, &one, number + 13);
	closed(&other), closed(&one);
}

/* The heap's own records are in the page of a region. */
static void heap(void)
{
	struct end one;
	int status = 1;
	pid_t child;

	CHECK(memory = malloc(100));
	one = opened(0, 100);
	child = fork();
	if (!child)
		_exit(0);
	for (int i = 0; i < 2000; i++) {
		char *some = malloc(24 + i % 500);

		memset(some, i, 24);
		if (i % 3)
			free(some);
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
	closed(&one);
	free(memory);
}

int main(void)
{
	heap();
	CHECK(!posix_memalign((void **)&memory, PAGE, 3 * PAGE));
	memset(memory, 1, 3 * PAGE);
	both(1, 1);
	puts("two contexts, one page: right");
	return 0;
}

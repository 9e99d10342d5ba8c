/* A program whose machine moves. It has a large region of its heap, some of whose pages are empty, and two ends that
 * write to each other until the device is gone (`busy`), or it sleeps (`asleep`). When the file GO is there, it checks
 * that its heap is as it was, opens the device anew, and writes once more. The exit status is 0 if all is right. */
#include "ends.h"
#include <fcntl.h>

enum { PAGES = 200, BYTES = PAGES * PAGE };

static char holds(int at)
{
	return at / PAGE % 3 ? 0 : (char)(at * 7 + at / PAGE + 1);
}

/* Writes a page of the one end to the other; the status of the completion. */
static int written(struct end *from, struct end *to)
{
	struct ibv_sge sge = {(uintptr_t)from->mr->addr, PAGE, from->mr->lkey};
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {(uintptr_t)to->mr->addr, to->mr->rkey}};
	struct ibv_wc wc;

	if (ibv_post_send(from->qp, &wr, &bad))
		return -1;
	while (!ibv_poll_cq(from->cq, 1, &wc))
		;
	return wc.status;
}

int main(int count, char **words)
{
	struct ibv_async_event event;
	struct end one, other;

	CHECK(count == 3 && !posix_memalign((void **)&memory, PAGE, BYTES + 2 * PAGE));
	for (int at = 0; at < BYTES; at++)
		memory[at] = holds(at);
	one = opened(0, BYTES + PAGE), other = opened(BYTES + PAGE, PAGE);
	connected(&one, &other), connected(&other, &one);
	CHECK(!written(&one, &other));
	puts("holds"), fflush(stdout);
	if (!strcmp(words[1], "busy")) {
		while (!written(&one, &other))
			;
		CHECK(!ibv_get_async_event(one.context, &event) && event.event_type == IBV_EVENT_DEVICE_FATAL);
		ibv_ack_async_event(&event);
		puts("lost"), fflush(stdout);
	}
	while (access(words[2], F_OK))
		usleep(10000);
	for (int at = 0; at < BYTES; at++)
		if (memory[at] != holds(at)) {
			printf("byte %d is %d, was %d\n", at, memory[at], holds(at));
			return 1;
		}
	puts("intact"), fflush(stdout);
	closed(&one), closed(&other);
	one = opened(0, BYTES), other = opened(BYTES, PAGE);
	connected(&one, &other), connected(&other, &one);
	memset(memory + BYTES, 0, PAGE);
	CHECK(!written(&one, &other) && !memcmp(memory, memory + BYTES, PAGE));
	puts("again"), fflush(stdout);
	closed(&one), closed(&other);
	return 0;
}

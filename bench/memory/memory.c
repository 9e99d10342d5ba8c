/* What this machine's memory and kernel can do, without anything around it: prints one JSON object.
 *
 *   memory ping-pong MILLISECONDS CPU CPU   two processes store to one shared cache line in turn: us, half a round trip
 *   memory HOW MILLISECONDS CPU BYTES       copies of so many bytes, one after the other: us of a copy, Gbit/s
 *
 * HOW: memcpy within the process; pwrite and pread on /proc/PID/mem of another process; process_vm_writev,
 * process_vm_readv. The memory is on the heap, and the same two buffers are used again and again. Times are medians of
 * batches.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../timing.h"

#define MOST_BATCHES 1000000
#define PAGE 4096

static double batches[MOST_BATCHES];

/* Starts a process that ends with this one. */
static pid_t other(void)
{
	pid_t parent = getpid(), pid = fork();
	if (pid < 0)
		err(1, "fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(0);
	}
	return pid;
}

static void ping_pong(double milliseconds, int cpu, int other_cpu)
{
	enum { BATCH = 64 };
	_Atomic uint64_t *line = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (line == MAP_FAILED)
		err(1, "mmap");
	pid_t pid = other();
	if (pid == 0) {
		pin(other_cpu);
		for (uint64_t turn = 1;; turn += 2) {
			while (atomic_load_explicit(line, memory_order_acquire) != turn)
				;
			atomic_store_explicit(line, turn + 1, memory_order_release);
		}
	}
	pin(cpu);
	uint64_t turn = 0;
	size_t count = 0;
	double start = now_us(), then = start, end = start + milliseconds * 1e3;
	while (then < end && count < MOST_BATCHES) {
		for (int each = 0; each < BATCH; each++) {
			atomic_store_explicit(line, turn + 1, memory_order_release);
			turn += 2;
			while (atomic_load_explicit(line, memory_order_acquire) != turn)
				;
		}
		double now = now_us();
		batches[count++] = (now - then) / BATCH / 2;
		then = now;
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	printf("{\"latency\": %.4f}\n", median(batches, count));
}

static void copies(const char *how, double milliseconds, int cpu, size_t bytes)
{
	char *here, *there;
	if (posix_memalign((void **)&here, PAGE, bytes) || posix_memalign((void **)&there, PAGE, bytes))
		err(1, "posix_memalign");
	memset(here, 1, bytes);
	memset(there, 2, bytes);
	pid_t pid = other();
	if (pid == 0) {
		/* Each process gets its own pages, not those that are shared until one of the two writes. */
		memset(here, 3, bytes);
		memset(there, 4, bytes);
		raise(SIGSTOP);
		for (;;)
			pause();
	}
	int status;
	if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status))
		err(1, "the other process");
	kill(pid, SIGCONT);
	pin(cpu);
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/mem", pid);
	int memory = open(path, O_RDWR);
	if (memory < 0)
		err(1, "%s", path);
	int batch = bytes >= 65536 ? 1 : 16;
	size_t count = 0;
	double start = now_us(), then = start, end = start + milliseconds * 1e3;
	struct iovec local = {here, bytes}, remote = {there, bytes};
	while (then < end && count < MOST_BATCHES) {
		for (int each = 0; each < batch; each++) {
			ssize_t done = bytes;
			if (!strcmp(how, "memcpy")) {
				memcpy(there, here, bytes);
				__asm__ volatile("" : : "r"(there) : "memory");
			} else if (!strcmp(how, "pwrite")) {
				done = pwrite(memory, here, bytes, (off_t)(uintptr_t)there);
			} else if (!strcmp(how, "pread")) {
				done = pread(memory, here, bytes, (off_t)(uintptr_t)there);
			} else if (!strcmp(how, "process_vm_writev")) {
				done = process_vm_writev(pid, &local, 1, &remote, 1, 0);
			} else if (!strcmp(how, "process_vm_readv")) {
				done = process_vm_readv(pid, &local, 1, &remote, 1, 0);
			} else {
				errno = EINVAL;
				err(1, "%s", how);
			}
			if (done != (ssize_t)bytes)
				err(1, "%s", how);
		}
		double now = now_us();
		batches[count++] = (now - then) / batch;
		then = now;
	}
	double mean = (then - start) / batch / count, middle = median(batches, count);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	printf("{\"latency\": %.4f, \"gbps\": %.4f}\n", middle, bytes * 8 / mean / 1e3);
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: memory ping-pong MILLISECONDS CPU CPU | memory HOW MILLISECONDS CPU BYTES\n");
		return 2;
	}
	double milliseconds = atof(argv[2]);
	int cpu = atoi(argv[3]);
	if (!strcmp(argv[1], "ping-pong"))
		ping_pong(milliseconds, cpu, atoi(argv[4]));
	else
		copies(argv[1], milliseconds, cpu, strtoull(argv[4], NULL, 0));
	return 0;
}

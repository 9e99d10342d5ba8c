/* Two programs that talk by TCP sockets, as ordinary ones do.
 *
 *   streams serve PORT MODE SIZE
 *   streams call ADDRESS PORT MODE SIZE SECONDS
 *
 * MODE: block and epoll send SIZE bytes to and fro (microseconds of a round trip, p50); flood sends messages of SIZE bytes
 * one way, to a reader that never sleeps (messages a second); connect makes connections, each with one question and
 * answer (connections a second); idle holds SIZE connections that have all talked (CPU and memory of both programs, while
 * nobody says anything for SECONDS).
 * The caller prints JSON. */

#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 65536, WARM = 20, SAMPLES = 1 << 22 };

static char buffer[1 << 20];

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void all(int fd, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = send(fd, buffer + done, size - done, 0);
		if (n < 0)
			err(1, "send");
		done += n;
	}
}

/* Returns whether there was a whole message before the end. */
static int whole(int fd, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = recv(fd, buffer + done, size - done, 0);
		if (n < 0)
			err(1, "recv");
		if (n == 0)
			return 0;
		done += n;
	}
	return 1;
}

/* The same, with a set of epoll that says when there is something. */
static int whole_by_epoll(int set, int fd, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = recv(fd, buffer + done, size - done, MSG_DONTWAIT);
		if (n == 0)
			return 0;
		if (n > 0) {
			done += n;
			continue;
		}
		if (errno != EAGAIN)
			err(1, "recv");
		struct epoll_event event;
		if (epoll_wait(set, &event, 1, -1) < 0)
			err(1, "epoll_wait");
	}
	return 1;
}

static int in_epoll(int fd)
{
	int set = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0)
		err(1, "epoll");
	return set;
}

static int connected(const char *address, int port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, address, &to.sin_addr);
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0)
		err(1, "connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static int by_size(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

static void ping(int fd, size_t size, double seconds, int by_epoll)
{
	float *times = malloc(SAMPLES * sizeof(*times));
	int count = 0, set = by_epoll ? in_epoll(fd) : -1;
	double end = 0;
	for (int n = 0; count < SAMPLES; n++) {
		double start = now();
		if (n == WARM)
			end = start + seconds;
		else if (n > WARM && start > end)
			break;
		all(fd, size);
		if (!(by_epoll ? whole_by_epoll(set, fd, size) : whole(fd, size)))
			errx(1, "the peer is gone");
		if (n >= WARM)
			times[count++] = (now() - start) * 1e6;
	}
	qsort(times, count, sizeof(*times), by_size);
	printf("{\"latency\": %.3f, \"p99\": %.3f, \"rounds\": %d}\n", times[count / 2], times[count * 99 / 100], count);
}

static void flood(int fd, size_t size, double seconds)
{
	/* The connection has its way before it counts. */
	for (int n = 0; n < WARM; n++)
		all(fd, size);
	double start = now();
	uint64_t sent = WARM;
	while (now() - start < seconds)
		for (int n = 0; n < 64; n++, sent++)
			all(fd, size);
	shutdown(fd, SHUT_WR);
	uint64_t got = 0;
	if (recv(fd, &got, sizeof(got), MSG_WAITALL) != sizeof(got) || got != sent * size)
		errx(1, "%llu bytes instead of %llu", (unsigned long long)got, (unsigned long long)(sent * size));
	printf("{\"per_second\": %.0f}\n", sent / (now() - start));
}

static void drink(int fd)
{
	uint64_t got = 0;
	for (;;) {
		ssize_t n = recv(fd, buffer, CHUNK, MSG_DONTWAIT);
		if (n == 0)
			break;
		if (n < 0 && errno != EAGAIN)
			err(1, "recv");
		got += n > 0 ? n : 0;
	}
	send(fd, &got, sizeof(got), 0);
}

static void connections(const char *address, int port, size_t size, double seconds)
{
	double start = now();
	uint64_t made = 0;
	/* Ends without TIME_WAIT: ports would be gone soon. */
	struct linger linger = { .l_onoff = 1 };
	for (; now() - start < seconds; made++) {
		int fd = connected(address, port);
		all(fd, size);
		if (!whole(fd, size))
			errx(1, "the peer is gone");
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
		close(fd);
	}
	printf("{\"per_second\": %.0f}\n", made / (now() - start));
}

/* Returns the proportional share of memory that this process has, in bytes. */
static double memory(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	char line[256];
	double kib = 0;
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "Pss: %lf", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib * 1024;
}

static double cpu(void)
{
	struct rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* What a program takes for its idle connections. */
struct taken {
	double bytes, seconds;
};

static void raise_limit(void)
{
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static void idle(const char *address, int port, int count, double seconds)
{
	raise_limit();
	int *fds = malloc(count * sizeof(*fds));
	double before = memory();
	for (int n = 0; n < count; n++) {
		fds[n] = connected(address, port);
		for (int round = 0; round < 8; round++) {
			all(fds[n], 16);
			if (!whole(fds[n], 16))
				errx(1, "the peer is gone");
		}
	}
	double bytes = memory() - before, start = cpu();
	usleep(seconds * 1e6);
	start = cpu() - start;
	struct taken peer;
	buffer[0] = 'q';
	all(fds[0], 16);
	if (recv(fds[0], &peer, sizeof(peer), MSG_WAITALL) != sizeof(peer))
		errx(1, "the peer is gone");
	printf("{\"bytes\": %.0f, \"percent\": %.4f}\n", (bytes + peer.bytes) / count, 100 * (start + peer.seconds) / seconds);
}

static void hold(int listener, int count)
{
	raise_limit();
	int *fds = malloc(count * sizeof(*fds));
	double before = memory();
	for (int n = 0; n < count; n++) {
		fds[n] = accept(listener, NULL, NULL);
		for (int round = 0; round < 8 && whole(fds[n], 16); round++)
			all(fds[n], 16);
	}
	struct taken taken = { .bytes = memory() - before, .seconds = cpu() };
	whole(fds[0], 16);
	taken.seconds = cpu() - taken.seconds;
	send(fds[0], &taken, sizeof(taken), 0);
	whole(fds[0], 16);
}

static void answer(int fd, size_t size, const char *mode)
{
	if (!strcmp(mode, "flood"))
		drink(fd);
	else if (!strcmp(mode, "epoll"))
		for (int set = in_epoll(fd); whole_by_epoll(set, fd, size);)
			all(fd, size);
	else if (!strcmp(mode, "connect"))
		whole(fd, size) ? all(fd, size) : (void)0;
	else
		while (whole(fd, size))
			all(fd, size);
	close(fd);
}

static void serve(int port, const char *mode, int size)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(listener, 1024) < 0)
		err(1, "port %d", port);
	if (!strcmp(mode, "idle"))
		return hold(listener, size);
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		if (fd < 0)
			err(1, "accept");
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		answer(fd, size, mode);
		if (strcmp(mode, "connect"))
			return;
	}
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "serve")) {
		serve(atoi(argv[2]), argv[3], atoi(argv[4]));
		return 0;
	}
	if (argc != 7 || strcmp(argv[1], "call"))
		errx(2, "streams serve PORT MODE SIZE | streams call ADDRESS PORT MODE SIZE SECONDS");
	const char *address = argv[2], *mode = argv[4];
	int port = atoi(argv[3]), size = atoi(argv[5]);
	double seconds = atof(argv[6]);
	if (!strcmp(mode, "connect"))
		connections(address, port, size, seconds);
	else if (!strcmp(mode, "idle"))
		idle(address, port, size, seconds);
	else if (!strcmp(mode, "flood"))
		flood(connected(address, port), size, seconds);
	else
		ping(connected(address, port), size, seconds, !strcmp(mode, "epoll"));
	return 0;
}

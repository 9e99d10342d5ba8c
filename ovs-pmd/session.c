/* The session with viaductd: requests, and a thread that connects again when the session has ended. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "viaduct.h"

/* How long viaductd may take to answer, seconds. */
#define PATIENCE 5
/* Pauses between attempts to connect, milliseconds: the first and the longest; and between attempts to open refused
 * ports. */
#define PAUSE_FIRST 50
#define PAUSE_LONGEST 400
#define PAUSE_REFUSED 2000
/* Each answer for which a thread waits wakes it. So it first looks for answers this many times, with this pause in
 * microseconds, and reads all that are there. */
#define LOOKS 20
#define GATHER 100
/* How long requests wait for others to go in the same message, milliseconds. */
#define GATHER_SENT 1
/* Counters that OVS reads are at most this old, and how long it waits for them, milliseconds. If they do not come in
 * time, nobody waits again for the longer time. While OVS reads many, it does not wait for counters as long as they are
 * no older than RECENT: it takes a slow dump as a reason to delete flows. */
#define FRESH 10
#define RECENT 20
#define WAIT_FRESH 20
#define WAIT_AGAIN 200
/* How often links are looked at, milliseconds. */
#define LOOK_AT_LINKS 200

static LIST_HEAD(, session) sessions = LIST_HEAD_INITIALIZER(sessions);
static pthread_mutex_t sessions_lock = PTHREAD_MUTEX_INITIALIZER;

static void close_files(int *files)
{
	for (int i = 0; i < 2; i++) {
		if (files[i] >= 0)
			close(files[i]);
		files[i] = -1;
	}
}

/* Receives a message with up to `most` answers, and sets `there` to their number; and up to two files. Returns 0 or
 * an errno. */
static int receive_message(int from, struct viaduct_answer *answers, uint32_t most, uint32_t *there, int *files,
			   int flags)
{
	union {
		char bytes[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = {answers, most * sizeof(*answers)};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
	ssize_t got;

	do
		got = recvmsg(from, &message, MSG_CMSG_CLOEXEC | flags);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c != NULL; c = CMSG_NXTHDR(&message, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(files, CMSG_DATA(c), (count < 2 ? count : 2) * sizeof(int));
	}
	if (got == 0 || got % sizeof(*answers) != 0 || message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		return EPROTO;
	*there = got / sizeof(*answers);
	for (uint32_t i = 0; i < *there; i++)
		answers[i].text[sizeof(answers->text) - 1] = 0;
	return 0;
}

/* Takes the next answer, with up to two files. Returns 0 or an errno. */
static int receive(struct session *session, struct viaduct_answer *answer, int *files, int flags)
{
	int error;

	if (session->taken == session->there) {
		error = receive_message(session->socket, session->answers, VIADUCT_AHEAD, &session->there, files, flags);
		if (error != 0)
			return error;
		session->taken = 0;
	}
	*answer = session->answers[session->taken++];
	return 0;
}

/* Reads the answer to the oldest request under way. Returns 0 or an errno. */
static int read_oldest(struct session *session, int flags)
{
	struct viaduct_answer answer;
	int files[2] = {-1, -1}, error = receive(session, &answer, files, flags);
	struct rte_flow *flow;

	close_files(files);
	if (error != 0)
		return error;
	flow = session->under_way[session->oldest++ % VIADUCT_AHEAD];
	session->waiting--;
	if (flow != NULL)
		flow_answered(flow, &answer);
	return 0;
}

/* Ends the session. */
static void lose(struct session *session, int error)
{
	LOG(WARNING, "%s: the session is over: %s\n", session->path, strerror(error));
	session->broken = true;
	session->silent = error == EAGAIN;
	shutdown(session->socket, SHUT_RDWR); /* the thread sees this */
}

/* Sends the requests that were gathered. Returns 0 or an errno. Here and below, the caller holds the lock. */
static int send_gathered(struct session *session)
{
	size_t length = session->gathered_length;

	session->gathered_length = session->gathered_count = 0;
	if (length == 0 || send(session->socket, session->gathered, length, MSG_NOSIGNAL) >= 0)
		return 0;
	return errno;
}

/* Reads the answers to requests under way: all of them, or those that are there. */
void session_collect(struct session *session, bool all)
{
	int error;

	if (session->socket < 0 || session->broken)
		return;
	error = send_gathered(session);
	if (error != 0) {
		lose(session, error);
		return;
	}
	while (session->waiting > 0 && error == 0)
		error = read_oldest(session, all ? 0 : MSG_DONTWAIT);
	if (error != 0 && (all || error != EAGAIN))
		lose(session, error);
}

/* Reads the answers to the older half of the requests under way, and those that came with them. Returns 0 or an
 * errno. */
static int read_half(struct session *session)
{
	int error = send_gathered(session), looks = 0;

	while (error == 0 && session->waiting > 0 &&
	       (session->waiting > VIADUCT_AHEAD / 2 || session->taken < session->there)) {
		error = read_oldest(session, looks < LOOKS ? MSG_DONTWAIT : 0);
		if (error == EAGAIN && looks < LOOKS) {
			looks++;
			usleep(GATHER);
			error = 0;
		}
	}
	return error;
}

/* Adds a request to those that are sent in one message, since each message takes both sides some microseconds.
 * Returns 0 or an errno. */
static int gather(struct session *session, const void *request, size_t length)
{
	int error = 0;

	if (length > sizeof(session->gathered) - session->gathered_length)
		error = send_gathered(session);
	memcpy(session->gathered + session->gathered_length, request, length);
	session->gathered_length += length;
	if (++session->gathered_count >= session->together)
		return error != 0 ? error : send_gathered(session);
	if (session->dozes) {
		session->dozes = false;
		eventfd_write(session->bell, 1);
	}
	return error;
}

/* Sends a request soon, without waiting for its answer. `flow`: the flow that it creates, or NULL. Returns 0, or an
 * errno if the session is over. */
int session_send(struct session *session, void *request, size_t length, struct rte_flow *flow)
{
	struct viaduct_header *header = request;
	int error = 0;

	header->length = length;
	if (session->socket < 0 || session->broken)
		return ENOTCONN;
	if (session->waiting == VIADUCT_AHEAD)
		error = read_half(session);
	if (error == 0)
		error = gather(session, request, length);
	if (error != 0) {
		lose(session, error);
		return error;
	}
	session->under_way[(session->oldest + session->waiting++) % VIADUCT_AHEAD] = flow;
	return 0;
}

/* Sends a request and waits for its answer. The caller holds the lock. `files` gets two descriptors, or -1; without
 * it they are closed. Returns 0 if there is an answer, even a refusal; otherwise an errno, and the session is over.
 * */
int session_ask(struct session *session, void *request, size_t length, struct viaduct_answer *answer, int *files)
{
	struct viaduct_header *header = request;
	int got[2] = {-1, -1}, error = 0;

	header->length = length;
	if (session->socket < 0 || session->broken)
		return ENOTCONN;
	error = send_gathered(session);
	if (error == 0 && send(session->socket, request, length, MSG_NOSIGNAL) < 0)
		error = errno;
	while (error == 0 && session->waiting > 0)
		error = read_oldest(session, 0);
	if (error == 0)
		error = receive(session, answer, got, 0);
	if (error != 0)
		lose(session, error);
	if (error == 0 && files != NULL)
		memcpy(files, got, sizeof(got));
	else
		close_files(got);
	return error;
}

static int64_t milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}

/* Asks viaductd to bring the counters up to date, unless it has been asked. Returns false if it can't be asked. Here and
 * below, the caller holds the lock. */
static bool ask_to_count(struct session *session)
{
	struct viaduct_header request = {.kind = VIADUCT_COUNT};

	if (session->socket < 0 || session->broken || session->level == 0)
		return false;
	if (session->counting)
		return true;
	session->asked_at = milliseconds();
	if (session_send(session, &request, sizeof(request), NULL) != 0)
		return false;
	session->counting = true;
	session->counted_by = session->oldest + session->waiting;
	return true;
}

/* Reads the answers that are there. Returns whether the counters are up to date. */
static bool has_counted(struct session *session)
{
	session_collect(session, false);
	if (session->broken || (int32_t)(session->counted_by - session->oldest) > 0)
		return false;
	session->counting = false;
	atomic_store(&session->counted_at, session->asked_at);
	return true;
}

/* Brings the counters up to date, and waits for that until the given time. Returns whether they are. */
static bool count_now(struct session *session, int64_t until)
{
	struct pollfd answers = {.fd = session->socket, .events = POLLIN};

	/* An answer that is there may be as old as the last dump. */
	if (session->counting)
		has_counted(session);
	if (!ask_to_count(session))
		return false;
	while (!has_counted(session)) {
		int64_t left = until - milliseconds();

		if (session->broken || left <= 0 || poll(&answers, 1, left) <= 0)
			return false;
	}
	return true;
}

/* Brings the counters of flows up to date, unless they are. Does not wait long for a viaductd that does not answer, or
 * for the lock. */
void session_count(struct session *session)
{
	int64_t now = milliseconds(), until = now + WAIT_FRESH, due = atomic_load(&session->next_count);
	struct timespec end;

	/* One thread asks. Another goes on at once, or waits for the first one by the lock. */
	if (now < due)
		return;
	if (now - atomic_load(&session->counted_at) <= RECENT) {
		if (pthread_mutex_trylock(&session->lock) != 0)
			return;
		if (atomic_load(&session->next_count) == due && ask_to_count(session))
			atomic_store(&session->next_count, has_counted(session) ? session->asked_at + FRESH : now + 1);
		pthread_mutex_unlock(&session->lock);
		return;
	}
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_nsec += WAIT_FRESH * 1000000;
	end.tv_sec += end.tv_nsec / 1000000000;
	end.tv_nsec %= 1000000000;
	if (pthread_mutex_timedlock(&session->lock, &end) != 0) {
		atomic_store(&session->next_count, milliseconds() + WAIT_AGAIN);
		return;
	}
	if (atomic_load(&session->next_count) == due) {
		bool fresh = count_now(session, until);

		atomic_store(&session->next_count, milliseconds() + (fresh ? FRESH : WAIT_AGAIN));
	}
	pthread_mutex_unlock(&session->lock);
}

/* Maps a file from viaductd. NULL: it could become shorter, which would end OVS, or is too short, or there is no
 * memory. */
void *map_file(int file, uint64_t length, int access)
{
	int seals = fcntl(file, F_GET_SEALS);
	struct stat stat;
	void *at;

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(file, &stat) < 0 || (uint64_t)stat.st_size < length)
		return NULL;
	at = mmap(NULL, length, access, MAP_SHARED, file, 0);
	return at == MAP_FAILED ? NULL : at;
}

void counters_release(struct counters *counters)
{
	if (counters == NULL || --counters->users > 0)
		return;
	munmap((void *)(uintptr_t)counters->at, (size_t)counters->count * sizeof(*counters->at));
	free(counters);
}

/* Maps the counters of a new session. */
static int counters_map(struct session *session, int file, uint32_t count)
{
	struct counters *counters;
	void *at;

	if (count == 0 || count > VIADUCT_COUNTERS)
		return EPROTO;
	counters = calloc(1, sizeof(*counters));
	at = counters == NULL ? NULL : map_file(file, (uint64_t)count * sizeof(struct viaduct_counter), PROT_READ);
	if (at == NULL) {
		free(counters);
		return EPROTO;
	}
	session->marks = marks_new(count);
	if (session->marks == NULL) {
		munmap(at, (size_t)count * sizeof(struct viaduct_counter));
		free(counters);
		return ENOMEM;
	}
	*counters = (struct counters){.at = at, .count = count, .users = 1};
	session->counters = counters;
	return 0;
}

/* Tells viaductd the MTU of an open port. Returns 0 or an errno. */
int session_mtu(struct port *port, uint16_t mtu)
{
	struct viaduct_port request = {.header.kind = VIADUCT_PORT_MTU, .port = port->handle, .mtu = mtu};
	struct viaduct_answer answer;
	int error = session_ask(port->session, &request, sizeof(request), &answer, NULL);

	if (error == 0 && answer.status != 0) {
		LOG(ERR, "port %s: MTU %u: %s\n", port->name, mtu, answer.text);
		error = answer.status;
	}
	return error;
}

/* Tells viaductd whether OVS has an open port down. Returns 0 or an errno. */
int session_link(struct port *port)
{
	struct viaduct_port request = {.header.kind = VIADUCT_PORT_LINK, .port = port->handle, .down = port->down};
	struct viaduct_answer answer;
	int error = session_ask(port->session, &request, sizeof(request), &answer, NULL);

	if (error == 0 && answer.status != 0) {
		LOG(ERR, "port %s: %s\n", port->name, answer.text);
		error = answer.status;
	}
	return error;
}

/* Tells viaductd what OVS does to packets of an open port. */
static void session_qos(struct port *port)
{
	struct viaduct_port request = {.header.kind = VIADUCT_PORT_QOS, .port = port->handle, .qos = port->qos};
	struct viaduct_answer answer;

	if (port->session->level == 0) {
		if (port->qos != 0)
			LOG(WARNING, "port %s: this viaductd is too old to leave its packets to OVS, so its QoS has no effect\n",
			    port->name);
		return;
	}
	if (session_ask(port->session, &request, sizeof(request), &answer, NULL) == 0 && answer.status != 0)
		LOG(ERR, "port %s: %s\n", port->name, answer.text);
}

/* Opens a port in the session. Returns 0 or an errno; viaductd's reason is logged once. */
static int open_port(struct session *session, struct port *port)
{
	struct viaduct_port_open open = {.header.kind = VIADUCT_PORT_OPEN, .port = port->handle, .down = port->down};
	struct viaduct_answer answer;
	struct rings *rings;
	int files[2] = {-1, -1}, error;
	size_t length = session->level > 0 ? sizeof(open) : offsetof(struct viaduct_port_open, device);

	memcpy(open.name, port->name, sizeof(open.name));
	snprintf(open.device, sizeof(open.device), "%s", port_device(port));
	error = session_ask(session, &open, length, &answer, files);
	if (error != 0)
		return error;
	if (answer.status != 0) {
		if (!port->refused)
			LOG(ERR, "port %s: %s\n", port->name, answer.text);
		port->refused = true;
		close_files(files);
		return answer.status;
	}
	rings = files[0] < 0 || files[1] < 0 ? NULL : rings_map(files[0], files[1], answer.slots);
	if (rings == NULL) {
		close_files(files);
		return EPROTO;
	}
	close(files[0]);
	rings->marks = session->marks;
	memcpy(port->mac.addr_bytes, answer.mac, sizeof(answer.mac));
	port->refused = false;
	port->open = true;
	session->settled = false;
	rings_put(port, rings);
	/* This viaductd does not know the MTU. If it refuses it, it has the port nevertheless. */
	if (port->mtu != 0)
		session_mtu(port, port->mtu);
	if (port->qos != 0)
		session_qos(port);
	return session->broken ? ENOTCONN : 0;
}

/* A connection to a viaductd that has answered the hello. */
struct greeting {
	int socket;
	int counters; /* the counters' file, or -1 */
	uint32_t count; /* number of counters */
	uint32_t together; /* most requests in a message */
	uint16_t level;
};

/* Says hello. Returns 0 or an errno. */
static int say_hello(const char *path, struct greeting *greeting)
{
	struct viaduct_hello hello = {
		.header = {.kind = VIADUCT_HELLO, .length = sizeof(hello)},
		.magic = VIADUCT_MAGIC,
		.version = VIADUCT_VERSION,
		.pid = getpid(),
		.answers = VIADUCT_AHEAD,
	};
	struct viaduct_answer answer = {0};
	int files[2] = {-1, -1}, error;
	uint32_t there;

	snprintf(hello.dpdk, sizeof(hello.dpdk), "%s", rte_version());
	if (send(greeting->socket, &hello, sizeof(hello), MSG_NOSIGNAL) < 0)
		return errno;
	error = receive_message(greeting->socket, &answer, 1, &there, files, 0);
	if (error == 0 && answer.status != 0) {
		LOG(ERR, "%s: %s\n", path, answer.text);
		error = answer.status;
	}
	greeting->counters = files[0];
	greeting->count = answer.counters;
	greeting->level = answer.level < VIADUCT_LEVEL ? answer.level : VIADUCT_LEVEL;
	greeting->together = answer.together < VIADUCT_TOGETHER ? answer.together : VIADUCT_TOGETHER;
	files[0] = -1;
	close_files(files);
	return error;
}

/* Connects and says hello, without the session's lock, so that nobody else waits for a viaductd that is stopped.
 * Returns 0 or an errno. */
static int greet(const char *path, struct greeting *greeting)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = PATIENCE};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), error = 0;

	if (fd < 0)
		return errno;
	*greeting = (struct greeting){.socket = fd, .counters = -1};
	strcpy(address.sun_path, path);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		error = errno;
	if (error == 0)
		error = say_hello(path, greeting);
	if (error != 0)
		close_files((int[]){fd, greeting->counters});
	return error;
}

/* Begins a session with what `greet` returned. Returns 0 or an errno. */
static int begin(struct session *session, int error, struct greeting *greeting)
{
	session->silent = error == EAGAIN && session->socket < 0;
	if (error != 0)
		return error;
	/* A thread that added a port may have been quicker. */
	if (session->socket < 0)
		error = greeting->counters < 0 ? EPROTO : counters_map(session, greeting->counters, greeting->count);
	if (error == 0 && session->socket < 0) {
		session->socket = greeting->socket;
		session->broken = false;
		session->there = session->taken = 0;
		session->together = greeting->together;
		session->level = greeting->level;
		atomic_store(&session->next_count, 0);
		atomic_store(&session->counted_at, INT64_MIN / 2);
		greeting->socket = -1;
	}
	close_files((int[]){greeting->socket, greeting->counters});
	return error;
}

/* Connects and says hello. Returns 0 or an errno. */
static int start(struct session *session)
{
	struct greeting greeting;
	int error = greet(session->path, &greeting);

	return begin(session, error, &greeting);
}

/* Opens all ports again, and creates all flows again. A refused port is tried again later. */
static bool resume(struct session *session)
{
	struct port *port;
	struct rte_flow *flow;
	bool all = true;

	LIST_FOREACH (port, &session->ports, next)
		if (!port->open && open_port(session, port) != 0)
			all = false;
	/* After all ports, because flows name other ports. */
	LIST_FOREACH (port, &session->ports, next)
		LIST_FOREACH (flow, &port->flows, next)
			if (port->open && !flow->live && !flow->waits && !flow->cut)
				flow_replay(flow);
	return all;
}

static void look_at_links(struct session *session)
{
	struct port *port;

	LIST_FOREACH (port, &session->ports, next)
		port_tell_link(port);
}

/* Tells viaductd of changes in what OVS does to packets of ports. */
static void look_at_qos(struct session *session)
{
	struct port *port;
	bool changed = false;

	LIST_FOREACH (port, &session->ports, next) {
		uint32_t qos = ovsdb_qos(port_device(port));

		if (qos == port->qos)
			continue;
		port->qos = qos;
		changed = true;
		if (port->open && !session->broken)
			session_qos(port);
	}
	/* Flows that were refused meanwhile. */
	if (changed && session->socket >= 0 && !session->broken)
		resume(session);
}

/* Looks at what OVS does to packets of all ports, after it has changed. */
void sessions_look_at_qos(void)
{
	struct session *session;

	pthread_mutex_lock(&sessions_lock);
	LIST_FOREACH (session, &sessions, next) {
		pthread_mutex_lock(&session->lock);
		look_at_qos(session);
		pthread_mutex_unlock(&session->lock);
	}
	pthread_mutex_unlock(&sessions_lock);
}

/* Tells viaductd once all ports are open that OVS has in its database: flows of an earlier OVS to other ports then have
 * no owner any more. */
void sessions_tell_settled(void)
{
	struct viaduct_header request = {.kind = VIADUCT_SETTLED};
	struct session *session;
	struct port *port;
	int missing;

	pthread_mutex_lock(&sessions_lock);
	missing = ovsdb_devices();
	LIST_FOREACH (session, &sessions, next) {
		pthread_mutex_lock(&session->lock);
		LIST_FOREACH (port, &session->ports, next)
			missing -= port->open && ovsdb_has(port_device(port));
		pthread_mutex_unlock(&session->lock);
	}
	LIST_FOREACH (session, &sessions, next) {
		pthread_mutex_lock(&session->lock);
		if (missing == 0 && !session->settled && session->level > 0 &&
		    session_send(session, &request, sizeof(request), NULL) == 0) {
			session->settled = true;
			session_collect(session, false); /* nothing may follow in its message */
		}
		pthread_mutex_unlock(&session->lock);
	}
	pthread_mutex_unlock(&sessions_lock);
}

/* Notes that the session is over: links are down, and OVS forwards what it can. */
static void end(struct session *session)
{
	struct port *port;
	struct rte_flow *flow;

	LIST_FOREACH (port, &session->ports, next) {
		LIST_FOREACH (flow, &port->flows, next)
			flow_lost(flow);
		rings_put(port, NULL);
		port->open = false;
	}
	session->waiting = 0;
	session->counting = false;
	session->gathered_length = session->gathered_count = 0;
	memset(session->vouched, 0, sizeof(session->vouched));
	counters_release(session->counters);
	session->counters = NULL;
	free(session->marks);
	session->marks = NULL;
	close(session->socket);
	session->socket = -1;
	session->broken = false;
}

static int shorter(int64_t left)
{
	return left < 0 || left > LOOK_AT_LINKS ? LOOK_AT_LINKS : left;
}

/* Waits until the session with this socket ends, or for `pause` milliseconds (-1: without end). Meanwhile it sends
 * gathered requests, and looks at links. Returns whether the session is over. The caller does not hold the lock. */
static bool watch(struct session *session, int socket, int pause)
{
	struct pollfd wanted[] = {{.fd = socket, .events = POLLRDHUP}, {.fd = session->bell, .events = POLLIN}};
	int64_t end = milliseconds() + pause, left = pause, links = 0;
	eventfd_t rung;

	while (pause < 0 || left > 0) {
		int64_t now = milliseconds();
		bool dozes;
		int error;

		pthread_mutex_lock(&session->lock);
		if (now >= links) {
			look_at_links(session);
			links = now + LOOK_AT_LINKS;
		}
		dozes = session->dozes = session->gathered_count == 0;
		error = session->broken ? 0 : send_gathered(session);
		if (error != 0)
			lose(session, error);
		pthread_mutex_unlock(&session->lock);

		/* Nobody else closes the socket. */
		if (poll(wanted, dozes ? 2 : 1, dozes ? shorter(left) : GATHER_SENT) > 0 && wanted[0].revents != 0)
			return true;
		eventfd_read(session->bell, &rung);
		if (pause >= 0)
			left = end - milliseconds();
	}
	return false;
}

static void *run(void *argument)
{
	struct session *session = argument;
	int pause = PAUSE_FIRST;

	for (;;) {
		struct greeting greeting;
		bool all;
		int error, socket;

		pthread_mutex_lock(&session->lock);
		if (session->socket < 0) {
			pthread_mutex_unlock(&session->lock);
			error = greet(session->path, &greeting);
			pthread_mutex_lock(&session->lock);
			if (begin(session, error, &greeting) == 0)
				LOG(NOTICE, "%s: connected again\n", session->path);
		}
		all = session->socket >= 0 && resume(session);
		if (session->socket >= 0)
			pause = all ? PAUSE_FIRST : PAUSE_REFUSED;
		socket = session->socket;
		pthread_mutex_unlock(&session->lock);
		if (all)
			sessions_tell_settled();

		if (watch(session, socket, all ? -1 : pause)) {
			pthread_mutex_lock(&session->lock);
			LOG(WARNING, "%s: viaductd is gone; links are down until it is back\n", session->path);
			end(session);
			pthread_mutex_unlock(&session->lock);
			pause = PAUSE_FIRST;
		} else if (socket < 0 && pause < PAUSE_LONGEST) {
			pause *= 2;
		}
	}
	return NULL;
}

/* Returns the session at this socket, whose path fits, and makes it if there is none. NULL: no memory. */
struct session *session_find(const char *path)
{
	struct session *session;
	pthread_t thread;
	sigset_t all, before;
	int error;

	pthread_mutex_lock(&sessions_lock);
	LIST_FOREACH (session, &sessions, next)
		if (strcmp(session->path, path) == 0)
			goto out;
	session = calloc(1, sizeof(*session));
	if (session == NULL)
		goto out;
	strcpy(session->path, path);
	pthread_mutex_init(&session->lock, NULL);
	pthread_mutex_init(&session->view, NULL);
	session->socket = -1;
	session->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (session->bell < 0) {
		free(session);
		session = NULL;
		goto out;
	}
	error = start(session);
	if (error != 0)
		LOG(WARNING, "%s: viaductd does not answer (%s); trying again\n", path, strerror(error));
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_create(&thread, NULL, run, session) == 0) {
		pthread_setname_np(thread, "viaduct");
		pthread_detach(thread);
		ovsdb_begin();
		LIST_INSERT_HEAD(&sessions, session, next);
	} else {
		if (session->socket >= 0)
			close(session->socket);
		close(session->bell);
		free(session);
		session = NULL;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
out:
	pthread_mutex_unlock(&sessions_lock);
	return session;
}

/* Takes a new port, which stays closed until viaductd comes. Returns 0, or an errno if it is refused. */
int session_add(struct session *session, struct port *port)
{
	int error = 0;

	pthread_mutex_lock(&session->lock);
	port->session = session;
	port->qos = ovsdb_qos(port_device(port));
	/* The thread may be in a pause, and viaductd may be there by now, which decides about the port. */
	if (session->socket < 0 && !session->silent && start(session) == 0)
		resume(session);
	if (session->socket >= 0 && !session->broken) {
		error = open_port(session, port);
		if (session->broken)
			error = 0;
	}
	if (error == 0)
		LIST_INSERT_HEAD(&session->ports, port, next);
	pthread_mutex_unlock(&session->lock);
	sessions_tell_settled();
	return error;
}

/* Closes a port, with its flows. */
void session_remove(struct port *port)
{
	struct session *session = port->session;
	struct port *other;
	struct viaduct_port close = {.header.kind = VIADUCT_PORT_CLOSE};
	struct viaduct_answer answer;

	pthread_mutex_lock(&session->lock);
	LIST_REMOVE(port, next);
	flow_forget_all(port);
	rings_put(port, NULL);
	mark_close(port);
	close.port = port->handle;
	if (port->open)
		session_ask(session, &close, sizeof(close), &answer, NULL);
	port->open = false;
	LIST_FOREACH (other, &session->ports, next)
		flows_cut(other, port->handle);
	pthread_mutex_unlock(&session->lock);
}

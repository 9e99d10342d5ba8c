/* Quality of service of OVS's ports. OVS polices and shapes only packets that it forwards itself, and tells no driver
 * about it. So a thread reads its database where this OVS reads it, and tells viaductd which ports have any: flows of
 * these then stay with OVS. */
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "viaduct.h"

#define DEFAULT_RUN_DIR_OF_OVS "/var/run/openvswitch"
#define DEFAULT_PORT "6640"
/* Pause between attempts to connect, milliseconds. */
#define PAUSE 500
/* Longest silence on a TCP connection, seconds. The database then asks for a sign of life. */
#define SILENCE 30
/* Longest message of the database, bytes. */
#define LONGEST (64u << 20)
/* Deepest nesting of its values. */
#define DEEPEST 32

/* What is read, once now and again after each change. */
#define COLUMNS_OF_INTERFACES "\"ingress_policing_rate\",\"ingress_policing_kpkts_rate\",\"options\""
#define COLUMNS_OF_PORTS "\"interfaces\",\"qos\""
static const char monitor[] =
	"{\"id\":\"monitor\",\"method\":\"monitor\",\"params\":[\"Open_vSwitch\",null,{"
	"\"Interface\":{\"columns\":[" COLUMNS_OF_INTERFACES "],\"select\":{\"initial\":false}},"
	"\"Port\":{\"columns\":[" COLUMNS_OF_PORTS "],\"select\":{\"initial\":false}}}]}";
static const char ask[] =
	"{\"id\":\"ask\",\"method\":\"transact\",\"params\":[\"Open_vSwitch\","
	"{\"op\":\"select\",\"table\":\"Interface\",\"where\":[[\"type\",\"==\",\"dpdk\"]],"
	"\"columns\":[\"_uuid\"," COLUMNS_OF_INTERFACES "]},"
	"{\"op\":\"select\",\"table\":\"Port\",\"where\":[[\"qos\",\"!=\",[\"set\",[]]]],"
	"\"columns\":[" COLUMNS_OF_PORTS "]}]}";
static const char echo[] = "{\"id\":\"echo\",\"result\":[],\"error\":null}";

#define DEVICES "net_viaduct"

/* Devices of this driver in the database. */
struct found {
	struct {
		char device[VIADUCT_NAME];
		uint32_t qos;
	} *all;
	size_t count;
};
static struct found found;
static bool was_read;
static bool unread; /* nobody knows what the database says now */
static pthread_mutex_t found_lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns what OVS does to packets of the port with this device. */
uint32_t ovsdb_qos(const char *device)
{
	uint32_t qos;

	pthread_mutex_lock(&found_lock);
	qos = unread ? VIADUCT_QOS_UNKNOWN : 0;
	for (size_t i = 0; i < found.count; i++)
		if (strcmp(found.all[i].device, device) == 0)
			qos |= found.all[i].qos;
	pthread_mutex_unlock(&found_lock);
	return qos;
}

/* Returns the number of devices in the database. -1: it was not read. */
int ovsdb_devices(void)
{
	int count;

	pthread_mutex_lock(&found_lock);
	count = was_read ? (int)found.count : -1;
	pthread_mutex_unlock(&found_lock);
	return count;
}

bool ovsdb_has(const char *device)
{
	bool has = false;

	pthread_mutex_lock(&found_lock);
	for (size_t i = 0; i < found.count && !has; i++)
		has = strcmp(found.all[i].device, device) == 0;
	pthread_mutex_unlock(&found_lock);
	return has;
}

static const char *blank(const char *at)
{
	return at + strspn(at, " \t\r\n");
}

static const char *skip_string(const char *at)
{
	for (at++; *at != 0 && *at != '"'; at++)
		if (*at == '\\' && *++at == 0)
			return NULL;
	return *at == '"' ? at + 1 : NULL;
}

/* Returns the end of the JSON value that begins here. NULL: it is not complete. */
static const char *skip(const char *at, int depth)
{
	at = blank(at);
	if (*at == '"')
		return skip_string(at);
	if (*at != '{' && *at != '[') {
		size_t length = strcspn(at, " \t\r\n,:]}");

		return length > 0 && at[length] != 0 ? at + length : NULL;
	}
	if (depth == DEEPEST)
		return NULL;
	for (at = blank(at + 1); *at != '}' && *at != ']'; at = blank(at)) {
		at = skip(at, depth + 1);
		if (at == NULL)
			return NULL;
		at = blank(at);
		if (*at == ',' || *at == ':')
			at++;
		else if (*at != '}' && *at != ']')
			return NULL;
	}
	return at + 1;
}

/* Returns the first element of an array or member of an object, of a value that is complete. NULL: there is none. */
static const char *first(const char *at)
{
	if (at == NULL)
		return NULL;
	at = blank(at);
	if (*at != '[' && *at != '{')
		return NULL;
	at = blank(at + 1);
	return *at == ']' || *at == '}' ? NULL : at;
}

/* Returns what follows an element or a member's name. NULL: nothing. */
static const char *next(const char *at)
{
	at = at == NULL ? NULL : skip(at, 0);
	at = at == NULL ? NULL : blank(at);
	return at != NULL && (*at == ',' || *at == ':') ? blank(at + 1) : NULL;
}

static bool is(const char *at, const char *text)
{
	size_t length = strlen(text);

	return at != NULL && *at == '"' && strncmp(at + 1, text, length) == 0 && at[1 + length] == '"';
}

/* Returns the value of a member. NULL: there is none. */
static const char *member(const char *object, const char *name)
{
	for (const char *at = first(object); at != NULL; at = next(next(at)))
		if (is(at, name))
			return next(at);
	return NULL;
}

/* Returns the value of a key of a map, which is ["map",[[KEY,VALUE],...]]. */
static const char *in_map(const char *map, const char *key)
{
	for (const char *at = first(next(first(map))); at != NULL; at = next(at))
		if (is(first(at), key))
			return next(first(at));
	return NULL;
}

static bool is_positive(const char *number)
{
	return number != NULL && strtod(number, NULL) > 0;
}

/* Is true if a row of ports with a quality of service has the interface with this UUID, ["uuid","..."]. */
static bool is_shaped(const char *ports, const char *uuid)
{
	const char *name = next(first(uuid)), *end = name == NULL ? NULL : skip(name, 0);

	for (const char *row = first(member(ports, "rows")); row != NULL && end != NULL; row = next(row)) {
		const char *interfaces = member(row, "interfaces");
		const char *last = interfaces == NULL ? NULL : skip(interfaces, 0);

		if (last != NULL && memmem(interfaces, last - interfaces, name, end - name) != NULL)
			return true;
	}
	return false;
}

/* Takes over the answer to `ask`: the rows of interfaces, then of ports. */
static void take_answer(const char *result)
{
	const char *interfaces = first(result), *ports = next(interfaces);
	struct found fresh = {NULL, 0}, old;

	if (member(interfaces, "rows") == NULL || member(ports, "rows") == NULL)
		return;
	for (const char *row = first(member(interfaces, "rows")); row != NULL; row = next(row)) {
		const char *device = in_map(member(row, "options"), "dpdk-devargs");
		size_t length = device == NULL ? 0 : strcspn(device + 1, ",\"");
		uint32_t qos = 0;
		void *more;

		if (is_positive(member(row, "ingress_policing_rate")) ||
		    is_positive(member(row, "ingress_policing_kpkts_rate")))
			qos |= VIADUCT_QOS_IN;
		if (is_shaped(ports, member(row, "_uuid")))
			qos |= VIADUCT_QOS_OUT;
		if (length >= VIADUCT_NAME || strncmp(device == NULL ? "" : device + 1, DEVICES, strlen(DEVICES)) != 0)
			continue;
		more = realloc(fresh.all, (fresh.count + 1) * sizeof(*fresh.all));
		if (more == NULL)
			break;
		fresh.all = more;
		snprintf(fresh.all[fresh.count].device, VIADUCT_NAME, "%.*s", (int)length, device + 1);
		fresh.all[fresh.count++].qos = qos;
	}
	pthread_mutex_lock(&found_lock);
	old = found;
	found = fresh;
	was_read = true;
	unread = false;
	pthread_mutex_unlock(&found_lock);
	free(old.all);
	sessions_look_at_qos();
	sessions_tell_settled();
}

static bool say(int to, const char *text)
{
	size_t length = strlen(text);

	return send(to, text, length, MSG_NOSIGNAL) == (ssize_t)length;
}

/* Handles a message. Returns whether the connection goes on. */
static bool handle(int from, const char *message)
{
	const char *method = member(message, "method");

	if (is(method, "echo"))
		return say(from, echo);
	if (is(method, "update"))
		return say(from, ask);
	if (is(member(message, "id"), "ask"))
		take_answer(member(message, "result"));
	return true;
}

/* Reads the database until the connection ends. */
static void follow(int from)
{
	size_t room = 64 << 10, there = 0;
	char *text = malloc(room);

	while (text != NULL && say(from, monitor) && say(from, ask)) {
		for (;;) {
			const char *end;
			ssize_t got;

			text[there] = 0;
			end = *blank(text) == 0 ? NULL : skip(text, 0);
			if (end != NULL) {
				if (!handle(from, text))
					goto out;
				there -= end - text;
				memmove(text, end, there);
				continue;
			}
			if (there == room - 1) {
				char *more = room < LONGEST ? realloc(text, room * 2) : NULL;

				if (more == NULL)
					goto out;
				text = more;
				room *= 2;
			}
			got = recv(from, text + there, room - 1 - there, 0);
			if (got <= 0 && !(got < 0 && errno == EINTR))
				goto out;
			there += got > 0 ? got : 0;
		}
	}
out:
	free(text);
}

/* Notes that the database can't be read, which viaductd shows. */
static void do_without(void)
{
	pthread_mutex_lock(&found_lock);
	unread = true;
	pthread_mutex_unlock(&found_lock);
	sessions_look_at_qos();
}

/* Returns the place of the database, as in the arguments of this OVS. NULL: this program is no OVS. */
static const char *find_database(void)
{
	static char arguments[1 << 16], usual[PATH_MAX];
	FILE *file = fopen("/proc/self/cmdline", "re");
	size_t length = file == NULL ? 0 : fread(arguments, 1, sizeof(arguments) - 1, file);
	const char *name = strrchr(arguments, '/'), *run_dir = getenv("OVS_RUNDIR");

	if (file != NULL)
		fclose(file);
	if (strncmp(name == NULL ? arguments : name + 1, "ovs-vswitchd", strlen("ovs-vswitchd")) != 0)
		return NULL;
	for (const char *at = arguments; at < arguments + length; at += strlen(at) + 1)
		if (strncmp(at, "unix:", 5) == 0 || strncmp(at, "tcp:", 4) == 0 || strncmp(at, "ssl:", 4) == 0)
			return at;
	snprintf(usual, sizeof(usual), "unix:%s/db.sock", run_dir == NULL ? DEFAULT_RUN_DIR_OF_OVS : run_dir);
	return usual;
}

static int connect_unix(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = -1;

	if ((size_t)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path) < sizeof(address.sun_path))
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -1;
}

/* Connects to HOST:PORT or [ADDRESS]:PORT, or to the default port. */
static int connect_tcp(const char *where)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all = NULL;
	struct timeval silence = {.tv_sec = SILENCE};
	char host[256], *port, *end;
	int fd = -1;

	snprintf(host, sizeof(host), "%.255s", *where == '[' ? where + 1 : where);
	end = strchr(host, ']');
	port = strchr(end == NULL ? host : end, ':');
	if (port != NULL)
		*port++ = 0;
	if (end != NULL)
		*end = 0;
	if (getaddrinfo(host, port == NULL ? DEFAULT_PORT : port, &hints, &all) != 0)
		return -1;
	for (struct addrinfo *one = all; one != NULL && fd < 0; one = one->ai_next) {
		fd = socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol);
		if (fd >= 0 && connect(fd, one->ai_addr, one->ai_addrlen) != 0) {
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(all);
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof(silence));
	return fd;
}

static void *run_ovsdb(void *argument)
{
	const char *where = find_database();
	bool told = false;

	(void)argument;
	if (where == NULL)
		return NULL;
	while (strncmp(where, "ssl:", 4) != 0) {
		int fd = strncmp(where, "tcp:", 4) == 0 ? connect_tcp(where + 4) : connect_unix(where + 5);

		if (fd >= 0) {
			told = false;
			follow(fd);
			close(fd);
		} else if (!told) {
			LOG(WARNING, "%s does not answer: policing and QoS of ports are unknown until it does\n", where);
			do_without();
			told = true;
		}
		usleep(PAUSE * 1000);
	}
	LOG(WARNING, "%s can't be read here: policing and QoS of Viaduct's ports have no effect\n", where);
	do_without();
	return NULL;
}

/* Begins to read the database, without end. Further calls do nothing. */
void ovsdb_begin(void)
{
	static bool begun;
	pthread_t thread;

	if (begun || pthread_create(&thread, NULL, run_ovsdb, NULL) != 0)
		return;
	begun = true;
	pthread_setname_np(thread, "viaduct-ovsdb");
	pthread_detach(thread);
}

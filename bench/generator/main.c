/* Obeys the commands on standard input, and has the loop of a run. */
#include "generator.h"

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_debug.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct generator generator;
static volatile sig_atomic_t interrupted;

static void on_signal(int signal) { interrupted = 1; }

static void clear_counters(struct generator *g, uint64_t now)
{
	for (unsigned i = 0; i < g->stream_count; i++) {
		struct stream *stream = &g->streams[i];
		stream->sent = stream->calls = stream->refused = 0;
		stream->tokens = 0;
		stream->last = now;
	}
	for (unsigned i = 0; i < g->forward_count; i++)
		g->forwards[i].forwarded = g->forwards[i].dropped = 0;
	for (unsigned i = 0; i < g->port_count; i++) {
		struct port *port = &g->ports[i];
		port->packets = port->bytes = port->unexpected = port->drained = 0;
		if (port->latency)
			memset(port->latency, 0, sizeof *port->latency);
	}
	memset(&g->probe.histogram, 0, sizeof g->probe.histogram);
	g->probe.timeouts = 0;
	g->probe.waiting = false;
	g->busy_ticks = 0;
}

/* Sets the priority. Real-time priority keeps other processes off the core while there is traffic; `nice` does not,
 * across sessions. */
static void set_priority(int policy)
{
	struct sched_param parameters = {.sched_priority = policy == SCHED_FIFO ? 10 : 0};
	if (sched_setscheduler(0, policy, &parameters))
		perror("generator: sched_setscheduler");
}

/* Receives until nothing has come for a while, so that what is lost can be told from what is under way. */
static void drain(struct generator *g)
{
	uint64_t before[MAX_PORTS], quiet = g->hz / 500, last = rte_rdtsc(), limit = last + g->hz / 5;
	for (unsigned port = 0; port < g->port_count; port++)
		before[port] = g->ports[port].packets;
	for (uint64_t now = last; now - last < quiet && now < limit; now = rte_rdtsc()) {
		for (unsigned port = 0; port < g->port_count; port++) {
			if (port_receive(g, port))
				last = now;
		}
	}
	for (unsigned port = 0; port < g->port_count; port++) {
		g->ports[port].drained = g->ports[port].packets - before[port];
		g->ports[port].packets = before[port];
	}
}

/* Microseconds. */
#define NAP 50

/* The generator's choice when it has nothing to do: it polls, lets others of the same priority have the core, or
 * sleeps a little. */
enum pause { POLLS, YIELDS, NAPS };

static void run(struct generator *g, double seconds, int policy, enum pause pause)
{
	set_priority(policy);
	announce(g);
	uint64_t start = rte_rdtsc(), now = start, end = start + seconds * g->hz;
	clear_counters(g, start);
	while (now < end && !interrupted) {
		unsigned work = 0;
		for (unsigned i = 0; i < g->stream_count; i++)
			work += stream_send(g, &g->streams[i], now);
		if (g->has_probe)
			work += probe_send(g, now);
		for (unsigned port = 0; port < g->port_count; port++)
			work += port_receive(g, port);
		uint64_t after = rte_rdtsc();
		if (work)
			g->busy_ticks += after - now;
		else if (pause == YIELDS)
			sched_yield();
		else if (pause == NAPS)
			usleep(NAP);
		now = after;
	}
	g->ticks = now - start;
	drain(g);
	set_priority(SCHED_OTHER);
}

static void obey(struct generator *g, const char *line)
{
	unsigned stream;
	double number;
	if (sscanf(line, "run %lf", &number) == 1) {
		run(g, number, SCHED_FIFO, POLLS);
		report_print(g);
	} else if (sscanf(line, "share %lf", &number) == 1) {
		run(g, number, SCHED_OTHER, POLLS);
		report_print(g);
	} else if (sscanf(line, "naps %lf", &number) == 1) {
		run(g, number, SCHED_OTHER, NAPS);
		report_print(g);
	} else if (sscanf(line, "turns %lf", &number) == 1) {
		run(g, number, SCHED_FIFO, YIELDS);
		report_print(g);
	} else if (sscanf(line, "rate %u %lf", &stream, &number) == 2 && stream < g->stream_count) {
		g->streams[stream].rate = number;
	} else {
		fprintf(stderr, "generator: unknown command: %s", line);
	}
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal};
	char line[128];
	int used = rte_eal_init(argc, argv);
	if (used < 0)
		rte_exit(1, "generator: EAL does not start\n");
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	generator.hz = rte_get_tsc_hz();
	options_parse(&generator, argc - used, argv + used);
	ports_start(&generator);
	actors_prepare(&generator);
	printf("{\"event\": \"ready\"}\n");
	fflush(stdout);
	while (!interrupted && fgets(line, sizeof line, stdin))
		obey(&generator, line);
	ports_stop(&generator);
	rte_eal_cleanup();
	return 0;
}

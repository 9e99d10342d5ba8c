/* The counters of a run, as one line of JSON. */
#include "generator.h"

#include <stdio.h>

static void print_streams(const struct generator *g)
{
	for (unsigned i = 0; i < g->stream_count; i++) {
		const struct stream *stream = &g->streams[i];
		printf("%s{\"tx\": %d, \"rx\": %d, \"sent\": %lu, \"refused\": %.4f}", i ? ", " : "", stream->tx, stream->rx,
		       stream->sent, stream->calls ? (double)stream->refused / stream->calls : 0);
	}
}

static void print_ports(const struct generator *g)
{
	for (unsigned i = 0; i < g->port_count; i++) {
		const struct port *port = &g->ports[i];
		printf("%s{\"packets\": %lu, \"bytes\": %lu, \"unexpected\": %lu, \"drained\": %lu", i ? ", " : "",
		       port->packets, port->bytes, port->unexpected, port->drained);
		if (port->latency) {
			printf(", \"latency\": ");
			histogram_print(port->latency, g->hz / 1e6);
		}
		printf("}");
	}
}

void report_print(const struct generator *g)
{
	printf("{\"event\": \"done\", \"seconds\": %.6f, \"busy\": %.4f, \"hz\": %.0f, \"streams\": [", g->ticks / g->hz,
	       (double)g->busy_ticks / g->ticks, g->hz);
	print_streams(g);
	printf("], \"ports\": [");
	print_ports(g);
	printf("], \"forwards\": [");
	for (unsigned i = 0; i < g->forward_count; i++)
		printf("%s{\"forwarded\": %lu, \"dropped\": %lu}", i ? ", " : "", g->forwards[i].forwarded, g->forwards[i].dropped);
	printf("]");
	if (g->has_probe) {
		printf(", \"probe\": {\"timeouts\": %lu, \"round_trip\": ", g->probe.timeouts);
		histogram_print(&g->probe.histogram, g->hz / 1e6);
		printf("}");
	}
	printf("}\n");
	fflush(stdout);
}

/* Latencies in logarithmic buckets. */
#include "generator.h"

#include <stdio.h>

static unsigned bucket_of(uint64_t ticks)
{
	if (ticks < 1u << HISTOGRAM_BITS)
		return ticks;
	unsigned shift = 63 - __builtin_clzll(ticks) - HISTOGRAM_BITS;
	unsigned bucket = ((shift + 1) << HISTOGRAM_BITS) + ((ticks >> shift) & ((1u << HISTOGRAM_BITS) - 1));
	return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

/* Returns the middle of a bucket. */
static double ticks_of(unsigned bucket)
{
	if (bucket < 1u << HISTOGRAM_BITS)
		return bucket;
	unsigned shift = (bucket >> HISTOGRAM_BITS) - 1;
	uint64_t mantissa = (1u << HISTOGRAM_BITS) + (bucket & ((1u << HISTOGRAM_BITS) - 1));
	return (mantissa + 0.5) * (1ull << shift);
}

void histogram_add(struct histogram *histogram, uint64_t ticks)
{
	histogram->count[bucket_of(ticks)]++;
	histogram->total++;
	histogram->sum += ticks;
	if (ticks > histogram->max)
		histogram->max = ticks;
}

static double percentile(const struct histogram *histogram, double share)
{
	uint64_t rank = share * (histogram->total - 1), seen = 0;
	for (unsigned bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++) {
		seen += histogram->count[bucket];
		if (seen > rank)
			return ticks_of(bucket);
	}
	return histogram->max;
}

void histogram_print(const struct histogram *histogram, double ticks_per_us)
{
	printf("{\"count\": %lu", histogram->total);
	if (histogram->total) {
		printf(", \"mean\": %.3f", histogram->sum / histogram->total / ticks_per_us);
		printf(", \"p50\": %.3f, \"p99\": %.3f, \"p999\": %.3f, \"max\": %.3f, \"buckets\": [",
		       percentile(histogram, 0.5) / ticks_per_us, percentile(histogram, 0.99) / ticks_per_us,
		       percentile(histogram, 0.999) / ticks_per_us, histogram->max / ticks_per_us);
		const char *separator = "";
		for (unsigned bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++) {
			if (!histogram->count[bucket])
				continue;
			printf("%s[%.3f, %lu]", separator, ticks_of(bucket) / ticks_per_us, histogram->count[bucket]);
			separator = ", ";
		}
		printf("]");
	}
	printf("}");
}

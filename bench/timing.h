/* Clock, CPU and median of the benchmark's programs. Define _GNU_SOURCE before the first header. */
#ifndef TIMING_H
#define TIMING_H

#include <err.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

/* Returns the microseconds of the monotonic clock. */
static inline double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* Keeps this process on one CPU. */
static inline void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		err(1, "sched_setaffinity");
}

static inline int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* The median of `count` times, at least one, which are sorted. */
static inline double median(double *times, size_t count)
{
	qsort(times, count, sizeof *times, ascending);
	return times[count / 2];
}

#endif

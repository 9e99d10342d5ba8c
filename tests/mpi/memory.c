/* Two ranks exchange messages from memory of each kind, short ones and long ones, several times, and check every word.
   Prints the number of wrong words. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS (512 * 1024)
#define BYTES (2 * WORDS * sizeof(unsigned))

static unsigned data[2 * WORDS] = {1, 2, 3}, zeros[2 * WORDS];
static int rank;
static long wrong;

static unsigned word(int at, int by, int round) { return at * 2654435761u + by + 7 * round; }

static void exchange(const char *kind, unsigned *memory) {
	unsigned *sent = memory, *got = memory + WORDS;
	long before = wrong;
	for (int words = 16; words <= WORDS; words *= 32)
		for (int round = 0; round < 2; round++) {
			for (int at = 0; at < words; at++) sent[at] = word(at, rank, round);
			memset(got, 0, words * sizeof *got);
			MPI_Sendrecv(sent, words, MPI_UNSIGNED, 1 - rank, 1, got, words, MPI_UNSIGNED, 1 - rank, 1, MPI_COMM_WORLD,
				     MPI_STATUS_IGNORE);
			for (int at = 0; at < words; at++) wrong += got[at] != word(at, 1 - rank, round);
		}
	if (wrong > before) printf("rank %d: %s: %ld wrong\n", rank, kind, wrong - before);
}

static void on_stack(void) {
	unsigned memory[2 * WORDS];
	exchange("stack", memory);
}

int main(int count, char **words) {
	MPI_Init(&count, &words);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	unsigned *heap = malloc(BYTES), *locked = aligned_alloc(4096, BYTES);
	exchange("heap", heap);
	exchange("static variables", zeros);
	exchange("static variables with a first value", data);
	on_stack();
	char name[] = "/tmp/mpi-memory-XXXXXX";
	int file = mkstemp(name), both = PROT_READ | PROT_WRITE;
	if (file < 0 || ftruncate(file, BYTES) || unlink(name)) return 1;
	exchange("private file", mmap(NULL, BYTES, both, MAP_PRIVATE, file, 0));
	exchange("shared file", mmap(NULL, BYTES, both, MAP_SHARED, file, 0));
	exchange("shared", mmap(NULL, BYTES, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	mlock(locked, BYTES);
	exchange("locked", locked);
	pid_t child = fork();
	if (child == 0) {
		memset(heap, 1, BYTES);
		memset(data, 1, BYTES);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	exchange("heap after a fork", heap);
	exchange("static variables after a fork", data);
	on_stack();
	long all;
	MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0) printf("%ld wrong\n", all);
	MPI_Finalize();
	return 0;
}

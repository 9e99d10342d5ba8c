/* Collectives of all ranks, with every result checked. Ends with 0 where all were right. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int check(int size, int rank, int count)
{
	long *mine = malloc(count * sizeof *mine), *sum = malloc(count * sizeof *sum);
	int *out = malloc(size * count * sizeof *out), *in = malloc(size * count * sizeof *in);
	int wrong = 0;

	for (int i = 0; i < count; i++)
		mine[i] = (long)rank * count + i;
	MPI_Allreduce(mine, sum, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++)
		wrong += sum[i] != (long)count * size * (size - 1) / 2 + (long)size * i;
	for (int i = 0; i < size * count; i++)
		out[i] = rank * 1000003 + i;
	MPI_Alltoall(out, count, MPI_INT, in, count, MPI_INT, MPI_COMM_WORLD);
	for (int from = 0; from < size; from++)
		for (int i = 0; i < count; i++)
			wrong += in[from * count + i] != from * 1000003 + rank * count + i;
	free(mine), free(sum), free(out), free(in);
	return wrong;
}

int main(int argc, char **argv)
{
	int size, rank, wrong = 0, all;

	MPI_Init(&argc, &argv);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int count = 1; count <= 1 << 16; count *= 16)
		wrong += check(size, rank, count);
	MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks, %d wrong\n", size, all);
	MPI_Finalize();
	return all != 0;
}

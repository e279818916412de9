/* The time of FFTW's own MPI transform of a field of n x n x n points, in double precision.
 *
 *   fftw_mpi3d N {c2c|r2c} {natural|transposed} CALLS ROUNDS
 *
 * Plans (FFTW_MEASURE) in place and out of place, checks a plane wave, and prints for each the
 * median over ROUNDS of the slowest rank's seconds per call, over CALLS calls in a row.
 */

#include <complex.h>
#include <fftw3-mpi.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    fftw_mpi_init();
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc != 6) {
        if (rank == 0)
            fprintf(stderr, "usage: %s N {c2c|r2c} {natural|transposed} CALLS ROUNDS\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const ptrdiff_t n = atoi(argv[1]);
    const int real = strcmp(argv[2], "r2c") == 0, transposed = strcmp(argv[3], "transposed") == 0;
    const int calls = atoi(argv[4]), rounds = atoi(argv[5]);
    const ptrdiff_t width = real ? n / 2 + 1 : n;       /* of the spectrum, along x */
    ptrdiff_t nz, z0, ny, y0;
    const ptrdiff_t size = fftw_mpi_local_size_3d_transposed(n, n, width, MPI_COMM_WORLD, &nz, &z0,
                                                             &ny, &y0);
    double *seconds = malloc(rounds * sizeof *seconds);
    for (int in_place = 1; in_place >= 0; in_place--) {
        fftw_complex *out = fftw_alloc_complex(size), *in = in_place ? out : fftw_alloc_complex(size);
        const unsigned flags = FFTW_MEASURE | (transposed ? FFTW_MPI_TRANSPOSED_OUT : 0);
        fftw_plan plan = real
            ? fftw_mpi_plan_dft_r2c_3d(n, n, n, (double *)in, out, MPI_COMM_WORLD, flags)
            : fftw_mpi_plan_dft_3d(n, n, n, in, out, MPI_COMM_WORLD, FFTW_FORWARD, flags);
        const ptrdiff_t row = real ? 2 * width : n;
        for (ptrdiff_t z = 0; z < nz; z++)
            for (ptrdiff_t y = 0; y < n; y++)
                for (ptrdiff_t x = 0; x < n; x++) {
                    const double phase = 2 * M_PI * (1.0 * (z0 + z) + 2.0 * y + 3.0 * x) / n;
                    const ptrdiff_t at = (z * n + y) * row + x;
                    if (real)
                        ((double *)in)[at] = 2 * cos(phase);
                    else
                        in[at] = cexp(I * phase);
                }
        fftw_execute(plan);
        const ptrdiff_t first = transposed ? y0 : z0, count = transposed ? ny : nz;
        const ptrdiff_t mode[2] = {transposed ? 2 : 1, transposed ? 1 : 2};
        double worst = 0, worst_of_all;
        for (ptrdiff_t a = 0; a < count; a++)
            for (ptrdiff_t b = 0; b < n; b++)
                for (ptrdiff_t x = 0; x < width; x++) {
                    const int here = first + a == mode[0] && b == mode[1] && x == 3;
                    const double error = cabs(out[(a * n + b) * width + x] / pow(n, 3) - here);
                    if (!(error <= worst))
                        worst = error;
                }
        MPI_Allreduce(&worst, &worst_of_all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (!(worst_of_all < 1e-13)) {
            if (rank == 0)
                fprintf(stderr, "expected the plane wave's mode, error %g\n", worst_of_all);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        for (int round = -1; round < rounds; round++) {
            memset(in, 0, size * sizeof *in);
            MPI_Barrier(MPI_COMM_WORLD);
            double wall_s = -MPI_Wtime(), slowest_s;
            for (int call = 0; call < calls; call++)
                fftw_execute(plan);
            wall_s = (wall_s + MPI_Wtime()) / calls;
            MPI_Allreduce(&wall_s, &slowest_s, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            if (round >= 0)
                seconds[round] = slowest_s;
        }
        qsort(seconds, rounds, sizeof *seconds, ascending);
        if (rank == 0)
            printf("%s %.6f\n", in_place ? "in_place" : "out_of_place", seconds[rounds / 2]);
        fftw_destroy_plan(plan);
        if (!in_place)
            fftw_free(in);
        fftw_free(out);
    }
    free(seconds);
    fftw_mpi_cleanup();
    MPI_Finalize();
    return 0;
}

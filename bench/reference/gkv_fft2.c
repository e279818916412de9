/* Batched distributed 2-D FFT with the transposes hidden by OpenMP threads: the yardstick of the benchmarks.
 *
 * The technique is that of the GKV application note: inside one parallel region the master thread makes the *blocking*
 * MPI calls of one step's slices, the other threads meanwhile run dynamic `nowait` loops over the row and column blocks
 * of the slices in other stages of a software pipeline, the master joins them when its call returns, and one barrier
 * ends the step.
 *
 *   fft2        (slices, ny/P, nx) complex -> x sweep + pack | all-to-all | y sweep -> (slices, ny, nx/P), natural order
 *   operation   four fields ax, ay, bx, by (slices, ny, (nx/2+1)/P), half spectra, kept intact
 *               -> inverse y sweep | all-to-all | c2r x sweep, ax*by - ay*bx, r2c x sweep + pack | all-to-all | y sweep
 *
 * Data moves once. A thread transforms a few rows in its own cache-sized scratch and copies the pieces from there to
 * where they belong: what leaves the rank to the send buffer, what stays to the result. One message per slice (and field) is received
 * straight into the result, which is already (P, rows, columns) = (ny, columns); one message per step ("--message step")
 * needs a receive buffer, which the y sweep empties block by block. The y sweep runs in place. Block sizes are the fastest
 * of a few, timed on the job's own arrays.
 *
 * Stage s works on step k - s in iteration k, and no barrier separates the stages of an iteration, hence a buffer exists
 * once for each stage that may touch it in the same iteration: two copies for writer and reader, three for the send buffer
 * of the operation's first exchange, whose own part is read one stage later still.
 */
#define _GNU_SOURCE
#include <complex.h>
#include <fftw3.h>
#include <getopt.h>
#include <math.h>
#include <mpi.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef double complex cplx;

enum { FIELDS = 4, MAX_LIST = 16, MAX_CASES = 256, MAX_THREADS = 64 };
enum workload { FFT2, OPERATION };
enum mode { OFF, OVERLAP, COMPUTE, EXCHANGE };
static const char *const mode_name[] = {"off", "overlap", "compute", "exchange"};

/* ---- the job and who holds what ------------------------------------------------------------------------------- */

static enum workload workload = FFT2;
static int slices = 64, ny = 512, nx = 512;
static int columns;              /* columns of a spectral slice: nx, or nx/2 + 1 of a half spectrum */
static int ranks, me;
static int *row_at, *col_at;     /* rank p holds rows row_at[p]..row_at[p+1] and columns col_at[p]..col_at[p+1] */
static int rows_here, cols_here;

static cplx *field[FIELDS];      /* inputs: field[0] (slices, rows_here, nx), or four (slices, ny, cols_here) */
static cplx *result;             /* (slices, ny, cols_here) */

/* ---- how one case runs ---------------------------------------------------------------------------------------- */

static int per_step = 1, steps;
static int message_per_step;     /* 0: a message per slice; 1: a message per step */
static cplx *back_send[3], *back_recv[2], *send[2], *recv[2];

/* ---- kernels -------------------------------------------------------------------------------------------------- */

typedef struct { int block, tail; fftw_plan whole, rest; } sweep;   /* `rest` transforms the `tail` left-over lines */
static sweep x_forward, x_c2r, x_r2c, y_forward, y_inverse /* in scratch */, y_inverse_there;
static int x_from_scratch;       /* x sweep of a copy of the rows: memcpy streams from memory better than FFTW reads it */
static int y_through_scratch;    /* y sweep in a dense copy of the block rather than in the result itself */
static unsigned y_planner = FFTW_PATIENT;

static struct { cplx *line, *source, *block; double *real[FIELDS]; } scratch[MAX_THREADS];

static void fail(const char *what)
{
    fprintf(stderr, "gkv_fft2: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 2);
    exit(2);
}

static int min_int(int a, int b) { return a < b ? a : b; }

static int *starts(int n)
{
    int *at = malloc((ranks + 1) * sizeof *at);
    for (int p = 0; p <= ranks; p++) at[p] = p * (n / ranks) + min_int(p, n % ranks);
    return at;
}

/* Huge pages: neighbouring elements of a column lie a page or more apart. */
static void *array(size_t bytes)
{
    size_t page = (size_t)2 << 20;
    bytes = (bytes + page) / page * page;
    void *a = aligned_alloc(page, bytes);
    if (!a) fail("out of memory");
    madvise(a, bytes, MADV_HUGEPAGE);
    memset(a, 0, bytes);
    return a;
}

static int slices_in(int step) { return min_int(per_step, slices - step * per_step); }

/* Field f (of `fields`) of slice i of a step travels in message `number`, as item `item` of `of`. */
typedef struct { int number, item, of; } place;

static place place_of(int step, int i, int fields, int f)
{
    int item = i * fields + f;
    return message_per_step ? (place){0, item, slices_in(step) * fields} : (place){item, 0, 1};
}

/* Where the part that goes to or comes from rank p lies in a buffer of messages whose blocks are (rank, item, rows, columns):
 * the row-distributed side (all columns of the rows here), the column-distributed side (all rows of the columns here). */
static size_t in_rows(place at, int p)
{
    size_t cols_p = col_at[p + 1] - col_at[p], n = (size_t)at.of * rows_here;
    return at.number * n * columns + n * col_at[p] + at.item * rows_here * cols_p;
}

static size_t in_columns(place at, int p)
{
    size_t rows_p = row_at[p + 1] - row_at[p], n = (size_t)at.of * cols_here;
    return at.number * n * ny + n * row_at[p] + at.item * rows_p * cols_here;
}

/* ---- sweeps ---------------------------------------------------------------------------------------------------- */

/* Rows in scratch -> send buffer; the columns that stay -> the result. */
static void pack_rows(const cplx *line, int step, int i, int row, int n)
{
    place at = place_of(step, i, 1, 0);
    cplx *slice = result + (size_t)(step * per_step + i) * ny * cols_here;
    for (int p = 0; p < ranks; p++) {
        size_t cols_p = col_at[p + 1] - col_at[p];
        cplx *to = p == me ? slice + (size_t)(row_at[me] + row) * cols_here
                           : send[step % 2] + in_rows(at, p) + row * cols_p;
        for (int r = 0; r < n; r++)
            memcpy(to + r * cols_p, line + (size_t)r * columns + col_at[p], cols_p * sizeof(cplx));
    }
}

static void rows_forward(int step, int i, int row, int n)
{
    cplx *line = scratch[omp_get_thread_num()].line;
    cplx *from = field[0] + ((size_t)(step * per_step + i) * rows_here + row) * nx;
    if (x_from_scratch) from = memcpy(scratch[omp_get_thread_num()].source, from, (size_t)n * nx * sizeof(cplx));
    fftw_execute_dft(n == x_forward.block ? x_forward.whole : x_forward.rest, from, line);
    pack_rows(line, step, i, row, n);
}

static void rows_operate(int step, int i, int row, int n)
{
    cplx *line = scratch[omp_get_thread_num()].line;
    double **real = scratch[omp_get_thread_num()].real;
    for (int f = 0; f < FIELDS; f++) {
        place at = place_of(step, i, FIELDS, f);
        for (int p = 0; p < ranks; p++) {
            size_t cols_p = col_at[p + 1] - col_at[p];
            const cplx *from = p == me ? back_send[step % 3] + in_columns(at, me)
                                       : back_recv[step % 2] + in_rows(at, p);
            for (int r = 0; r < n; r++)
                memcpy(line + (size_t)r * columns + col_at[p], from + (row + r) * cols_p, cols_p * sizeof(cplx));
        }
        fftw_execute_dft_c2r(n == x_c2r.block ? x_c2r.whole : x_c2r.rest, line, real[f]);
    }
    const double scale = 1.0 / ((double)nx * ny) / ((double)nx * ny);
    double *restrict ax = real[0];
    const double *restrict ay = real[1], *restrict bx = real[2], *restrict by = real[3];
    for (int j = 0; j < n * nx; j++) ax[j] = scale * (ax[j] * by[j] - ay[j] * bx[j]);
    fftw_execute_dft_r2c(n == x_r2c.block ? x_r2c.whole : x_r2c.rest, ax, line);
    pack_rows(line, step, i, row, n);
}

static void copy_block(cplx *to, size_t to_stride, const cplx *from, size_t from_stride, int rows, int cols)
{
    for (int r = 0; r < rows; r++) memcpy(to + r * to_stride, from + r * from_stride, cols * sizeof(cplx));
}

static void columns_forward(int step, int i, int col, int n)
{
    place at = place_of(step, i, 1, 0);
    cplx *slice = result + (size_t)(step * per_step + i) * ny * cols_here + col;
    cplx *work = y_through_scratch ? scratch[omp_get_thread_num()].block : slice;
    size_t stride = y_through_scratch ? y_forward.block : cols_here;
    if (y_through_scratch || message_per_step)
        for (int p = 0; p < ranks; p++) {
            cplx *home = slice + (size_t)row_at[p] * cols_here;
            const cplx *from = message_per_step && p != me ? recv[step % 2] + in_columns(at, p) + col : home;
            cplx *to = work + row_at[p] * stride;
            if (to != from) copy_block(to, stride, from, cols_here, row_at[p + 1] - row_at[p], n);
        }
    fftw_execute_dft(n == y_forward.block ? y_forward.whole : y_forward.rest, work, work);
    if (y_through_scratch) copy_block(slice, cols_here, work, stride, ny, n);
}

/* With a message for every field its place in the send buffer is (ny, columns), and the sweep can run there. */
static void columns_inverse(int step, int i, int f, int col, int n)
{
    place at = place_of(step, i, FIELDS, f);
    const cplx *from = field[f] + (size_t)(step * per_step + i) * ny * cols_here + col;
    cplx *lane = back_send[step % 3];
    if (!message_per_step) {
        cplx *work = lane + in_columns(at, 0) + col;
        copy_block(work, cols_here, from, cols_here, ny, n);
        fftw_execute_dft(n == y_inverse_there.block ? y_inverse_there.whole : y_inverse_there.rest, work, work);
        return;
    }
    cplx *work = scratch[omp_get_thread_num()].block;
    int stride = y_inverse.block;
    copy_block(work, stride, from, cols_here, ny, n);
    fftw_execute_dft(n == stride ? y_inverse.whole : y_inverse.rest, work, work);
    for (int p = 0; p < ranks; p++)
        copy_block(lane + in_columns(at, p) + col, cols_here,
                   work + (size_t)row_at[p] * stride, stride, row_at[p + 1] - row_at[p], n);
}

/* ---- pipeline stages; a computing stage is a dynamic loop that does not wait ------------------------------------ */

static int blocks(int n, int block) { return (n + block - 1) / block; }

static void stage_rows(int step)
{
    int block = workload == FFT2 ? x_forward.block : x_c2r.block;
    int each = blocks(rows_here, block), total = slices_in(step) * each;
#pragma omp for schedule(dynamic) nowait
    for (int task = 0; task < total; task++) {
        int row = task % each * block, n = min_int(block, rows_here - row);
        (workload == FFT2 ? rows_forward : rows_operate)(step, task / each, row, n);
    }
}

static void stage_columns_forward(int step)
{
    int each = blocks(cols_here, y_forward.block), total = slices_in(step) * each;
#pragma omp for schedule(dynamic) nowait
    for (int task = 0; task < total; task++) {
        int col = task % each * y_forward.block;
        columns_forward(step, task / each, col, min_int(y_forward.block, cols_here - col));
    }
}

static void stage_columns_inverse(int step)
{
    int block = message_per_step ? y_inverse.block : y_inverse_there.block;
    int each = blocks(cols_here, block), total = slices_in(step) * FIELDS * each;
#pragma omp for schedule(dynamic) nowait
    for (int task = 0; task < total; task++) {
        int col = task % each * block, item = task / each;
        columns_inverse(step, item / FIELDS, item % FIELDS, col, min_int(block, cols_here - col));
    }
}

/* What stays on this rank is not part of the exchange: its counts are zero. */
static void exchange(int step, int fields, const cplx *from, cplx *to, int to_columns)
{
    int n = slices_in(step) * fields, messages = message_per_step ? 1 : n, items = message_per_step ? n : 1;
    int out_n[ranks], out_at[ranks], in_n[ranks], in_at[ranks];
    size_t unit = items;
    for (int p = 0; p < ranks; p++) {
        int rows_side = p == me ? 0 : unit * rows_here * (col_at[p + 1] - col_at[p]);
        int cols_side = p == me ? 0 : unit * cols_here * (row_at[p + 1] - row_at[p]);
        int rows_from = unit * rows_here * col_at[p], cols_from = unit * cols_here * row_at[p];
        out_n[p] = to_columns ? rows_side : cols_side, out_at[p] = to_columns ? rows_from : cols_from;
        in_n[p] = to_columns ? cols_side : rows_side, in_at[p] = to_columns ? cols_from : rows_from;
    }
    size_t rows_size = unit * rows_here * columns, cols_size = unit * cols_here * ny;
    for (int j = 0; j < messages; j++)
        MPI_Alltoallv(from + j * (to_columns ? rows_size : cols_size), out_n, out_at, MPI_C_DOUBLE_COMPLEX,
                      to + j * (to_columns ? cols_size : rows_size), in_n, in_at, MPI_C_DOUBLE_COMPLEX, MPI_COMM_WORLD);
}

static void stage_exchange(int step)
{
    cplx *to = message_per_step ? recv[step % 2] : result + (size_t)step * per_step * ny * cols_here;
    exchange(step, 1, send[step % 2], to, 1);
}

static void stage_exchange_back(int step) { exchange(step, FIELDS, back_send[step % 3], back_recv[step % 2], 0); }

typedef struct { int communicates; void (*work)(int step); } stage;
static const stage fft2_stages[] = {{0, stage_rows}, {1, stage_exchange}, {0, stage_columns_forward}};
static const stage operation_stages[] = {{0, stage_columns_inverse}, {1, stage_exchange_back}, {0, stage_rows},
                                         {1, stage_exchange}, {0, stage_columns_forward}};
static const stage *stages;
static int depth;

static void run_overlapped(int threads)
{
#pragma omp parallel num_threads(threads)
    for (int k = 0; k < steps + depth - 1; k++) {
#pragma omp master
        for (int s = 0; s < depth; s++)
            if (stages[s].communicates && k - s >= 0 && k - s < steps) stages[s].work(k - s);
        /* latest stage first: its slices have waited longest and lie in no cache any more anyway */
        for (int s = depth - 1; s >= 0; s--)
            if (!stages[s].communicates && k - s >= 0 && k - s < steps) stages[s].work(k - s);
#pragma omp barrier
    }
}

static void run_in_turn(int threads, int compute, int communicate)
{
#pragma omp parallel num_threads(threads)
    for (int k = 0; k < steps; k++)
        for (int s = 0; s < depth; s++) {
            if (stages[s].communicates) {
#pragma omp master
                if (communicate) stages[s].work(k);
            } else if (compute) {
                stages[s].work(k);
            }
#pragma omp barrier
        }
}

static double run(enum mode mode, int threads, int slices_per_step, int one_message)
{
    per_step = min_int(slices_per_step, slices), steps = blocks(slices, per_step), message_per_step = one_message;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime(), mine, slowest;
    if (mode == OVERLAP) run_overlapped(threads);
    else run_in_turn(threads, mode != EXCHANGE, mode != COMPUTE);
    mine = MPI_Wtime() - start;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

/* ---- planning --------------------------------------------------------------------------------------------------- */

enum kernel { X_FORWARD, X_C2R, X_R2C, Y_IN_RESULT, Y_IN_SCRATCH, Y_INVERSE_THERE, Y_INVERSE_IN_SCRATCH };

static fftw_plan plan_lines(enum kernel kernel, int block, int lines)
{
    cplx *line = scratch[0].line, *dense = scratch[0].block, *rows = x_from_scratch ? scratch[0].source : field[0];
    if (!lines) return NULL;
    switch (kernel) {
    case X_FORWARD:
        return fftw_plan_many_dft(1, &nx, lines, rows, NULL, 1, nx, line, NULL, 1, nx, FFTW_FORWARD, FFTW_MEASURE);
    case X_C2R:
        return fftw_plan_many_dft_c2r(1, &nx, lines, line, NULL, 1, columns, scratch[0].real[0], NULL, 1, nx, FFTW_MEASURE);
    case X_R2C:
        return fftw_plan_many_dft_r2c(1, &nx, lines, scratch[0].real[0], NULL, 1, nx, line, NULL, 1, columns, FFTW_MEASURE);
    case Y_IN_RESULT:
        return fftw_plan_many_dft(1, &ny, lines, result, NULL, cols_here, 1, result, NULL, cols_here, 1, FFTW_FORWARD, y_planner);
    case Y_IN_SCRATCH:
        return fftw_plan_many_dft(1, &ny, lines, dense, NULL, block, 1, dense, NULL, block, 1, FFTW_FORWARD, FFTW_MEASURE);
    case Y_INVERSE_THERE:
        return fftw_plan_many_dft(1, &ny, lines, back_send[0], NULL, cols_here, 1, back_send[0], NULL, cols_here, 1,
                                  FFTW_BACKWARD, y_planner);
    default:
        return fftw_plan_many_dft(1, &ny, lines, dense, NULL, block, 1, dense, NULL, block, 1, FFTW_BACKWARD, FFTW_MEASURE);
    }
}

static sweep plan_sweep(enum kernel kernel, int block, int lines)
{
    int tail = lines % block;
    return (sweep){block, tail, plan_lines(kernel, block, lines < block ? 0 : block), plan_lines(kernel, block, tail)};
}

static double time_stage(void (*work)(int), int one_message)
{
    double best = 1e30;
    steps = min_int(slices, 16), per_step = 1, message_per_step = one_message;
    for (int repeat = 0; repeat < 4; repeat++) {
        double start = MPI_Wtime();
        for (int k = 0; k < steps; k++) work(k);
        best = fmin(best, MPI_Wtime() - start);
    }
    return best;
}

/* Candidates. The scratch of a thread holds `widest` rows or columns. */
static const int row_blocks[] = {1, 2, 4, 8, 16}, col_blocks[] = {4, 16, 64};
enum { ROW_CHOICES = 5, COL_CHOICES = 3, widest_rows = 16, widest_cols = 64 };

static void choose_row_kernels(void)
{
    double best = INFINITY;
    sweep forward = {0}, c2r = {0}, r2c = {0};
    int from_scratch = 0;
    for (int copy = 0; copy <= (workload == FFT2); copy++)
        for (int c = 0; c < ROW_CHOICES; c++) {
            x_from_scratch = copy;
            if (workload == FFT2) x_forward = plan_sweep(X_FORWARD, row_blocks[c], rows_here);
            else x_c2r = plan_sweep(X_C2R, row_blocks[c], rows_here), x_r2c = plan_sweep(X_R2C, row_blocks[c], rows_here);
            double t = time_stage(stage_rows, 0);
            if (t < best) best = t, forward = x_forward, c2r = x_c2r, r2c = x_r2c, from_scratch = copy;
        }
    x_forward = forward, x_c2r = c2r, x_r2c = r2c, x_from_scratch = from_scratch;
}

static void choose_column_kernels(void)
{
    double best = INFINITY;
    sweep kept = {0};
    int through_scratch = 0;
    for (int through = 0; through < 2; through++)
        for (int c = 0; c < COL_CHOICES; c++) {
            y_through_scratch = through;
            y_forward = plan_sweep(through ? Y_IN_SCRATCH : Y_IN_RESULT, col_blocks[c], cols_here);
            memset(result, 0, (size_t)slices * ny * cols_here * sizeof(cplx));
            double t = time_stage(stage_columns_forward, 0);
            if (t < best) best = t, kept = y_forward, through_scratch = through;
        }
    y_forward = kept, y_through_scratch = through_scratch;
    for (int there = 0; there < 2 && workload == OPERATION; there++) {
        best = INFINITY;
        sweep *chosen = there ? &y_inverse_there : &y_inverse;
        for (int c = 0; c < COL_CHOICES; c++) {
            *chosen = plan_sweep(there ? Y_INVERSE_THERE : Y_INVERSE_IN_SCRATCH, col_blocks[c], cols_here);
            double t = time_stage(stage_columns_inverse, !there);
            if (t < best) best = t, kept = *chosen;
        }
        *chosen = kept;
    }
}

static void allocate(int most_per_step)
{
    size_t row_slice = (size_t)rows_here * columns, col_slice = (size_t)ny * cols_here, n = most_per_step;
    result = array(slices * col_slice * sizeof(cplx));
    if (workload == FFT2) field[0] = array(slices * row_slice * sizeof(cplx));
    else for (int f = 0; f < FIELDS; f++) field[f] = array(slices * col_slice * sizeof(cplx));
    for (int j = 0; j < 2; j++) send[j] = array(n * row_slice * sizeof(cplx)), recv[j] = array(n * col_slice * sizeof(cplx));
    if (workload == OPERATION) {
        for (int j = 0; j < 3; j++) back_send[j] = array(n * FIELDS * col_slice * sizeof(cplx));
        for (int j = 0; j < 2; j++) back_recv[j] = array(n * FIELDS * row_slice * sizeof(cplx));
    }
    for (int t = 0; t < MAX_THREADS; t++) {
        scratch[t].source = fftw_alloc_complex((size_t)widest_rows * nx);
        scratch[t].line = fftw_alloc_complex((size_t)widest_rows * columns);
        scratch[t].block = fftw_alloc_complex((size_t)widest_cols * ny);
        for (int f = 0; f < FIELDS && workload == OPERATION; f++) scratch[t].real[f] = fftw_alloc_real((size_t)widest_rows * nx);
    }
}

/* ---- known answers ----------------------------------------------------------------------------------------------- */

static double noise(uint64_t index)
{
    uint64_t x = index + 0x9e3779b97f4a7c15u;                       /* splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u, x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)((x ^ x >> 31) >> 11) * 0x1p-52 - 1.0;
}

/* operation: a = cos(p.x), b = cos(q.x) in a 2 pi box, whose bracket is (p x q)/2 [cos((p-q).x) - cos((p+q).x)] */
typedef struct { int px, py, qx, qy; } waves;

static waves waves_of(int z)
{
    int wx = (nx - 1) / 4, wy = (ny - 1) / 4;     /* so that p + q stays below the Nyquist wave number */
    return (waves){1 + z % wx, 1 + z / 3 % wy, 1 + z / 2 % wx, -(1 + z % wy)};
}

/* Adds value * cos(kx x + ky y) to a half spectrum, numpy's normalisation (forward unscaled). */
static void add_cosine(cplx *slice, int kx, int ky, cplx value)
{
    for (int sign = 0; sign < 2; sign++) {
        int x = sign ? -kx : kx, y = ((sign ? -ky : ky) % ny + ny) % ny;
        cplx v = (sign ? conj(value) : value) * 0.5 * nx * ny;
        if (x >= col_at[me] && x < col_at[me + 1]) slice[(size_t)y * cols_here + x - col_at[me]] += v;
    }
}

static void fill(void)
{
    size_t here = (size_t)slices * rows_here * nx;
    if (workload == FFT2) {
        for (size_t j = 0; j < here; j++) {
            size_t z = j / ((size_t)rows_here * nx), global = z * ny * nx + (size_t)row_at[me] * nx + j % ((size_t)rows_here * nx);
            field[0][j] = noise(2 * global) + I * noise(2 * global + 1);
        }
        return;
    }
    for (int z = 0; z < slices; z++) {
        waves w = waves_of(z);
        size_t at = (size_t)z * ny * cols_here;
        add_cosine(field[0] + at, w.px, w.py, I * w.px), add_cosine(field[1] + at, w.px, w.py, I * w.py);
        add_cosine(field[2] + at, w.qx, w.qy, I * w.qx), add_cosine(field[3] + at, w.qx, w.qy, I * w.qy);
    }
}

/* Largest error over the largest value: a few modes of a few slices summed directly, or every mode of every slice. */
static double error_of_result(void)
{
    double local[2] = {0, 0}, global[2];
    if (workload == OPERATION) {
        cplx *truth = array((size_t)ny * cols_here * sizeof(cplx) + 1);
        for (int z = 0; z < slices; z++) {
            waves w = waves_of(z);
            double cross = (double)w.px * w.qy - (double)w.py * w.qx;
            memset(truth, 0, (size_t)ny * cols_here * sizeof(cplx));
            add_cosine(truth, w.px - w.qx, w.py - w.qy, 0.5 * cross), add_cosine(truth, w.px + w.qx, w.py + w.qy, -0.5 * cross);
            const cplx *got = result + (size_t)z * ny * cols_here;
            for (size_t j = 0; j < (size_t)ny * cols_here; j++) {
                double e = cabs(got[j] - truth[j]);
                if (!(e <= local[0])) local[0] = isnan(e) ? INFINITY : e;
                local[1] = fmax(local[1], cabs(truth[j]));
            }
        }
        free(truth);
    } else {
        for (int m = 0; m < 12; m++) {
            int z = m * 7 % slices, ky = (m * 101 + 3) % ny, kx = (m * 57 + 5) % nx;
            cplx part = 0, sum, *slice = field[0] + (size_t)z * rows_here * nx;
            for (int y = 0; y < rows_here; y++)
                for (int x = 0; x < nx; x++) {
                    double turns = (double)((int64_t)ky * (y + row_at[me]) % ny) / ny + (double)((int64_t)kx * x % nx) / nx;
                    part += slice[(size_t)y * nx + x] * cexp(-2 * M_PI * I * turns);
                }
            MPI_Allreduce(&part, &sum, 1, MPI_C_DOUBLE_COMPLEX, MPI_SUM, MPI_COMM_WORLD);
            local[1] = fmax(local[1], cabs(sum));
            if (kx < col_at[me] || kx >= col_at[me + 1]) continue;
            double e = cabs(result[((size_t)z * ny + ky) * cols_here + kx - col_at[me]] - sum);
            if (!(e <= local[0])) local[0] = isnan(e) ? INFINITY : e;
        }
    }
    MPI_Allreduce(local, global, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return global[0] / fmax(global[1], 1e-300);
}

/* ---- cases, options, report ---------------------------------------------------------------------------------------- */

typedef struct { enum mode mode; int threads, per_step, one_message; double *wall_s, median_s; } timed_case;
static timed_case cases[MAX_CASES];
static int n_cases;

static void add_case(enum mode mode, int threads, int slices_per_step, int one_message)
{
    if (n_cases == MAX_CASES) fail("too many cases");
    if (slices_per_step == 1) one_message = 0;
    for (int c = 0; c < n_cases; c++)
        if (cases[c].mode == mode && cases[c].threads == threads && cases[c].per_step == slices_per_step
            && cases[c].one_message == one_message) return;
    cases[n_cases++] = (timed_case){mode, threads, slices_per_step, one_message, NULL, 0};
}

static int ascending(const void *a, const void *b) { return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b); }

static double median(const double *values, int n)
{
    double sorted[n];
    memcpy(sorted, values, n * sizeof *values);
    qsort(sorted, n, sizeof *sorted, ascending);
    return n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

static int best_case(enum mode mode)
{
    int best = -1;
    for (int c = 0; c < n_cases; c++)
        if (cases[c].mode == mode && (best < 0 || cases[c].median_s < cases[best].median_s)) best = c;
    return best;
}

static void print_case(const timed_case *c, int rounds)
{
    printf("{\"mode\": \"%s\", \"threads\": %d, \"per_step\": %d, \"message\": \"%s\", \"median_s\": %.6f, \"wall_s\": [",
           mode_name[c->mode], c->threads, c->per_step, c->one_message ? "step" : "slice", c->median_s);
    for (int r = 0; r < rounds; r++) printf("%s%.6f", r ? ", " : "", c->wall_s[r]);
    printf("]}");
}

static void report(int json, int rounds, double error)
{
    int off = best_case(OFF), overlap = best_case(OVERLAP), compute = best_case(COMPUTE), exchanged = best_case(EXCHANGE);
    double C = cases[compute].median_s, T = cases[exchanged].median_s;
    if (!json) {
        printf("%s, %d slices of %d x %d, %d ranks; blocks of %d rows, %d columns (%s); max_rel_error %.1e\n",
               workload == FFT2 ? "fft2" : "operation", slices, ny, nx, ranks, workload == FFT2 ? x_forward.block : x_c2r.block,
               y_forward.block, y_through_scratch ? "through scratch" : "in place", error);
        for (int c = 0; c < n_cases; c++)
            printf("  %-9s threads %d, per step %2d, message per %-5s  %8.2f ms\n", mode_name[cases[c].mode], cases[c].threads,
                   cases[c].per_step, cases[c].one_message ? "step" : "slice", 1e3 * cases[c].median_s);
        printf("  C %.2f ms, T %.2f ms", 1e3 * C, 1e3 * T);
        if (overlap >= 0) printf(", hidden %.2f", (C + T - cases[overlap].median_s) / fmin(C, T));
        printf("\n");
        return;
    }
    printf("{\"program\": \"gkv_fft2\", \"workload\": \"%s\", \"ranks\": %d, \"slices\": %d, \"shape\": [%d, %d], \"rounds\": %d, "
           "\"row_block\": %d, \"column_block\": %d, \"y_in_place\": %s, \"max_rel_error\": %.3e, \"C_s\": %.6f, \"T_s\": %.6f, ",
           workload == FFT2 ? "fft2" : "operation", ranks, slices, ny, nx, rounds,
           workload == FFT2 ? x_forward.block : x_c2r.block, y_forward.block, y_through_scratch ? "false" : "true", error, C, T);
    if (off >= 0) printf("\"off_s\": %.6f, ", cases[off].median_s);
    if (overlap >= 0) printf("\"overlap_s\": %.6f, \"best\": ", cases[overlap].median_s), print_case(&cases[overlap], rounds), printf(", ");
    printf("\"cases\": [");
    for (int c = 0; c < n_cases; c++) printf("%s", c ? ", " : ""), print_case(&cases[c], rounds);
    printf("]}\n");
}

static int number_list(const char *text, int *values)
{
    int n = 0;
    for (char *end; *text; text = *end ? end + 1 : end) {
        long v = strtol(text, &end, 10);
        if (end == text || v < 1 || v > 1 << 24 || n == MAX_LIST || (*end && *end != ',')) fail("expected positive numbers, comma-separated");
        values[n++] = v;
    }
    if (!n) fail("an empty list");
    return n;
}

static int number(const char *text)
{
    int values[MAX_LIST];
    if (number_list(text, values) != 1) fail("expected one positive number");
    return values[0];
}

static const char usage[] =
    "gkv_fft2 [--workload fft2|operation] [--slices N] [--ny N] [--nx N] [--threads N[,N...]] [--per-step N[,N...]]\n"
    "         [--message slice|step|both] [--mode off|overlap|all] [--planner measure|patient] [--rounds N] [--json]\n"
    "Lists make one case per combination; the rounds of all cases are interleaved.";

int main(int argc, char **argv)
{
    /* Threads waiting at a barrier must leave the core to the thread in MPI. libgomp reads this once, when it is loaded. */
    if (!getenv("OMP_WAIT_POLICY")) {
        setenv("OMP_WAIT_POLICY", "passive", 1);
        setenv("OMP_PROC_BIND", "false", 1);
        execv("/proc/self/exe", argv);
    }
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    if (level < MPI_THREAD_FUNNELED) fail("MPI gives less than MPI_THREAD_FUNNELED");

    int threads[MAX_LIST] = {2}, n_threads = 1, grouping[MAX_LIST] = {1}, n_grouping = 1, rounds = 5, json = 0;
    const char *mode = "all", *message = "slice";
    static const struct option options[] = {
        {"workload", 1, 0, 'w'}, {"slices", 1, 0, 's'}, {"ny", 1, 0, 'y'}, {"nx", 1, 0, 'x'}, {"threads", 1, 0, 't'},
        {"per-step", 1, 0, 'p'}, {"message", 1, 0, 'M'}, {"mode", 1, 0, 'm'}, {"planner", 1, 0, 'P'}, {"rounds", 1, 0, 'r'},
        {"json", 0, 0, 'j'}, {0}};
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (o) {
        case 'w':
            if (strcmp(optarg, "fft2") && strcmp(optarg, "operation")) fail(usage);
            workload = strcmp(optarg, "fft2") ? OPERATION : FFT2;
            break;
        case 's': slices = number(optarg); break;
        case 'y': ny = number(optarg); break;
        case 'x': nx = number(optarg); break;
        case 't': n_threads = number_list(optarg, threads); break;
        case 'p': n_grouping = number_list(optarg, grouping); break;
        case 'M': message = optarg; break;
        case 'm': mode = optarg; break;
        case 'P': y_planner = strcmp(optarg, "patient") ? FFTW_MEASURE : FFTW_PATIENT; break;
        case 'r': rounds = number(optarg); break;
        case 'j': json = 1; break;
        default: fail(usage);
        }
    int all = !strcmp(mode, "all"), both = !strcmp(message, "both");
    if (optind < argc || (!all && strcmp(mode, "off") && strcmp(mode, "overlap"))
        || (!both && strcmp(message, "slice") && strcmp(message, "step"))) fail(usage);

    if (workload == OPERATION && (nx < 5 || ny < 5)) fail("the operation needs at least 5 x 5 points for its known answer");

    int most = 1, first = !both && !strcmp(message, "step"), last = both || first;
    for (int i = 0; i < n_grouping; i++) most = grouping[i] > most ? grouping[i] : most;
    for (int one = first; one <= last; one++)
        for (int g = 0; g < n_grouping; g++) {
            add_case(EXCHANGE, 1, grouping[g], one);
            for (int t = 0; t < n_threads; t++) {
                if (threads[t] > MAX_THREADS) fail("too many threads");
                if (all || !strcmp(mode, "off")) add_case(OFF, threads[t], grouping[g], one);
                if ((all && threads[t] > 1) || !strcmp(mode, "overlap")) add_case(OVERLAP, threads[t], grouping[g], one);
                add_case(COMPUTE, threads[t], grouping[g], one);
            }
        }

    columns = workload == FFT2 ? nx : nx / 2 + 1;
    row_at = starts(ny), col_at = starts(columns);
    rows_here = row_at[me + 1] - row_at[me], cols_here = col_at[me + 1] - col_at[me];
    most = min_int(most, slices);
    if ((double)most * FIELDS * ny * columns > (double)(1 << 30)) fail("a message exceeds MPI's int counts: fewer slices per step");
    stages = workload == FFT2 ? fft2_stages : operation_stages;
    depth = workload == FFT2 ? 3 : 5;
    allocate(most);
    x_forward.block = x_c2r.block = x_r2c.block = y_forward.block = y_inverse.block = y_inverse_there.block = 1;   /* of a rank that holds nothing */
    if (rows_here) choose_row_kernels();
    if (cols_here) choose_column_kernels();
    fill();

    /* The first run of every case is its warm-up and its check, on a result that holds nothing but NaN. */
    double error = 0;
    for (int c = 0; c < n_cases; c++) {
        timed_case *one = &cases[c];
        one->wall_s = malloc(rounds * sizeof(double));
        int checked = one->mode == OFF || one->mode == OVERLAP;
        if (checked) memset(result, 0xff, (size_t)slices * ny * cols_here * sizeof(cplx));
        run(one->mode, one->threads, one->per_step, one->one_message);
        if (checked) error = fmax(error, error_of_result());
    }
    if (!(error < 1e-11)) fail("wrong result");
    for (int r = 0; r < rounds; r++)
        for (int c = 0; c < n_cases; c++)
            cases[c].wall_s[r] = run(cases[c].mode, cases[c].threads, cases[c].per_step, cases[c].one_message);
    for (int c = 0; c < n_cases; c++) cases[c].median_s = median(cases[c].wall_s, rounds);
    if (me == 0) report(json, rounds, error);
    MPI_Finalize();
    return 0;
}

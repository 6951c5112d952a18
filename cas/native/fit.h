/* The coefficients of a prediction, by least squares over a sample of the block. Whatever they are, a payload decodes:
 * they decide only how small it gets. Included by variant.h only. */
#include <math.h>

enum { WIDE = 16, EVERY = 3, FIT_PIECE = 128, FIT_PIECES = 64, ROWS_MOST = 1 << 14 };

/* Vectors of which the processor has instructions; the sums of WIDE lanes are added up in the same order on all. */
#ifdef __AVX2__
enum { FLOATS = 8 };
#else
enum { FLOATS = 4 };
#endif
typedef float floats_t __attribute__((vector_size(4 * FLOATS)));
typedef int32_t masks_t __attribute__((vector_size(4 * FLOATS)));

enum { VECTORS = WIDE / FLOATS };

typedef struct {
    double xx, xy, yy, x, y;
} sums_t;

/* `v` where it is good, else 0. */
INLINE floats_t where(masks_t good, floats_t v) { return (floats_t)((masks_t)v & good); }

/* WIDE elements from `at` on, or fewer: the rest is 0. */
INLINE void floats_load(floats_t *to, const uint8_t *data, size_t at, size_t count)
{
    if (count >= WIDE) {
        memcpy(to, data + 4 * at, 4 * WIDE);
    } else {
        memset(to, 0, 4 * WIDE);
        memcpy(to, data + 4 * at, 4 * count);
    }
}

/* The sum of all lanes, halves on each other first. */
INLINE double lanes_sum(const floats_t *v)
{
    float four[8];
    floats_t sum = VECTORS == 2 ? v[0] + v[1] : (v[0] + v[2 % VECTORS]) + (v[1] + v[3 % VECTORS]);
    memcpy(four, &sum, sizeof sum);
    for (int i = 0; i < 4 && FLOATS == 8; i++)
        four[i] += four[i + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* Of a sample of the elements from..to, `stride` times WIDE apart, WIDE at a time.
 * Line: how far values went on from where the base had come from the sibling: x is that step, y what followed.
 * Square: by what part of the whole a value is missed, so that small ones count like large ones: x is the base's part,
 * y the square's. */
INLINE sums_t sums_of(const block_t *b, bool line, size_t from, size_t to, size_t stride)
{
    floats_t xx[VECTORS] = {0}, xy[VECTORS] = {0}, yy[VECTORS] = {0}, sx[VECTORS] = {0}, sy[VECTORS] = {0};
    for (; from < to; from += stride * WIDE) {
        floats_t value[VECTORS], base[VECTORS], sibling[VECTORS];
        floats_load(value, b->data, from, to - from);
        floats_load(base, b->base, from, to - from);
        floats_load(sibling, b->sibling, from, to - from);
        for (int i = 0; i < VECTORS; i++) {
            if (line) {
                floats_t x = base[i] - sibling[i], square = x * x, product = x * (value[i] - base[i]);
                masks_t good = (square < INFINITY) & (product < INFINITY) & (product > -INFINITY);
                xx[i] += where(good, square);
                sx[i] += where(good, product);
                continue;
            }
            floats_t part = 1 / value[i], x = base[i] * part, y = sibling[i] * sibling[i] * part;
            masks_t good = (value[i] > 0) & (x < 1e9f) & (x > -1e9f) & (y < 1e9f);
            x = where(good, x);
            y = where(good, y);
            xx[i] += x * x;
            xy[i] += x * y;
            yy[i] += y * y;
            sx[i] += x;
            sy[i] += y;
        }
    }
    if (line)
        return (sums_t){.xx = lanes_sum(xx), .x = lanes_sum(sx)};
    return (sums_t){lanes_sum(xx), lanes_sum(xy), lanes_sum(yy), lanes_sum(sx), lanes_sum(sy)};
}

/* The best coefficients; false where the sums tell none. */
INLINE bool solved(const sums_t *s, bool line, double *c, double *d)
{
    *d = 0;
    if (line) {
        *c = s->x / s->xx;
    } else {
        double scale = 1 / (s->xx * s->yy - s->xy * s->xy);
        *c = (s->x * s->yy - s->y * s->xy) * scale;
        *d = (s->y * s->xx - s->x * s->xy) * scale;
        if (!(*d > 0)) { /* a square that does not help */
            *c = s->x / s->xx;
            *d = 0;
        } else if (!(*c > 0)) { /* or a base that would shrink below nothing */
            *c = 0;
            *d = s->y / s->yy;
        }
    }
    return isfinite(*c) && isfinite(*d) && fabs(*c) < 16 && fabs(*d) < 1e9;
}

/* A byte for each of `count` numbers, evenly between the least and the most that are not far off. */
static void quantise(const float *numbers, size_t count, uint8_t *bytes, float *low, float *step)
{
    double mean = 0, spread = 0;
    for (size_t i = 0; i < count; i++)
        mean += numbers[i];
    mean /= (double)count;
    for (size_t i = 0; i < count; i++)
        spread += fabs(numbers[i] - mean);
    float far = (float)(5 * spread / (double)count), from = (float)mean - far, to = (float)mean + far;
    float least = INFINITY, most = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        float near = numbers[i] < from ? from : numbers[i] > to ? to : numbers[i];
        least = near < least ? near : least;
        most = near > most ? near : most;
    }
    *low = least;
    *step = (most - least) / 255;
    float scale = *step > 0 ? 1 / *step : 0;
    for (size_t i = 0; i < count; i++) {
        float at = (numbers[i] - least) * scale;
        bytes[i] = (uint8_t)(at < 0 ? 0 : at > 255 ? 255 : at + 0.5f);
    }
}

/* Coefficients of all elements, and those of each row that differ. */
INLINE bool fit_rows(const block_t *b, bool line, const prediction_t *p, size_t rows, double *c, double *d,
                     float **fitted)
{
    size_t count = b->length / 4, step = count / FIT_PIECES > FIT_PIECE ? count / FIT_PIECES : FIT_PIECE;
    sums_t all = {0};
    for (size_t from = 0; from < count; from += step) {
        sums_t piece = sums_of(b, line, from, from + FIT_PIECE < count ? from + FIT_PIECE : count, 1);
        all.xx += piece.xx;
        all.xy += piece.xy;
        all.yy += piece.yy;
        all.x += piece.x;
        all.y += piece.y;
    }
    if (!solved(&all, line, c, d))
        return false;
    for (size_t i = 0; i < rows; i++) {
        size_t from = i ? i * p->row - p->first : 0, to = (i + 1) * p->row - p->first;
        sums_t own = sums_of(b, line, from, to < count ? to : count, EVERY);
        double of_base, of_square;
        bool found = solved(&own, line, &of_base, &of_square);
        fitted[0][i] = (float)(found ? of_base : *c);
        fitted[1][i] = (float)(found ? of_square : *d);
    }
    return true;
}

/* Writes the prediction of that kind for b->data from b->base and b->sibling, as it stands in a payload, with
 * coefficients for each row if `row` is not 0. `out` has prediction_bound bytes. Returns its length; 0 when these say
 * nothing of the block, NO_MEMORY. */
static size_t prediction_fit(const block_t *b, uint8_t kind, uint32_t row, uint32_t first, uint8_t *out)
{
    size_t rows = row ? grid_rows(b->length / 4, row, first) : 0;
    prediction_t p = {.kind = kind, .row = row, .first = first};
    double c, d;
    if (rows > ROWS_MOST)
        return 0;
    float *fitted[2] = {scratch_take(2 * (rows + 1) * sizeof(float)), NULL};
    if (!fitted[0])
        return NO_MEMORY;
    fitted[1] = fitted[0] + rows;
    bool found = kind == PREDICT_LINE ? fit_rows(b, true, &p, rows, &c, &d, fitted)
                                      : fit_rows(b, false, &p, rows, &c, &d, fitted);
    uint8_t *bytes = out + PREDICTION_BYTES;
    if (found) {
        p.low[0] = (float)c;
        p.low[1] = (float)d;
    }
    for (int i = 0; found && rows && i < coefficients(kind); i++, bytes += rows)
        quantise(fitted[i], rows, bytes, &p.low[i], &p.step[i]);
    scratch_give(fitted[0]);
    if (!found)
        return 0;
    prediction_write(out, &p);
    return (size_t)(bytes - out);
}

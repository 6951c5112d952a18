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

typedef struct {
    floats_t xx, xy, yy, x, y;
} lanes_t;

typedef struct {
    double xx, xy, yy, x, y;
} sums_t;

/* How far values went on from where the base had come from the sibling: x is that step, y what followed. */
INLINE void add_line(lanes_t *sums, floats_t *value, floats_t *base, floats_t *sibling)
{
    floats_t x = *base - *sibling, xx = x * x, xy = x * (*value - *base);
    masks_t good = (xx < INFINITY) & (xy < INFINITY) & (xy > -INFINITY);
    sums->xx += (floats_t)((masks_t)xx & good);
    sums->x += (floats_t)((masks_t)xy & good);
}

/* By what part of the whole a value is missed: small ones count like large ones. x is the
 * base's part, y the square's. */
INLINE void add_square(lanes_t *sums, floats_t *value, floats_t *base, floats_t *sibling)
{
    floats_t part = 1 / *value, x = *base * part, y = *sibling * *sibling * part;
    masks_t good = (*value > 0) & (x < 1e9f) & (x > -1e9f) & (y < 1e9f);
    x = (floats_t)((masks_t)x & good);
    y = (floats_t)((masks_t)y & good);
    sums->xx += x * x;
    sums->xy += x * y;
    sums->yy += y * y;
    sums->x += x;
    sums->y += y;
}

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
INLINE double lanes_sum(const lanes_t *lanes, size_t member)
{
    float sum[WIDE];
    for (int i = 0; i < WIDE / FLOATS; i++)
        memcpy(sum + i * FLOATS, (const char *)&lanes[i] + member, sizeof(floats_t));
    for (int half = WIDE / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            sum[i] += sum[i + half];
    return sum[0];
}

/* Of a sample of the elements from..to: `stride` times WIDE apart, WIDE at a time. */
INLINE sums_t sums_of(const block_t *b, bool line, size_t from, size_t to, size_t stride)
{
    lanes_t lanes[WIDE / FLOATS];
    memset(lanes, 0, sizeof lanes);
    for (; from < to; from += stride * WIDE) {
        floats_t value[WIDE / FLOATS], base[WIDE / FLOATS], sibling[WIDE / FLOATS];
        floats_load(value, b->data, from, to - from);
        floats_load(base, b->base, from, to - from);
        floats_load(sibling, b->sibling, from, to - from);
        for (int i = 0; i < WIDE / FLOATS; i++)
            if (line)
                add_line(&lanes[i], &value[i], &base[i], &sibling[i]);
            else
                add_square(&lanes[i], &value[i], &base[i], &sibling[i]);
    }
    sums_t sums = {.xx = lanes_sum(lanes, offsetof(lanes_t, xx)), .x = lanes_sum(lanes, offsetof(lanes_t, x))};
    if (!line) {
        sums.xy = lanes_sum(lanes, offsetof(lanes_t, xy));
        sums.yy = lanes_sum(lanes, offsetof(lanes_t, yy));
        sums.y = lanes_sum(lanes, offsetof(lanes_t, y));
    }
    return sums;
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

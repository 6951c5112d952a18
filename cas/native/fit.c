/* The coefficients of a prediction, by least squares over a sample of the block. Whatever they are, a payload decodes:
 * they decide only how small it gets. */
#include <math.h>

#include "kernel.h"

enum { WIDE = 16, EVERY = 3, PIECE = 128, PIECES = 64, ROWS_MOST = 1 << 14 };

/* Sums of products, of as many columns as a vector may have lanes. */
typedef struct {
    float xx[WIDE], xy[WIDE], yy[WIDE], x[WIDE], y[WIDE];
} lanes_t;

typedef struct {
    double xx, xy, yy, x, y;
} sums_t;

/* How far values went on from where the base had come from the sibling: x is that step, y what followed. */
static void add_line(lanes_t *sums, const float *value, const float *base, const float *sibling)
{
    for (int i = 0; i < WIDE; i++) {
        float x = base[i] - sibling[i], y = value[i] - base[i], xx = x * x, xy = x * y;
        bool good = xx < INFINITY && fabsf(xy) < INFINITY;
        sums->xx[i] += good ? xx : 0;
        sums->x[i] += good ? xy : 0;
    }
}

/* By what part of the whole a value is missed: small ones count like large ones. x is the base's part, y the square's. */
static void add_square(lanes_t *sums, const float *value, const float *base, const float *sibling)
{
    for (int i = 0; i < WIDE; i++) {
        float x = base[i] / value[i], y = sibling[i] * sibling[i] / value[i];
        bool good = value[i] > 0 && x < 1e9f && x > -1e9f && y < 1e9f;
        x = good ? x : 0;
        y = good ? y : 0;
        sums->xx[i] += x * x;
        sums->xy[i] += x * y;
        sums->yy[i] += y * y;
        sums->x[i] += x;
        sums->y[i] += y;
    }
}

/* Adds a sample of the elements from..to: `stride` times WIDE apart, WIDE at a time. */
static void add_row(sums_t *sums, const block_t *b, bool line, size_t from, size_t to, size_t stride)
{
    lanes_t lanes = {0};
    for (; from < to; from += stride * WIDE) {
        float value[WIDE] = {0}, base[WIDE] = {0}, sibling[WIDE] = {0};
        size_t bytes = 4 * (to - from < WIDE ? to - from : WIDE);
        memcpy(value, b->data + 4 * from, bytes);
        memcpy(base, b->base + 4 * from, bytes);
        memcpy(sibling, b->sibling + 4 * from, bytes);
        (line ? add_line : add_square)(&lanes, value, base, sibling);
    }
    for (int i = 0; i < WIDE; i++) {
        sums->xx += lanes.xx[i];
        sums->xy += lanes.xy[i];
        sums->yy += lanes.yy[i];
        sums->x += lanes.x[i];
        sums->y += lanes.y[i];
    }
}

/* The best coefficients; false where the sums tell none. */
static bool solved(const sums_t *s, bool line, double *c, double *d)
{
    double determinant = s->xx * s->yy - s->xy * s->xy;
    *c = (s->x * s->yy - s->y * s->xy) / determinant;
    *d = (s->y * s->xx - s->x * s->xy) / determinant;
    if (line || !(*d > 0)) { /* a square that does not help */
        *c = s->x / s->xx;
        *d = 0;
    } else if (!(*c > 0)) { /* or a base that would shrink below nothing */
        *c = 0;
        *d = s->y / s->yy;
    }
    return isfinite(*c) && isfinite(*d) && fabs(*c) < 16 && fabs(*d) < 1e9;
}

/* A byte for each of `count` numbers, evenly between the least and the most that are not far off. */
static void quantise(const float *numbers, size_t count, uint8_t *bytes, float *low, float *step)
{
    double mean = 0, spread = 0;
    for (size_t i = 0; i < count; i++)
        mean += numbers[i] / (double)count;
    for (size_t i = 0; i < count; i++)
        spread += fabs(numbers[i] - mean) / (double)count;
    float least = INFINITY, most = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        float near = (float)fmin(fmax(numbers[i], mean - 5 * spread), mean + 5 * spread);
        least = near < least ? near : least;
        most = near > most ? near : most;
    }
    *low = least;
    *step = (most - least) / 255;
    for (size_t i = 0; i < count; i++) {
        float at = *step > 0 ? (numbers[i] - least) / *step : 0;
        bytes[i] = (uint8_t)(at < 0 ? 0 : at > 255 ? 255 : at + 0.5f);
    }
}

size_t prediction_fit(const block_t *b, uint8_t kind, uint32_t row, uint32_t first, uint8_t *out)
{
    size_t count = b->length / 4, rows = row ? grid_rows(count, row, first) : 0;
    prediction_t p = {.kind = kind, .row = row, .first = first};
    bool line = kind == PREDICT_LINE;
    sums_t all = {0};
    double c, d;
    if (rows > ROWS_MOST)
        return 0;
    float *fitted[2] = {scratch_take(2 * (rows + 1) * sizeof(float)), NULL};
    if (!fitted[0])
        return NO_MEMORY;
    fitted[1] = fitted[0] + rows;
    size_t step = count / PIECES > PIECE ? count / PIECES : PIECE;
    for (size_t from = 0; from < count; from += step)
        add_row(&all, b, line, from, from + PIECE < count ? from + PIECE : count, 1);
    bool found = solved(&all, line, &c, &d);
    p.low[0] = (float)c;
    p.low[1] = (float)d;
    for (size_t i = 0; found && i < rows; i++) {
        sums_t own = {0};
        size_t to = (i + 1) * row - first;
        double of_row = c, of_square = d;
        add_row(&own, b, line, i ? i * row - first : 0, to < count ? to : count, EVERY);
        if (!solved(&own, line, &of_row, &of_square)) {
            of_row = c;
            of_square = d;
        }
        fitted[0][i] = (float)of_row;
        fitted[1][i] = (float)of_square;
    }
    uint8_t *bytes = out + PREDICTION_BYTES;
    for (int i = 0; found && rows && i < coefficients(kind); i++, bytes += rows)
        quantise(fitted[i], rows, bytes, &p.low[i], &p.step[i]);
    scratch_give(fitted[0]);
    if (!found)
        return 0;
    prediction_write(out, &p);
    return (size_t)(bytes - out);
}

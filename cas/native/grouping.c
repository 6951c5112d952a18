/* Which contexts share a table: neighbours are merged while that costs least (cas/spec/codecs.md, Context).
 *
 * Costs are whole sixteenths of a bit: the twin in numpy comes to the same groups. A logarithm is a cubic in
 * the mantissa (IEEE single precision, no contraction), each term is cut to an integer before it is added.
 */
#include "kernel.h"

INLINE int32_t times_log2(uint32_t count)
{
    float value = (float)(int32_t)count;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    float whole = (float)((int32_t)(bits >> 23) - 127);
    bits = (bits & 0x7fffff) | 0x3f800000;
    float m;
    memcpy(&m, &bits, 4);
    float log = m * 0.158248930f;
    log = log + -1.051875031f;
    log = log * m;
    log = log + 3.047884161f;
    log = log * m;
    log = log + -2.153620718f;
    log = log + whole;
    return (int32_t)(value * log * 16.0f);
}

uint32_t entropy(const uint32_t *counts, unsigned symbols, unsigned *used)
{
    uint32_t total = 0;
    int32_t sum = 0;
    *used = 0;
    for (unsigned i = 0; i < symbols; i++) {
        total += counts[i];
        *used += counts[i] != 0;
        sum += times_log2(counts[i]);
    }
    int32_t bits = times_log2(total) - sum;
    return bits > 0 ? (uint32_t)bits : 0;
}

/* Sixteenths of bits to code the symbols of `a` (and `b`) together, their table included; 0 of nothing. */
static int32_t cost(const uint32_t *a, const uint32_t *b, unsigned symbols, unsigned stride)
{
    uint32_t total = 0, used = 0;
    int32_t sum = 0;
    for (unsigned i = 0; i < symbols; i++) {
        uint32_t count = a[i] + b[i];
        total += count;
        used += count != 0;
        sum += times_log2(count); /* 0 for 0 */
    }
    return times_log2(total) - sum + (int32_t)((used * 8 + 16) * 16 / stride);
}

static void add(uint32_t *into, const uint32_t *counts, unsigned symbols)
{
    for (unsigned i = 0; i < symbols; i++)
        into[i] += counts[i];
}

static uint32_t sum_of(const uint32_t *counts, unsigned symbols)
{
    uint32_t sum = 0;
    for (unsigned i = 0; i < symbols; i++)
        sum += counts[i];
    return sum;
}

unsigned group_contexts(counts_t *counts, const span_t *contexts, const span_t *used, unsigned stride, unsigned parts,
                        uint8_t *starts)
{
    static const uint32_t nothing[SYMBOLS];
    unsigned row[256], rows = 0, symbols = used->highest - used->lowest + 1;
    int32_t alone[256], merged[256];
    uint32_t sums[256], total = 0, least, filled = 0;
#define ROW(context) (counts[context] + used->lowest)
    for (unsigned context = contexts->lowest; context <= contexts->highest; context++)
        total += sums[context] = sum_of(ROW(context), symbols);
    least = total / parts > LEAST_COUNTED ? total / parts : LEAST_COUNTED;
    for (unsigned context = contexts->lowest; context <= contexts->highest; context++) {
        if (sums[context] == 0)
            continue;
        if (rows && filled < least) {
            add(ROW(row[rows - 1]), ROW(context), symbols);
            filled += sums[context];
        } else {
            row[rows++] = context;
            filled = sums[context];
        }
    }
    if (rows == 0)
        row[rows++] = contexts->lowest;
    for (unsigned i = 0; i < rows; i++)
        alone[i] = cost(ROW(row[i]), nothing, symbols, stride);
    for (unsigned i = 0; i + 1 < rows; i++)
        merged[i] = cost(ROW(row[i]), ROW(row[i + 1]), symbols, stride);
    while (rows > 1) {
        unsigned best = 0;
        for (unsigned i = 1; i + 1 < rows; i++)
            if (merged[i] - alone[i] - alone[i + 1] < merged[best] - alone[best] - alone[best + 1])
                best = i;
        if (merged[best] - alone[best] - alone[best + 1] > 0 && rows <= GROUPS_MADE)
            break;
        add(ROW(row[best]), ROW(row[best + 1]), symbols);
        alone[best] = merged[best];
        rows--;
        for (unsigned i = best + 1; i < rows; i++) {
            row[i] = row[i + 1];
            alone[i] = alone[i + 1];
            merged[i] = merged[i + 1];
        }
        merged[best] = best + 1 < rows ? cost(ROW(row[best]), ROW(row[best + 1]), symbols, stride) : 0;
        if (best)
            merged[best - 1] = cost(ROW(row[best - 1]), ROW(row[best]), symbols, stride);
    }
    for (unsigned g = 0; g < rows; g++) { /* row[g] >= g: nothing is overwritten before it was moved */
        if (row[g] != g)
            memcpy(counts[g], counts[row[g]], sizeof *counts);
        starts[g] = (uint8_t)(g ? row[g] : 0);
    }
#undef ROW
    return rows;
}

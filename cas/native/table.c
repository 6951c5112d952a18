/* Frequencies: scaled to 4096, serialised, read back, spread into coding tables (cas/spec/codecs.md, Tables). */
#include "kernel.h"

/* ---- bits, lowest first, within a table's bytes; up to 15 at a time ---- */
typedef struct {
    uint8_t *data;
    size_t at; /* in bits; what lies beyond is zero */
} bit_writer_t;

static void put_bits(bit_writer_t *w, uint32_t value, unsigned bits)
{
    uint32_t here;
    memcpy(&here, w->data + (w->at >> 3), 4);
    here |= value << (w->at & 7);
    memcpy(w->data + (w->at >> 3), &here, 4);
    w->at += bits;
}

/* Reads past the end of the tables, which other parts of the payload follow, PAD_BYTES at least; a reader that is
 * past its end is noticed before the next symbol. */
typedef struct {
    const uint8_t *data;
    size_t at, end; /* in bits */
} bit_reader_t;

static uint64_t look_bits(const bit_reader_t *r)
{
    uint64_t here;
    memcpy(&here, r->data + (r->at >> 3), 8);
    return here >> (r->at & 7);
}

static unsigned bit_length(uint32_t value) { return value ? 32u - (unsigned)__builtin_clz(value) : 0; }

/* ---- frequencies ---- */
static unsigned largest(const uint16_t *frequency, unsigned symbols)
{
    unsigned best = 0;
    for (unsigned i = 1; i < symbols; i++)
        if (frequency[i] > frequency[best])
            best = i;
    return best;
}

void frequencies_scale(const uint32_t *counts, unsigned symbols, uint16_t *frequency)
{
    uint64_t total = 0;
    unsigned used = 0, last = 0;
    for (unsigned i = 0; i < symbols; i++)
        if (counts[i]) {
            total += counts[i];
            used++;
            last = i;
        }
    memset(frequency, 0, SYMBOLS * sizeof *frequency);
    if (used < 2) { /* a frequency of 4096 has no place in a table: give 1 to a second symbol */
        frequency[last] = SCALE - 1;
        frequency[last ? 0 : 1] = 1;
        return;
    }
    int sum = 0;
    for (unsigned i = 0; i < symbols; i++)
        if (counts[i]) {
            uint32_t share = (uint32_t)((counts[i] * (uint64_t)SCALE + total / 2) / total);
            frequency[i] = (uint16_t)(share < 1 ? 1 : share > SCALE - 1 ? SCALE - 1 : share);
            sum += frequency[i];
        }
    if (sum < SCALE)
        frequency[largest(frequency, symbols)] += (uint16_t)(SCALE - sum);
    while (sum > SCALE) { /* many symbols were rounded up to 1: the largest pay */
        unsigned from = largest(frequency, symbols);
        int take = frequency[from] / 8 + 1;
        take = take > sum - SCALE ? sum - SCALE : take;
        frequency[from] = (uint16_t)(frequency[from] - take);
        sum -= take;
    }
}

static void put_frequencies(bit_writer_t *w, const uint16_t *frequency, unsigned symbols)
{
    for (unsigned i = 0; i < symbols;) {
        if (frequency[i]) {
            unsigned bits = bit_length(frequency[i]);
            put_bits(w, bits, 4);
            put_bits(w, frequency[i] - (1u << (bits - 1)), bits - 1);
            i++;
            continue;
        }
        unsigned run = 1;
        while (i + run < symbols && !frequency[i + run])
            run++;
        unsigned bits = bit_length(run) - 1;
        put_bits(w, 0, 4);
        put_bits(w, bits, 4);
        put_bits(w, run - (1u << bits), bits);
        i += run;
    }
}

static bool get_frequencies(bit_reader_t *r, uint16_t *frequency, unsigned symbols)
{
    unsigned sum = 0;
    memset(frequency, 0, SYMBOLS * sizeof *frequency);
    for (unsigned i = 0; i < symbols && r->at <= r->end;) {
        uint64_t here = look_bits(r);
        unsigned bits = here & 15, more = here >> 4 & 15;
        if (bits > SCALE_BITS || (bits == 0 && more > 8))
            return false;
        if (bits) {
            unsigned top = 1u << (bits - 1), value = top + ((unsigned)(here >> 4) & (top - 1));
            frequency[i++] = (uint16_t)value;
            sum += value;
            r->at += 4 + bits - 1;
            continue;
        }
        unsigned top = 1u << more, run = top + ((unsigned)(here >> 8) & (top - 1));
        if (run > symbols - i)
            return false;
        i += run;
        r->at += 8 + more;
    }
    return r->at <= r->end && sum == SCALE;
}

/* ---- the table section of a payload ---- */
size_t model_write(uint8_t *out, const model_t *model, unsigned groups, const uint8_t *starts, unsigned symbols,
                   bool sparse)
{
    memset(out, 0, TABLE_BYTES_MAX);
    memcpy(out, starts + 1, groups - 1);
    bit_writer_t w = {out + groups - 1, 0};
    for (unsigned g = 0; g < groups; g++) {
        if (sparse)
            put_bits(&w, model->same[g], FLAG_BITS);
        put_frequencies(&w, model->frequency[g], symbols);
    }
    return groups - 1 + (w.at + 7) / 8;
}

void lut_fill(const uint8_t *starts, unsigned groups, uint8_t *lut)
{
    unsigned group = 0;
    for (unsigned context = 0; context < 256; context++) {
        while (group + 1 < groups && context >= starts[group + 1])
            group++;
        lut[context] = (uint8_t)group;
    }
}

status_t model_read(const uint8_t *data, size_t size, unsigned groups, unsigned symbols, bool sparse, uint8_t *lut,
                    model_t *model)
{
    uint8_t starts[GROUPS_MAX] = {0};
    if (size < groups - 1)
        return BAD_TABLE;
    memcpy(starts + 1, data, groups - 1);
    for (unsigned g = 1; g < groups; g++)
        if (starts[g] <= starts[g - 1])
            return BAD_TABLE;
    lut_fill(starts, groups, lut);
    bit_reader_t r = {data + groups - 1, 0, 8 * (size - (groups - 1))};
    for (unsigned g = 0; g < groups; g++) {
        if (sparse) {
            model->same[g] = (uint32_t)(look_bits(&r) & (FLAG_SCALE - 1));
            r.at += FLAG_BITS;
            if (model->same[g] == 0)
                return BAD_TABLE;
        }
        if (!get_frequencies(&r, model->frequency[g], symbols))
            return BAD_TABLE;
    }
    return r.end - r.at < 8 ? KERNEL_OK : BAD_TABLE;
}

/* Symbol -> frequency in bits 0-15, its first slot in 16-31. */
void encoding_table(const uint16_t *frequency, uint32_t *table)
{
    uint32_t first = 0;
    for (unsigned symbol = 0; symbol < SYMBOLS; symbol++) {
        table[symbol] = frequency[symbol] | first << 16;
        first += frequency[symbol];
    }
}

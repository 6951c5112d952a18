/* A block to its payload, with the functions of a variant. Included by variant.h only. */
#include "grid.h"

enum {
    PIECES = 32,           /* of LANES elements: the sample that decides between sparse and dense */
    COUNTED = 1 << 16,     /* elements that are counted, at most, for frequencies */
    ELEMENTS_MOST = 1 << 22,
    ZEROS_PAY = 50, /* one in so many */
};

typedef struct {
    uint8_t *symbols, *contexts, *kept, *values, *bits, *base; /* the last for what is predicted of a part */
    uint64_t *flags;
    uint16_t *symbol_words, *flag_words; /* where they end: coders write downwards */
    counts_t *counts;                    /* 2 x 256 rows: of even and of odd elements */
    model_t *model;
    uint32_t *tables;
} encoder_t;

/* Lay out the encoder's memory from address `at`; returns its size. */
static size_t encoder_lay(encoder_t *e, uintptr_t at, size_t count, size_t width)
{
    size_t room = (count + LANES - 1) / LANES * LANES + PAD_BYTES, used = 0;
#define LAY(field, type, bytes)          \
    e->field = (type *)(at + used);            \
    used += ((size_t)(bytes) + 63) / 64 * 64;
    LAY(counts, counts_t, 2 * 256 * sizeof(counts_t))
    LAY(model, model_t, sizeof(model_t))
    LAY(tables, uint32_t, GROUPS_MAX * SYMBOLS * sizeof(uint32_t))
    LAY(symbols, uint8_t, room)
    LAY(contexts, uint8_t, room)
    LAY(kept, uint8_t, room)
    LAY(values, uint8_t, room * width)
    LAY(bits, uint8_t, room)
    LAY(base, uint8_t, CHUNK * sizeof(float))
    LAY(flags, uint64_t, room / 8)
    used += 2 * room;
    LAY(symbol_words, uint16_t, 0)
    used += 2 * room;
    LAY(flag_words, uint16_t, 0)
#undef LAY
    return used;
}

/* Whether flags pay, by a sample: most elements equal their base, or some are 0. */
static bool mostly_same(const encoder_t *e, const block_t *b, size_t count)
{
    size_t same = 0, seen = 0;
    for (size_t piece = 0; piece < PIECES; piece++) {
        size_t start = count / PIECES * piece, here = count - start < LANES ? count - start : LANES;
        static const uint8_t zeros[8 * LANES];
        block_t part = part_of(b, start, here, e->base);
        const uint8_t *base = b->base && b->top ? part.base : zeros;
#define CALL(W)                       \
    for (size_t i = 0; i < here; i++) \
        same += element_load(part.data, i, W) == element_load(base, i, W);
        FOR_WIDTH(element_width(b->element), CALL)
#undef CALL
        seen += here;
    }
    /* of zeros, fewer pay: they would take all their raw bits */
    return b->top ? 2 * same > seen : ZEROS_PAY * same > seen;
}

static span_t range_of(const uint8_t *bytes, size_t count)
{
    uint8_t low = 255, high = 0;
    for (size_t i = 0; i < count; i++) {
        low = bytes[i] < low ? bytes[i] : low;
        high = bytes[i] > high ? bytes[i] : high;
    }
    return (span_t){low, high};
}

/* Count (context, symbol) pairs of every `stride`-th group of elements into the rows of e->counts. */
static void count_pairs(counts_t *counts, const uint8_t *contexts, const uint8_t *symbols, size_t count, size_t stride)
{
    counts_t *odd = counts + 256;
    for (size_t at = 0; at < count; at += LANES * stride) {
        size_t end = at + LANES < count ? at + LANES : count, i = at;
        for (; i + 1 < end; i += 2) {
            counts[contexts[i]][symbols[i]]++;
            odd[contexts[i + 1]][symbols[i + 1]]++;
        }
        if (i < end)
            counts[contexts[i]][symbols[i]]++;
    }
}

/* The same without contexts. Four tables: the next of the same symbol need not wait for the last to be stored. */
static void count_symbols(counts_t *counts, const uint8_t *symbols, size_t count, size_t stride)
{
    uint32_t found[4][SYMBOLS] = {{0}};
    for (size_t at = 0; at < count; at += LANES * stride) {
        size_t end = at + LANES < count ? at + LANES : count, i = at;
        for (; i + 4 <= end; i += 4)
            for (size_t j = 0; j < 4; j++)
                found[j][symbols[i + j]]++;
        for (; i < end; i++)
            found[0][symbols[i]]++;
    }
    for (unsigned i = 0; i < SYMBOLS; i++)
        counts[0][i] = found[0][i] + found[1][i] + found[2][i] + found[3][i];
}

/* Count, for each context, about how many elements equal their base: all by a sample, less those that differ. */
static void count_same(counts_t *counts, const uint8_t *contexts, size_t count, size_t stride)
{
    uint32_t all[4][256] = {{0}};
    for (size_t at = 0; at < count; at += LANES * stride) {
        size_t end = at + LANES < count ? at + LANES : count;
        for (size_t i = at; i < end; i++)
            all[i % 4][contexts[i]]++;
    }
    for (unsigned c = 0; c < 256; c++) {
        uint32_t total = (all[0][c] + all[1][c] + all[2][c] + all[3][c]) * (uint32_t)stride, differ = 0;
        if (total == 0)
            continue;
        for (unsigned i = 0; i < SYMBOLS; i++)
            differ += counts[c][i] + counts[256 + c][i];
        counts[c][0] += total > differ ? total - differ : 0;
    }
}

static size_t stride_for(size_t count, size_t counted)
{
    size_t stride = 1;
    while (count / stride > counted)
        stride *= 2;
    return stride;
}

/* The groups' counts to their tables. Where sparse, symbol 0 was also counted for elements that are not coded;
 * `zeros`: how often it is really coded. */
static void model_make(encoder_t *e, unsigned groups, unsigned symbols, bool sparse, const uint32_t *zeros)
{
    for (unsigned g = 0; g < groups; g++) {
        uint32_t *row = e->counts[g];
        if (sparse) {
            uint64_t total = 0;
            for (unsigned i = 0; i < symbols; i++)
                total += row[i];
            uint64_t same = (row[0] - zeros[g]) * (uint64_t)FLAG_SCALE;
            same = total ? (same + total / 2) / total : FLAG_SCALE / 2;
            e->model->same[g] = (uint32_t)(same < 1 ? 1 : same > FLAG_SCALE - 1 ? FLAG_SCALE - 1 : same);
            row[0] = zeros[g];
        }
        frequencies_scale(row, symbols, e->model->frequency[g]);
        encoding_table(e->model->frequency[g], e->tables + g * SYMBOLS);
    }
}

/* The symbol that pads the last group: the most frequent of group 0. */
static uint8_t padding_symbol(const model_t *model)
{
    unsigned best = 0;
    for (unsigned i = 1; i < SYMBOLS; i++)
        if (model->frequency[0][i] > model->frequency[0][best])
            best = i;
    return (uint8_t)best;
}

static uint8_t *append(uint8_t *out, const void *data, size_t size)
{
    memcpy(out, data, size);
    return out + size;
}

static void states_start(states_t *s)
{
    for (unsigned i = 0; i < LANES; i++)
        s->lane[i] = STATE_MIN;
}

/* What a pass over a block found. */
typedef struct {
    size_t count, coded; /* elements; those of them that are coded */
    size_t stride;       /* of so many elements one was counted */
    unsigned symbols;    /* in the alphabet */
    unsigned groups;
    bool sparse, is_unsigned;
    uint8_t starts[256]; /* of each group, its first context */
    raw_writer_t raw;
} pass_t;

/* A chunk after another so that memory is read once: symbols, raw bits, contexts, and for sparse blocks flags.
 * Returns how many elements are coded; SIZE_MAX when `is_unsigned` was asked and does not hold. */
static size_t symbols_of(encoder_t *e, const block_t *b, pass_t *p)
{
    size_t differ = 0, width = (size_t)element_width(b->element), count = p->count;
    for (size_t at = 0; at < count; at += CHUNK) {
        size_t chunk = count - at < CHUNK ? count - at : CHUNK;
        block_t part = part_of(b, at, chunk, e->base);
        contexts(&part, chunk, e->contexts + at);
        if (p->sparse)
            differ += (size_t)sparse_make(&part, chunk, e->contexts + at, e->flags + at / LANES, e->kept + differ,
                                          e->values + differ * width);
        else if (b->top)
            tokens_make(&part, chunk, e->symbols + at, &p->raw);
        else if (p->is_unsigned && any_negative(&part, chunk))
            return SIZE_MAX;
        else
            split_make(&part, chunk, p->is_unsigned, e->symbols + at, &p->raw);
    }
    if (!p->sparse)
        return count;
    if (b->top == 0) {
        block_t words = {.data = e->values, .element = b->element};
        if (p->is_unsigned && any_negative(&words, differ))
            return SIZE_MAX;
        split_make(&words, differ, p->is_unsigned, e->symbols, &p->raw);
        return differ;
    }
    values_make(e->values, differ, (int)width, b->top, e->symbols, &p->raw);
    return differ;
}

/* The first pass: symbols of all elements, raw bytes to `at`, raw bits to e->bits. */
static void pass_make(encoder_t *e, const block_t *b, size_t count, uint8_t *at, pass_t *p)
{
    *p = (pass_t){.count = count, .symbols = alphabet(b->element, b->top), .raw = {at, e->bits, 0, 0}};
    p->sparse = mostly_same(e, b, count);
    p->is_unsigned = b->top == 0 && element_width(b->element) > 1;
    p->coded = symbols_of(e, b, p);
    if (p->coded == SIZE_MAX) { /* one was negative after all */
        p->raw = (raw_writer_t){at, e->bits, 0, 0};
        p->is_unsigned = false;
        p->coded = symbols_of(e, b, p);
    }
}

/* Counts of odd elements to those of even ones. Returns which symbols occur. */
static span_t counts_join(counts_t *counts, span_t contexts, unsigned symbols)
{
    uint32_t any[SYMBOLS] = {0};
    for (unsigned c = contexts.lowest; c <= contexts.highest; c++)
        for (unsigned i = 0; i < symbols; i++)
            any[i] |= counts[c][i] += counts[256 + c][i];
    span_t used = {0, symbols - 1};
    while (used.lowest < used.highest && !any[used.lowest])
        used.lowest++;
    while (used.highest > used.lowest && !any[used.highest])
        used.highest--;
    return used;
}

/* Count symbols by context, of so many elements at most, and find which contexts share a table; a table costs as if it
 * were for `per` times as many elements as there are. See group_contexts() for `parts`. */
static void pass_count(encoder_t *e, const block_t *b, pass_t *p, size_t counted, size_t per, unsigned parts)
{
    bool by_context = b->source != SOURCE_NONE;
    span_t contexts = by_context ? range_of(e->contexts, p->count) : (span_t){0, 0};
    size_t rows = contexts.highest - contexts.lowest + 1;
    memset(e->counts + contexts.lowest, 0, rows * sizeof *e->counts);
    memset(e->counts + 256 + contexts.lowest, 0, rows * sizeof *e->counts);
    p->stride = 1;
    if (p->sparse) {
        count_pairs(e->counts, e->kept, e->symbols, p->coded, 1);
        count_same(e->counts, e->contexts, p->count, stride_for(p->count, counted));
    } else {
        p->stride = stride_for(p->count, counted);
        if (by_context)
            count_pairs(e->counts, e->contexts, e->symbols, p->count, p->stride);
        else
            count_symbols(e->counts, e->symbols, p->count, p->stride);
    }
    span_t used = counts_join(e->counts, contexts, p->symbols);
    p->groups = group_contexts(e->counts, &contexts, &used, (unsigned)(p->stride * per), parts, p->starts);
}

/* Source grid: the bytes of columns and rows, for the payload and for the contexts. */
static uint8_t *grid_write(encoder_t *e, block_t *b, size_t count, uint8_t *at)
{
    block_t self = {.base = b->data, .length = b->length, .element = b->element, .source = SOURCE_BASE};
    uint32_t rows = (uint32_t)grid_rows(count, b->row, b->first);
    contexts(&self, count, e->contexts);
    /* e->kept and the larger e->values behind it are not needed yet, and do for a row of a 16th of the block */
    at = append(append(at, &b->row, 4), &b->first, 4);
    b->columns = at;
    b->rows = at + b->row;
    grid_make(e->contexts, count, b->row, b->first, e->kept, at, at + b->row);
    return at + b->row + rows;
}

/* Contexts to groups, and groups to tables. Returns the groups of the coded elements, filled up with group 0. */
static uint8_t *pass_model(encoder_t *e, const block_t *b, const pass_t *p)
{
    size_t whole = (p->coded + LANES - 1) / LANES * LANES, padded = (p->count + LANES - 1) / LANES * LANES;
    uint8_t lut[256], *groups = p->sparse ? e->kept : e->contexts;
    uint32_t zeros[GROUPS_MAX] = {0};
    lut_fill(p->starts, p->groups, lut);
    if (p->sparse) {
        map_bytes(e->contexts, padded, lut);
        memset(e->contexts + p->count, 0, padded - p->count);
    }
    if (p->groups > 1) {
        map_bytes(groups, whole, lut);
        memset(groups + p->coded, 0, whole - p->coded);
    } else if (b->source != SOURCE_NONE)
        memset(groups, 0, whole);
    if (p->stride > 1)
        count_missing(e->counts, p->groups, groups, e->symbols, p->count);
    for (size_t i = 0; p->sparse && !b->top && i < p->coded; i++)
        zeros[groups[i]] += !e->symbols[i];
    model_make(e, p->groups, p->symbols, p->sparse, zeros);
    memset(e->symbols + p->coded, padding_symbol(e->model), whole - p->coded);
    return groups;
}

/* What follows the raw bytes, once it is known to be short enough. Returns the payload's length, 0 when it is not. */
static size_t payload_write(encoder_t *e, pass_t *p, header_t *h, const uint8_t *groups, uint8_t *out, size_t limit)
{
    size_t whole = (p->coded + LANES - 1) / LANES * LANES, padded = (p->count + LANES - 1) / LANES * LANES;
    uint16_t *flag_words = e->flag_words, *symbol_words = e->symbol_words;
    states_t flag_states, symbol_states;
    states_start(&flag_states);
    states_start(&symbol_states);
    if (p->sparse)
        flag_words = flags_encode(e->flags, e->contexts, padded, e->model->same, flag_words, &flag_states);
    symbol_words = symbols_encode(e->symbols, groups, whole, e->tables, symbol_words, &symbol_states);
    h->bit_bytes = (uint32_t)(p->raw.bits - e->bits + (p->raw.filled ? 1 : 0));
    h->symbol_words = (uint32_t)(e->symbol_words - symbol_words);
    h->flag_words = (uint32_t)(e->flag_words - flag_words);
    size_t known = (size_t)(p->raw.bytes - out) + h->bit_bytes + 2 * ((size_t)h->symbol_words + h->flag_words) +
                   (p->sparse ? 2u : 1u) * STATE_BYTES;
    if (known >= limit)
        return 0;
    uint8_t *at = append(p->raw.bytes, e->bits, h->bit_bytes);
    h->table_bytes = (uint16_t)model_write(at, e->model, p->groups, p->starts, p->symbols, p->sparse);
    at = append(at + h->table_bytes, flag_words, 2 * (size_t)h->flag_words);
    at = append(at, symbol_words, 2 * (size_t)h->symbol_words);
    at = p->sparse ? append(at, flag_states.lane, STATE_BYTES) : at;
    at = append(at, symbol_states.lane, STATE_BYTES);
    header_write(out, h);
    return (size_t)(at - out) < limit ? (size_t)(at - out) : 0;
}

static size_t encode_with(encoder_t *e, const block_t *block, size_t count, uint8_t *out, size_t limit)
{
    block_t with = *block, *b = &with;
    size_t width = (size_t)element_width(b->element);
    uint8_t *at = out + HEADER_BYTES;
    header_t h = {.element = b->element, .source = b->source, .flags = b->digest ? FLAG_SIBLING : 0};
    pass_t p;
    b->top = b->top ? (uint8_t)top_most((int)width) : 0;
    at = b->digest ? append(at, b->digest, DIGEST_BYTES) : at;
    if (b->prediction.kind != PREDICT_NOTHING) {
        h.flags |= FLAG_PREDICTED;
        at = append(at, b->predicted, b->predicted_bytes);
    }
    at = b->source == SOURCE_GRID ? grid_write(e, b, count, at) : at;
    at = append(at, b->data + count * width, b->length - count * width);
    pass_make(e, b, count, at, &p);
    pass_count(e, b, &p, COUNTED, 1, PARTS);
    const uint8_t *groups = pass_model(e, b, &p);
    h.flags |= (uint8_t)((p.sparse ? FLAG_SPARSE : 0) | (p.is_unsigned ? FLAG_UNSIGNED : 0));
    h.top = b->top;
    h.groups = (uint8_t)p.groups;
    h.coded = (uint32_t)p.coded;
    h.byte_bytes = (uint32_t)(p.raw.bytes - at);
    return payload_write(e, &p, &h, p.groups > 1 ? groups : NULL, out, limit);
}

static size_t encode(const block_t *b, uint8_t *out, size_t limit)
{
    size_t width = (size_t)element_width(b->element), count = b->length / width;
    if (count == 0 || count > ELEMENTS_MOST)
        return 0;
    encoder_t e;
    uint8_t *memory = scratch_take(encoder_lay(&e, 0, count, width));
    if (!memory)
        return NO_MEMORY;
    encoder_lay(&e, (uintptr_t)memory, count, width);
    fenv_t caller;
    floats_enter(&caller);
    size_t size = encode_with(&e, b, count, out, limit);
    floats_leave(&caller);
    scratch_give(memory);
    return size;
}

/* Encoder and decoder, in plain C (cas/spec/codecs.md, Kernel payload). A variant_*.c defines VARIANT. One with a
 * lanes_*.h also defines FAST: that header has functions of its own in place of those between #ifndef FAST and
 * #endif, and fast_... functions that are asked first and return UNHANDLED for widths they leave to plain C. All
 * variants write the same bytes. */
#include "elements.h"

#ifdef FAST
#define TRY(call) fast_##call
#define OUTRUNS_PLANES true
#else
#define TRY(call) UNHANDLED
#define OUTRUNS_PLANES false
#endif

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

#include "predict.h"

INLINE unsigned element_of_lane(unsigned lane) { return (lane & 15) * 4 + (lane >> 4); }

/* ---- contexts ---- */
/* Source grid: row's byte plus column's byte, less 128. */
static void grid_contexts(const block_t *b, size_t count, uint8_t *out)
{
    size_t row = (b->first + b->at) / b->row, column = (b->first + b->at) % b->row;
    for (size_t done = 0; done < count; row++, column = 0) {
        size_t run = b->row - column < count - done ? b->row - column : count - done;
        /* in bytes, of which a vector holds many: up and then down, of which one is 0 */
        uint8_t of_row = b->rows[row], up = of_row > 128 ? of_row - 128 : 0, down = of_row < 128 ? 128 - of_row : 0;
        const uint8_t *columns = b->columns + column;
        for (size_t i = 0; i < run; i++) {
            uint8_t sum = (uint8_t)(columns[i] + up);
            sum = sum < up ? 255 : sum;
            out[done + i] = (uint8_t)((sum > down ? sum : down) - down);
        }
        done += run;
    }
}

static void contexts(const block_t *b, size_t count, uint8_t *out)
{
    if (b->source == SOURCE_GRID) {
        grid_contexts(b, count, out);
        return;
    }
    if (b->source == SOURCE_NONE) {
        memset(out, 0, count);
        return;
    }
    if (TRY(contexts(b, count, out)) != UNHANDLED)
        return;
    int width = element_width(b->element);
    bool is_float = b->element & ELEMENT_FLOAT;
#define CALL(W)                                                                                            \
    for (size_t i = 0; i < count; i++) {                                                                   \
        uint8_t of_base = 0, of_sibling = 0;                                                               \
        if (b->source & SOURCE_BASE)                                                                       \
            of_base = context_of(element_load(b->base, i, W), W, is_float);                                \
        if (b->source & SOURCE_SIBLING)                                                                    \
            of_sibling = context_of(element_load(b->sibling, i, W), W, is_float);                          \
        out[i] = b->source == SOURCE_BOTH ? context_of_both(of_base, of_sibling) : of_base | of_sibling;   \
    }
    FOR_WIDTH(width, CALL)
#undef CALL
}

#ifndef FAST
static void map_bytes(uint8_t *bytes, size_t count, const uint8_t *lut)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = lut[bytes[i]];
}


/* Count once the symbols that occur in a group and were not counted there. */
static void count_missing(counts_t *counts, unsigned groups, const uint8_t *group_of, const uint8_t *symbols,
                          size_t count)
{
    (void)groups;
    for (size_t i = 0; i < count; i++)
        counts[group_of[i]][symbols[i]] += !counts[group_of[i]][symbols[i]];
}
#endif

/* Groups of `count` elements, with group 0 for the padding to whole groups. */
static void groups_of(const block_t *b, size_t count, const uint8_t *lut, uint8_t *out)
{
    size_t padded = (count + LANES - 1) / LANES * LANES;
    contexts(b, count, out);
    map_bytes(out, padded, lut);
    memset(out + count, 0, padded - count);
}

#ifndef FAST
/* ---- symbols: rANS, LANES states in turn, 16 bits at a time ---- */
/* Encodes whole groups, the last first, downwards from `end`; returns the first word. `groups` may be NULL. */
static uint16_t *symbols_encode(const uint8_t *symbols, const uint8_t *groups, size_t count, const uint32_t *table,
                                uint16_t *end, states_t *s)
{
    uint64_t inverse[SCALE]; /* of each frequency f, such that x * inverse >> 43 is x / f for x < f << 19 */
    for (uint32_t f = 1; f < SCALE; f++)
        inverse[f] = ((1ull << 43) + f - 1) / f;
    for (size_t at = count; at;) {
        at -= LANES;
        for (unsigned lane = LANES; lane-- > 0;) {
            size_t i = at + element_of_lane(lane);
            uint32_t entry = table[(groups ? groups[i] * SYMBOLS : 0) + symbols[i]];
            uint32_t frequency = entry & 0xffff, state = s->lane[lane];
            unsigned full = state >= frequency << 19; /* without a branch: nobody could predict it */
            end[-1] = (uint16_t)state;
            end -= full;
            state >>= 16 * full;
            uint32_t quotient = (uint32_t)(state * inverse[frequency] >> 43);
            s->lane[lane] = (quotient << SCALE_BITS) + state - quotient * frequency + (entry >> 16);
        }
    }
    return end;
}

/* Decodes whole groups from `words`; false when they go beyond `end`. */
static bool symbols_decode(const uint8_t **words, const uint8_t *end, const uint8_t *groups, uint8_t *symbols,
                           size_t count, const uint32_t *table, states_t *s)
{
    const uint8_t *p = *words;
    for (size_t at = 0; at < count && p <= end; at += LANES)
        for (unsigned lane = 0; lane < LANES; lane++) {
            size_t i = at + element_of_lane(lane);
            uint32_t state = s->lane[lane];
            uint32_t entry = table[(groups ? (uint32_t)groups[i] << SCALE_BITS : 0) | (state & (SCALE - 1))];
            uint16_t word;
            memcpy(&word, p, 2);
            symbols[i] = (uint8_t)entry;
            state = (entry >> 8 & (SCALE - 1)) * (state >> SCALE_BITS) + (entry >> 20);
            unsigned refill = state < STATE_MIN;
            s->lane[lane] = state << 16 * refill | (word & (0u - refill));
            p += 2 * refill;
        }
    *words = p;
    return p <= end;
}

/* ---- flags: the same with two symbols of 15 bits; bit i of flags is set where element i differs ---- */
static uint16_t *flags_encode(const uint64_t *flags, const uint8_t *groups, size_t count, const uint32_t *same,
                              uint16_t *end, states_t *s)
{
    for (size_t at = count; at;) {
        at -= LANES;
        for (unsigned lane = LANES; lane-- > 0;) {
            unsigned i = element_of_lane(lane);
            uint32_t p = same[groups[at + i]], state = s->lane[lane];
            bool differs = flags[at / LANES] >> i & 1;
            uint32_t frequency = differs ? FLAG_SCALE - p : p, first = differs ? p : 0;
            if (state >= frequency << 16) {
                *--end = (uint16_t)state;
                state >>= 16;
            }
            s->lane[lane] = (state / frequency << FLAG_BITS) + state % frequency + first;
        }
    }
    return end;
}

static bool flags_decode(const uint8_t **words, const uint8_t *end, const uint8_t *groups, unsigned tables,
                         uint64_t *flags, size_t count, const uint32_t *same, states_t *s)
{
    (void)tables; /* how many groups there are */
    const uint8_t *at_word = *words;
    for (size_t at = 0; at < count && at_word <= end; at += LANES) {
        uint64_t bits = 0;
        for (unsigned lane = 0; lane < LANES; lane++) {
            unsigned i = element_of_lane(lane);
            uint32_t p = same[groups[at + i]], state = s->lane[lane], slot = state & (FLAG_SCALE - 1);
            bool differs = slot >= p;
            uint16_t word;
            memcpy(&word, at_word, 2);
            bits |= (uint64_t)differs << i;
            state = (differs ? FLAG_SCALE - p : p) * (state >> FLAG_BITS) + (differs ? slot - p : slot);
            bool refill = state < STATE_MIN;
            s->lane[lane] = refill ? state << 16 | word : state;
            at_word += refill ? 2 : 0;
        }
        flags[at / LANES] = bits;
    }
    *words = at_word;
    return at_word <= end;
}

#endif

/* ---- tokens ---- */
/* Differences of `count` elements as tokens; what is beside them to `w`. */
static void tokens_make(const block_t *b, size_t count, uint8_t *tokens, raw_writer_t *w)
{
    if (TRY(tokens_make(b, count, tokens, w)) != UNHANDLED)
        return;
    unsigned top = b->top;
    bool is_float = b->element & ELEMENT_FLOAT;
    raw_writer_t local = *w; /* in registers: through a pointer, any byte stored might be part of it */
#define CALL(W)                                                                          \
    for (size_t i = 0; i < count; i++) {                                                 \
        uint64_t base = b->base ? element_load(b->base, i, W) : 0;                       \
        uint64_t z = difference(element_load(b->data, i, W), base, W, is_float);         \
        token_t t = token_of(z, W, top);                                                 \
        tokens[i] = t.token;                                                             \
        if (W > 1)                                                                       \
            put_raw(&local, t.raw, t.raw_bits);                                           \
    }
    FOR_WIDTH(element_width(b->element), CALL)
#undef CALL
    *w = local;
}

/* The reverse, at most CHUNK elements to `out`; false when a stream is too short. */
static int tokens_undo(const block_t *b, size_t count, uint8_t *tokens, raw_reader_t *r, uint8_t *out)
{
    int done = TRY(tokens_undo(b, count, tokens, r, out));
    if (done != UNHANDLED)
        return done;
    unsigned top = b->top;
    bool is_float = b->element & ELEMENT_FLOAT;
    raw_reader_t local = *r;
#define CALL(W)                                                                               \
    for (size_t i = 0; i < count; i++) {                                                      \
        if (i % 16 == 0 && raw_overrun(&local))                                                    \
            return false;                                                                     \
        uint64_t base = b->base ? element_load(b->base, i, W) : 0;                            \
        uint64_t z = token_value(tokens[i], get_raw(&local, token_raw_bits(tokens[i], W, top)), W, top); \
        element_store(out, i, W, undo_difference(z, base, W, is_float));                      \
    }
    FOR_WIDTH(element_width(b->element), CALL)
#undef CALL
    *r = local;
    return !raw_overrun(&local);
}

/* ---- sparse blocks: where elements differ from their base, and by what; or where they are not 0, and what ---- */
/* Flags of `count` elements; contexts and differences of those that differ. Returns how many do. */
static ptrdiff_t sparse_make(const block_t *b, size_t count, const uint8_t *contexts, uint64_t *flags, uint8_t *kept,
                             uint8_t *values)
{
    ptrdiff_t done = TRY(sparse_make(b, count, contexts, flags, kept, values));
    if (done != UNHANDLED)
        return done;
    ptrdiff_t differ = 0;
    bool is_float = b->element & ELEMENT_FLOAT;
    memset(flags, 0, (count + LANES - 1) / LANES * 8);
#define CALL(W)                                                                                   \
    for (size_t i = 0; i < count; i++) {                                                          \
        uint64_t base = b->base && b->top ? element_load(b->base, i, W) : 0;                      \
        uint64_t word = element_load(b->data, i, W);                                              \
        uint64_t z = b->top ? difference(word, base, W, is_float) : word;                         \
        flags[i / LANES] |= (uint64_t)(z != 0) << (i % LANES);                                    \
        element_store(values, (size_t)differ, W, z);                                                      \
        kept[differ] = contexts[i];                                                               \
        differ += z != 0;                                                                         \
    }
    FOR_WIDTH(element_width(b->element), CALL)
#undef CALL
    return differ;
}

#ifndef FAST
/* The groups of the elements that differ, among `count` (whole groups of LANES); returns how many. */
static size_t sparse_keep(const uint64_t *flags, const uint8_t *groups, size_t count, uint8_t *kept)
{
    size_t differ = 0;
    for (size_t at = 0; at < count; at += LANES)
        for (uint64_t bits = flags[at / LANES]; bits; bits &= bits - 1)
            kept[differ++] = groups[at + (unsigned)__builtin_ctzll(bits)];
    return differ;
}

#endif

/* `count` elements to `out`, of `values` as many as it takes; returns how many. */
static size_t sparse_undo(const block_t *b, size_t count, const uint64_t *flags, const uint8_t *values, uint8_t *out)
{
    ptrdiff_t done = TRY(sparse_undo(b, count, flags, values, out));
    if (done != UNHANDLED)
        return (size_t)done;
    size_t used = 0, width = (size_t)element_width(b->element);
    bool is_float = b->element & ELEMENT_FLOAT;
    if (b->base && b->top)
        memcpy(out, b->base, count * width);
    else
        memset(out, 0, count * width);
#define CALL(W)                                                                                  \
    for (size_t group = 0; group * LANES < count; group++)                                       \
        for (uint64_t bits = flags[group]; bits; bits &= bits - 1) {                             \
            size_t i = group * LANES + (unsigned)__builtin_ctzll(bits);                          \
            uint64_t z = element_load(values, used++, W);                                        \
            if (b->top)                                                                          \
                z = undo_difference(z, element_load(out, i, W), W, is_float);                    \
            element_store(out, i, W, z);                                                         \
        }
    FOR_WIDTH(width, CALL)
#undef CALL
    return used;
}

/* Tokens of differences, and the reverse. */
static void values_make(uint8_t *values, size_t count, int width, unsigned top, uint8_t *tokens, raw_writer_t *w)
{
    if (TRY(values_make(values, count, width, top, tokens, w)) != UNHANDLED)
        return;
#define CALL(W)                                                     \
    for (size_t i = 0; i < count; i++) {                            \
        token_t t = token_of(element_load(values, i, W), W, top);   \
        tokens[i] = t.token;                                        \
        put_raw(w, t.raw, t.raw_bits);                              \
    }
    FOR_WIDTH(width, CALL)
#undef CALL
}

static int values_undo(uint8_t *tokens, size_t count, int width, unsigned top, raw_reader_t *r, uint8_t *values)
{
    int done = TRY(values_undo(tokens, count, width, top, r, values));
    if (done != UNHANDLED)
        return done;
#define CALL(W)                                                                                     \
    for (size_t i = 0; i < count; i++) {                                                            \
        if (i % 16 == 0 && raw_overrun(r))                                                          \
            return false;                                                                           \
        uint64_t raw = get_raw(r, token_raw_bits(tokens[i], W, top));                               \
        element_store(values, i, W, token_value(tokens[i], raw, W, top));                           \
    }
    FOR_WIDTH(width, CALL)
#undef CALL
    return !raw_overrun(r);
}

/* ---- split: the top byte of the rotated word is the symbol, the rest is raw ---- */
#ifndef FAST
static bool any_negative(const block_t *b, size_t count)
{
    uint64_t seen = 0;
#define CALL(W)                        \
    for (size_t i = 0; i < count; i++) \
        seen |= element_load(b->data, i, W) >> (8 * W - 1);
    FOR_WIDTH(element_width(b->element), CALL)
#undef CALL
    return seen;
}

#endif

static void split_make(const block_t *b, size_t count, bool is_unsigned, uint8_t *symbols, raw_writer_t *w)
{
    if (TRY(split_make(b, count, is_unsigned, symbols, w)) != UNHANDLED)
        return;
#define CALL(W)                        \
    for (size_t i = 0; i < count; i++) \
        split_one(element_load(b->data, i, W), W, is_unsigned, symbols + i, w);
    FOR_WIDTH(element_width(b->element), CALL)
#undef CALL
}

/* `count` elements, at most CHUNK, from their symbols to `out`; the streams' lengths were checked before. */
static void split_undo(const block_t *b, size_t count, bool is_unsigned, const uint8_t *symbols,
                       raw_reader_t *r, uint8_t *out)
{
    if (TRY(split_undo(b, count, is_unsigned, symbols, r, out)) != UNHANDLED)
        return;
#define CALL(W)                        \
    for (size_t i = 0; i < count; i++) \
        element_store(out, i, W, join_one(symbols[i], W, is_unsigned, r));
    FOR_WIDTH(element_width(b->element), CALL)
#undef CALL
}

#include "fit.h"
#include "encode.h"
#include "decode.h"
#include "weigh.h"

const variant_t JOIN(kernel, VARIANT) = {TEXT(VARIANT), encode, decode, pack};

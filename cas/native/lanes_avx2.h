/* The hot loops with AVX2, FMA and BMI2; 64 elements at a time, as eight vectors of 8 or four of 16 lanes.
 * In place of the functions of the same names in variant.h. Included by variant_avx2.c only. */
#include <immintrin.h>

#include "bits_bmi2.h"
#include "elements.h"

typedef __m256i vec;

INLINE vec load(const void *p) { return _mm256_loadu_si256((const void *)p); }
INLINE void store(void *p, vec v) { _mm256_storeu_si256(p, v); }
INLINE vec all8(int v) { return _mm256_set1_epi8((char)v); }
INLINE vec all16(int v) { return _mm256_set1_epi16((short)v); }
INLINE vec all32(uint32_t v) { return _mm256_set1_epi32((int)v); }
INLINE vec either(vec a, vec b) { return _mm256_or_si256(a, b); }
INLINE vec both_of(vec a, vec b) { return _mm256_and_si256(a, b); }

/* 8 bytes or 8 words as 32-bit lanes. */
INLINE vec widen8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)); }
INLINE vec widen16(const void *p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)); }

/* 32 bytes in order from two vectors of 16-bit lanes (below 256) or four of 32-bit lanes (below 32768). */
INLINE vec pack16(vec a, vec b) { return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8); }

INLINE vec pack32(vec a, vec b, vec c, vec d)
{
    vec bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0));
}

/* ---- contexts ---- */
static int fast_contexts(const block_t *b, size_t at, size_t count, uint8_t *out)
{
    int width = element_width(b->element);
    size_t i = 0;
    if ((width != 2 && width != 4) || !(b->element & ELEMENT_FLOAT))
        return UNHANDLED;
    const uint8_t *x = (b->source & SOURCE_BASE ? b->base : b->sibling) + at * (size_t)width, *y = x;
    bool both = b->source == SOURCE_BOTH;
    if (both)
        y = b->sibling + at * (size_t)width;
    /* source both: 2x - y, clipped to a byte by the packing; others: x alone */
    for (; i + 32 <= count; i += 32) {
        vec c[4];
        for (size_t j = 0; j < 4; j++) {
            if (width == 2 && j > 1)
                break;
            vec v = load(x + i * (size_t)width + 32 * j), u = load(y + i * (size_t)width + 32 * j);
            if (width == 2) {
                v = both_of(_mm256_srli_epi16(v, 7), all16(255));
                u = both_of(_mm256_srli_epi16(u, 7), all16(255));
                c[j] = both ? _mm256_sub_epi16(_mm256_add_epi16(v, v), u) : v;
            } else {
                v = both_of(_mm256_srli_epi32(v, 23), all32(255));
                u = both_of(_mm256_srli_epi32(u, 23), all32(255));
                c[j] = both ? _mm256_sub_epi32(_mm256_add_epi32(v, v), u) : v;
            }
        }
        store(out + i, width == 2 ? pack16(c[0], c[1]) : pack32(c[0], c[1], c[2], c[3]));
    }
    for (; i < count; i++) {
        uint8_t v = context_of(element_load(x, i, width), width, true);
        out[i] = both ? context_of_both(v, context_of(element_load(y, i, width), width, true)) : v;
    }
    return 0;
}

/* `lut` ascends by ones from 0: a byte's group is how many groups, but the first, start at or below it. */
static void map_bytes(uint8_t *bytes, size_t count, const uint8_t *lut)
{
    vec starts[GROUPS_MAX];
    int groups = 0;
    for (int c = 1; c < 256; c++)
        if (lut[c] != lut[c - 1])
            starts[groups++] = all8(c);
    for (size_t i = 0; i < count; i += 32) {
        vec v = load(bytes + i), group = _mm256_setzero_si256();
        for (int g = 0; g < groups; g++)
            group = _mm256_sub_epi8(group, _mm256_cmpeq_epi8(_mm256_max_epu8(v, starts[g]), v));
        store(bytes + i, group);
    }
}

static void count_missing(counts_t *counts, unsigned groups, const uint8_t *group_of, const uint8_t *symbols,
                          size_t count)
{
    (void)groups;
    for (size_t i = 0; i < count; i++)
        if (counts[group_of[i]][symbols[i]] == 0)
            counts[group_of[i]][symbols[i]] = 1;
}

/* ---- symbols ---- */

/* Byte j of every 32-bit lane, at bit `bit`. */
#define BYTE_TO(v, j, bit)                                                                              \
    ((bit) >= 8 * (j) ? _mm256_slli_epi32(both_of(v, all32(255u << (8 * (j)))), (bit) - 8 * (j))        \
                      : both_of(_mm256_srli_epi32(v, 8 * (j) - (bit)), all32(255u << (bit))))

INLINE unsigned signs(vec v) { return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(v)); }

/* floor(x / f) for x < f << 19: a quotient that is exact or one too small, then mended. */
INLINE vec divide(vec x, vec f, vec *rest)
{
    __m256 ratio = _mm256_div_ps(_mm256_cvtepi32_ps(x), _mm256_cvtepi32_ps(f));
    vec q = _mm256_cvttps_epi32(_mm256_sub_ps(ratio, _mm256_set1_ps(0.25f)));
    vec left = _mm256_sub_epi32(x, _mm256_mullo_epi32(q, f));
    vec fits = _mm256_cmpgt_epi32(f, left); /* -1 where the quotient is right */
    *rest = _mm256_sub_epi32(left, _mm256_andnot_si256(fits, f));
    return _mm256_add_epi32(q, _mm256_add_epi32(fits, all32(1)));
}

/* The low words of the lanes whose `full` is -1, in lane order, to end at `p`; shifts those lanes. */
INLINE uint16_t *words_put(uint16_t *p, vec *x, vec full)
{
    unsigned mask = signs(full);
    vec order = widen8(compress_to_end[mask]);
    vec last = both_of(_mm256_permutevar8x32_epi32(*x, order), all32(0xffff));
    last = _mm256_permute4x64_epi64(_mm256_packus_epi32(last, last), 0xd8);
    _mm_storeu_si128((void *)(p - 8), _mm256_castsi256_si128(last));
    *x = _mm256_blendv_epi8(*x, _mm256_srli_epi32(*x, 16), full);
    return p - (unsigned)_mm_popcnt_u32(mask);
}

INLINE vec words_get(const uint8_t **p, vec x)
{
    vec empty = _mm256_cmpgt_epi32(all32(STATE_MIN), x);
    unsigned mask = signs(empty);
    vec words = _mm256_permutevar8x32_epi32(widen16(*p), widen8(expand_from_start[mask]));
    *p += 2 * (unsigned)_mm_popcnt_u32(mask);
    return _mm256_blendv_epi8(x, either(_mm256_slli_epi32(x, 16), words), empty);
}

#define EIGHT(step) step(0, 0) step(0, 1) step(1, 0) step(1, 1) step(2, 0) step(2, 1) step(3, 0) step(3, 1)
#define EIGHT_DOWN(step) step(3, 1) step(3, 0) step(2, 1) step(2, 0) step(1, 1) step(1, 0) step(0, 1) step(0, 0)

INLINE vec gather(vec index, const uint32_t *table)
{
    return _mm256_i32gather_epi32((const int *)table, index, 4);
}

INLINE uint16_t *symbols_encode_with(const uint8_t *symbols, const uint8_t *groups, size_t count,
                                     const uint32_t *table, uint16_t *p, states_t *s)
{
    vec x[8];
    for (int j = 0; j < 8; j++)
        x[j] = load(s->lane + 8 * j);
    for (size_t at = count; at;) {
        at -= LANES;
#define STEP(j, h)                                                                                \
    {                                                                                             \
        vec index = BYTE_TO(load(symbols + at + 32 * h), j, 0), *state = &x[2 * j + h];           \
        if (groups)                                                                               \
            index = either(index, BYTE_TO(load(groups + at + 32 * h), j, 8));                     \
        vec entry = gather(index, table), f = both_of(entry, all32(0xffff)), rest;                \
        /* full unless f << 19 > state; all below 2^31 */                                         \
        vec keep = _mm256_cmpgt_epi32(_mm256_slli_epi32(f, 19), *state);                          \
        p = words_put(p, state, _mm256_xor_si256(keep, all32(~0u)));                              \
        vec q = divide(*state, f, &rest);                                                         \
        *state = _mm256_add_epi32(_mm256_slli_epi32(q, SCALE_BITS),                               \
                                  _mm256_add_epi32(rest, _mm256_srli_epi32(entry, 16)));          \
    }
        EIGHT_DOWN(STEP)
#undef STEP
    }
    for (int j = 0; j < 8; j++)
        store(s->lane + 8 * j, x[j]);
    return p;
}

static uint16_t *symbols_encode(const uint8_t *symbols, const uint8_t *groups, size_t count, const uint32_t *table,
                                uint16_t *end, states_t *s)
{
    return groups ? symbols_encode_with(symbols, groups, count, table, end, s)
                  : symbols_encode_with(symbols, NULL, count, table, end, s);
}

INLINE bool symbols_decode_with(const uint8_t **words, const uint8_t *end, const uint8_t *groups, uint8_t *symbols,
                                size_t count, const uint32_t *table, states_t *s)
{
    const uint8_t *p = *words;
    vec x[8];
    for (int j = 0; j < 8; j++)
        x[j] = load(s->lane + 8 * j);
    for (size_t at = 0; at < count && p <= end; at += LANES) {
        vec t[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#define STEP(j, h)                                                                                        \
    {                                                                                                     \
        vec *state = &x[2 * j + h], index = both_of(*state, all32(SCALE - 1));                            \
        if (groups)                                                                                       \
            index = either(index, BYTE_TO(load(groups + at + 32 * h), j, SCALE_BITS));                    \
        vec entry = gather(index, table), f = both_of(_mm256_srli_epi32(entry, 8), all32(SCALE - 1));     \
        t[h] = either(t[h], BYTE_TO(both_of(entry, all32(255)), 0, 8 * (j)));                             \
        *state = words_get(&p, _mm256_add_epi32(_mm256_mullo_epi32(f, _mm256_srli_epi32(*state, SCALE_BITS)), \
                                                _mm256_srli_epi32(entry, 20)));                           \
    }
        EIGHT(STEP)
#undef STEP
        store(symbols + at, t[0]);
        store(symbols + at + 32, t[1]);
    }
    for (int j = 0; j < 8; j++)
        store(s->lane + 8 * j, x[j]);
    *words = p;
    return p <= end;
}

static bool symbols_decode(const uint8_t **words, const uint8_t *end, const uint8_t *groups, uint8_t *symbols,
                           size_t count, const uint32_t *table, states_t *s)
{
    return groups ? symbols_decode_with(words, end, groups, symbols, count, table, s)
                  : symbols_decode_with(words, end, NULL, symbols, count, table, s);
}

/* ---- flags ---- */
#define EVERY_FOURTH 0x11111111ull

static uint16_t *flags_encode(const uint64_t *flags, const uint8_t *groups, size_t count, const uint32_t *same,
                              uint16_t *p, states_t *s)
{
    vec x[8];
    for (int j = 0; j < 8; j++)
        x[j] = load(s->lane + 8 * j);
    for (size_t at = count; at;) {
        at -= LANES;
        uint64_t bits = flags[at / LANES];
#define STEP(j, h)                                                                                          \
    {                                                                                                       \
        vec *state = &x[2 * j + h], f = gather(BYTE_TO(load(groups + at + 32 * h), j, 0), same), rest;      \
        unsigned set = (unsigned)_pext_u64(bits >> (32 * h), EVERY_FOURTH << j);                            \
        vec each = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);                                           \
        vec differs = _mm256_cmpeq_epi32(both_of(all32(set), each), each), first = both_of(differs, f);     \
        f = _mm256_blendv_epi8(f, _mm256_sub_epi32(all32(FLAG_SCALE), f), differs);                         \
        vec full = _mm256_xor_si256(_mm256_cmpgt_epi32(_mm256_slli_epi32(f, 16), *state), all32(~0u));      \
        if (signs(full))                                                                                    \
            p = words_put(p, state, full);                                                                  \
        vec q = divide(*state, f, &rest);                                                                   \
        *state = _mm256_add_epi32(_mm256_slli_epi32(q, FLAG_BITS), _mm256_add_epi32(rest, first));          \
    }
        EIGHT_DOWN(STEP)
#undef STEP
    }
    for (int j = 0; j < 8; j++)
        store(s->lane + 8 * j, x[j]);
    return p;
}

static bool flags_decode(const uint8_t **words, const uint8_t *end, const uint8_t *groups, uint64_t *flags,
                         size_t count, const uint32_t *same, states_t *s)
{
    const uint8_t *p = *words;
    vec x[8];
    for (int j = 0; j < 8; j++)
        x[j] = load(s->lane + 8 * j);
    for (size_t at = 0; at < count && p <= end; at += LANES) {
        uint64_t bits = 0;
#define STEP(j, h)                                                                                              \
    {                                                                                                           \
        vec *state = &x[2 * j + h], f = gather(BYTE_TO(load(groups + at + 32 * h), j, 0), same);                \
        vec slot = both_of(*state, all32(FLAG_SCALE - 1)), equal = _mm256_cmpgt_epi32(f, slot);                 \
        slot = _mm256_sub_epi32(slot, _mm256_andnot_si256(equal, f));                                           \
        f = _mm256_blendv_epi8(_mm256_sub_epi32(all32(FLAG_SCALE), f), f, equal);                               \
        bits |= _pdep_u64(~signs(equal) & 255, EVERY_FOURTH << j) << (32 * h);                                  \
        *state = words_get(&p, _mm256_add_epi32(_mm256_mullo_epi32(f, _mm256_srli_epi32(*state, FLAG_BITS)), slot)); \
    }
        EIGHT(STEP)
#undef STEP
        flags[at / LANES] = bits;
    }
    for (int j = 0; j < 8; j++)
        store(s->lane + 8 * j, x[j]);
    *words = p;
    return p <= end;
}

/* ---- differences ---- */
INLINE vec ordered16(vec v) { return _mm256_xor_si256(v, both_of(_mm256_srai_epi16(v, 15), all16(0x7fff))); }
INLINE vec ordered32(vec v) { return _mm256_xor_si256(v, both_of(_mm256_srai_epi32(v, 31), all32(0x7fffffff))); }

INLINE vec difference16(vec value, vec base)
{
    vec sign = _mm256_srai_epi16(base, 15), d = _mm256_sub_epi16(ordered16(value), ordered16(base));
    d = _mm256_sub_epi16(_mm256_xor_si256(d, sign), sign);
    return _mm256_xor_si256(_mm256_add_epi16(d, d), _mm256_srai_epi16(d, 15));
}

INLINE vec undo16(vec z, vec base)
{
    vec odd = _mm256_sub_epi16(_mm256_setzero_si256(), both_of(z, all16(1)));
    vec d = _mm256_xor_si256(_mm256_srli_epi16(z, 1), odd), sign = _mm256_srai_epi16(base, 15);
    d = _mm256_sub_epi16(_mm256_xor_si256(d, sign), sign);
    return ordered16(_mm256_add_epi16(ordered16(base), d));
}

INLINE vec difference32(vec value, vec base)
{
    vec sign = _mm256_srai_epi32(base, 31), d = _mm256_sub_epi32(ordered32(value), ordered32(base));
    d = _mm256_sub_epi32(_mm256_xor_si256(d, sign), sign);
    return _mm256_xor_si256(_mm256_add_epi32(d, d), _mm256_srai_epi32(d, 31));
}

INLINE vec undo32(vec z, vec base)
{
    vec odd = _mm256_sub_epi32(_mm256_setzero_si256(), both_of(z, all32(1)));
    vec d = _mm256_xor_si256(_mm256_srli_epi32(z, 1), odd), sign = _mm256_srai_epi32(base, 31);
    d = _mm256_sub_epi32(_mm256_xor_si256(d, sign), sign);
    return ordered32(_mm256_add_epi32(ordered32(base), d));
}

/* ---- tokens ---- */
INLINE vec remainder_masks(vec raw_bits) /* (1 << (b & 7)) - 1 of each byte b < 32 */
{
    vec masks = _mm256_set_epi32(0x7f3f1f0f, 0x07030100, 0x7f3f1f0f, 0x07030100, 0x7f3f1f0f, 0x07030100, 0x7f3f1f0f,
                                 0x07030100);
    return _mm256_shuffle_epi8(masks, both_of(raw_bits, all8(7)));
}

/* Of 8 differences in 32-bit lanes. */
INLINE vec token32(vec z, unsigned top, vec *raw, vec *raw_bits)
{
    vec half = _mm256_srli_epi32(z, 1);
    vec large = _mm256_cmpgt_epi32(half, all32(SMALL / 2 - 1));
    /* bit length by way of the exponent; a number without its second bit is never rounded up to the next power */
    vec power = _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_andnot_si256(_mm256_srli_epi32(half, 1), half)));
    vec n = _mm256_sub_epi32(_mm256_srli_epi32(power, 23), all32(125));
    vec k = both_of(large, _mm256_sub_epi32(n, all32(2 + top))), lead = _mm256_srlv_epi32(half, k);
    *raw_bits = k;
    *raw = both_of(large, _mm256_sub_epi32(half, _mm256_sllv_epi32(lead, k)));
    vec t = _mm256_add_epi32(_mm256_slli_epi32(n, (int)top + 1), all32((uint32_t)(SMALL - (5 << (top + 1)) - (2 << top))));
    t = _mm256_add_epi32(_mm256_add_epi32(t, _mm256_add_epi32(lead, lead)), both_of(z, all32(1)));
    return _mm256_blendv_epi8(z, t, large);
}

/* Of 64 differences in eight vectors; `wide`: raw bits may hold more than one whole byte. */
INLINE void tokens64(const vec *z, bool wide, unsigned top, uint8_t *tokens, raw_writer_t *w)
{
    vec t[8], k[8], raw[8], low[8];
    uint64_t values[8], masks[8], wholes[8], lows[8];
    for (int j = 0; j < 8; j++) {
        t[j] = token32(z[j], top, &raw[j], &k[j]);
        vec eights = both_of(k[j], all32(24));
        low[j] = raw[j];
        raw[j] = _mm256_srlv_epi32(raw[j], eights);
        if (!wide)
            continue;
        store(lows, low[j]);
        store(wholes, _mm256_sub_epi32(_mm256_sllv_epi32(all32(1), eights), all32(1)));
        put_whole_bytes(w, lows, wholes, 4);
    }
    for (int j = 0; j < 8; j += 4) {
        vec bits = pack32(k[j], k[j + 1], k[j + 2], k[j + 3]);
        store(tokens + 8 * j, pack32(t[j], t[j + 1], t[j + 2], t[j + 3]));
        store(values + j, pack32(raw[j], raw[j + 1], raw[j + 2], raw[j + 3]));
        store(masks + j, remainder_masks(bits));
        if (wide)
            continue;
        for (int i = j; i < j + 4; i++)
            low[i] = both_of(low[i], all32(255));
        store(lows + j, pack32(low[j], low[j + 1], low[j + 2], low[j + 3]));
        store(wholes + j, _mm256_cmpgt_epi8(bits, all8(7)));
    }
    if (!wide)
        put_whole_bytes(w, lows, wholes, 8);
    put_remainders(w, values, masks);
}

/* Raw bits of each of 32 tokens, and its leading bits; small tokens are their own lead, less bit 0. */
INLINE vec token_lengths(vec t, unsigned top, vec *lead)
{
    vec large = _mm256_cmpeq_epi8(_mm256_max_epu8(t, all8(SMALL)), t);
    vec length = _mm256_srli_epi16(_mm256_sub_epi8(t, all8(SMALL)), (int)top + 1);
    vec half = both_of(_mm256_srli_epi16(t, 1), all8(0x7f));
    *lead = either(both_of(half, all8((1 << top) - 1)), all8(1 << top));
    *lead = _mm256_blendv_epi8(half, *lead, large);
    return both_of(large, _mm256_add_epi8(both_of(length, all8(0xff >> (top + 1))), all8((int)(3 - top))));
}

/* What lies beside the tokens of a chunk, taken from the streams well before it is used: small stores cannot be
 * loaded as one vector until they have reached the cache. */
typedef struct {
    uint8_t remainders[CHUNK];
    uint8_t lows[4 * CHUNK]; /* whole bytes: one per token of width 2, four of width 4 */
} beside_t;

INLINE bool beside_get(const uint8_t *tokens, size_t count, int width, unsigned top, raw_reader_t *r, beside_t *beside)
{
    for (size_t i = 0; i < count; i += LANES) {
        uint64_t values[8], masks[8], wholes[8], lows[8];
        if (raw_overrun(r))
            return false;
        for (size_t j = 0; j < 2; j++) {
            vec lead, k = token_lengths(load(tokens + i + 32 * j), top, &lead);
            store(masks + 4 * j, remainder_masks(k));
            store(wholes + 4 * j, width == 2 ? _mm256_cmpgt_epi8(k, all8(7)) : k);
        }
        get_remainders(r, values, masks);
        memcpy(beside->remainders + i, values, LANES);
        if (width == 2) {
            get_whole_bytes(r, lows, wholes, 8);
            memcpy(beside->lows + i, lows, LANES);
            continue;
        }
        for (size_t j = 0; j < LANES; j += 8) {
            uint64_t bytes[4];
            vec eights = both_of(widen8((const uint8_t *)wholes + j), all32(24));
            store(bytes, _mm256_sub_epi32(_mm256_sllv_epi32(all32(1), eights), all32(1)));
            get_whole_bytes(r, lows, bytes, 4);
            memcpy(beside->lows + 4 * (i + j), lows, 32);
        }
    }
    return !raw_overrun(r);
}

/* 32 differences in two vectors. */
INLINE void untokens16(const uint8_t *tokens, const beside_t *beside, size_t at, unsigned top, vec *z)
{
    vec t = load(tokens + at), lead, k = token_lengths(t, top, &lead), zero = _mm256_setzero_si256();
    vec whole = _mm256_cmpgt_epi8(k, all8(7)), remainder = load(beside->remainders + at);
    vec low = _mm256_blendv_epi8(remainder, load(beside->lows + at), whole), high = both_of(whole, remainder);
    /* 1 << k: of each byte k < 14 the low and the high byte */
    vec low_power = _mm256_shuffle_epi8(_mm256_setr_epi64x((long long)0x8040201008040201ull, 0,
                                                           (long long)0x8040201008040201ull, 0), k);
    vec high_power = _mm256_shuffle_epi8(_mm256_setr_epi64x(0, 0x8040201008040201ll, 0, 0x8040201008040201ll), k);
    vec sign = both_of(t, all8(1));
#define SPREAD(v) v = _mm256_permute4x64_epi64(v, 0xd8)
    SPREAD(low), SPREAD(high), SPREAD(lead), SPREAD(sign), SPREAD(low_power), SPREAD(high_power);
#undef SPREAD
#define HALF(unpack)                                                                                        \
    either(_mm256_slli_epi16(either(_mm256_mullo_epi16(unpack(lead, zero), unpack(low_power, high_power)),  \
                                    unpack(low, high)), 1), unpack(sign, zero))
    z[0] = HALF(_mm256_unpacklo_epi8);
    z[1] = HALF(_mm256_unpackhi_epi8);
#undef HALF
}

/* 32 differences in four vectors. */
INLINE void untokens32(const uint8_t *tokens, const beside_t *beside, size_t at, unsigned top, vec *z)
{
    vec lead, k = token_lengths(load(tokens + at), top, &lead);
    uint8_t lengths[32], leads[32];
    store(lengths, k);
    store(leads, lead);
    for (size_t j = 0; j < 4; j++) {
        vec bits = widen8(lengths + 8 * j), eights = both_of(bits, all32(24));
        vec raw = either(load(beside->lows + 4 * (at + 8 * j)),
                         _mm256_sllv_epi32(widen8(beside->remainders + at + 8 * j), eights));
        vec value = either(_mm256_sllv_epi32(widen8(leads + 8 * j), bits), raw);
        z[j] = either(_mm256_add_epi32(value, value), both_of(widen8(tokens + at + 8 * j), all32(1)));
    }
}

/* ---- whole blocks: full groups where they lie, the last one through a padded copy ---- */

/* Sparse blocks: the same, and words that are not 0 (top 0). */
#define FOR_SPARSE(element, top, call)                    \
    switch ((element) * 4 + (top)) {                      \
    case 5 * 4 + 0: call(2, 0); break;                    \
    case 6 * 4 + 0: call(4, 0); break;                    \
    case 5 * 4 + 3: call(2, 3); break;                    \
    case 6 * 4 + 2: call(4, 2); break;                    \
    default: return UNHANDLED;                            \
    }

/* The loops with constants, for what this encoder makes of floats: others are left to plain C. */
#define FOR_TOKENS(element, top, call)                    \
    switch ((element) * 4 + (top)) {                      \
    case 5 * 4 + 3: call(2, 3); break;                    \
    case 6 * 4 + 2: call(4, 2); break;                    \
    default: return UNHANDLED;                            \
    }

INLINE vec base_at(const uint8_t *base, size_t offset) { return base ? load(base + offset) : _mm256_setzero_si256(); }

/* 64 differences as eight vectors of 32-bit lanes. */
INLINE void differences64(const uint8_t *data, const uint8_t *base, int width, vec *z)
{
    for (size_t j = 0; j < 2 * (size_t)width; j++) {
        vec x = load(data + 32 * j), y = base_at(base, 32 * j);
        if (width == 4) {
            z[j] = difference32(x, y);
            continue;
        }
        vec d = difference16(x, y);
        z[2 * j] = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(d));
        z[2 * j + 1] = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(d, 1));
    }
}

INLINE void tokens_make_with(const block_t *b, size_t at, size_t count, int width, unsigned top,
                             uint8_t *tokens, raw_writer_t *stream)
{
    raw_writer_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width;
    const uint8_t *data = b->data + at * step, *base = b->base ? b->base + at * step : NULL;
    vec z[8];
    for (; i + LANES <= count; i += LANES) {
        differences64(data + i * step, base ? base + i * step : NULL, width, z);
        tokens64(z, width == 4, top, tokens + i, &local);
    }
    if (i < count) {
        uint8_t x[4 * LANES] = {0}, y[4 * LANES] = {0};
        memcpy(x, data + i * step, (count - i) * step);
        if (base)
            memcpy(y, base + i * step, (count - i) * step);
        differences64(x, y, width, z);
        tokens64(z, width == 4, top, tokens + i, &local);
    }
    *stream = local;
}

static int fast_tokens_make(const block_t *b, size_t at, size_t count, uint8_t *tokens, raw_writer_t *w)
{
#define CALL(W, T) tokens_make_with(b, at, count, W, T, tokens, w)
    FOR_TOKENS(b->element, b->top, CALL)
#undef CALL
    return 0;
}

INLINE void tokens_undo_group(const uint8_t *tokens, const beside_t *beside, size_t at, const uint8_t *base, int width,
                              unsigned top, uint8_t *out)
{
    for (size_t h = 0; h < 2; h++) {
        vec z[4];
        if (width == 2)
            untokens16(tokens, beside, at + 32 * h, top, z);
        else
            untokens32(tokens, beside, at + 32 * h, top, z);
        for (size_t j = 0; j < (size_t)width; j++) {
            size_t offset = 32 * (h * (size_t)width + j);
            vec y = base_at(base, offset);
            store(out + offset, width == 2 ? undo16(z[j], y) : undo32(z[j], y));
        }
    }
}

/* `tokens` has room for whole groups. */
INLINE int tokens_undo_with(const block_t *b, size_t at, size_t count, int width, unsigned top,
                            uint8_t *tokens, raw_reader_t *stream, uint8_t *out)
{
    raw_reader_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width, padded = (count + LANES - 1) / LANES * LANES;
    const uint8_t *base = b->base ? b->base + at * step : NULL;
    beside_t beside;
    out += at * step;
    memset(tokens + count, 0, padded - count);
    if (!beside_get(tokens, padded, width, top, &local, &beside))
        return 0;
    for (; i + LANES <= count; i += LANES)
        tokens_undo_group(tokens, &beside, i, base ? base + i * step : NULL, width, top, out + i * step);
    if (i < count) {
        uint8_t x[4 * LANES], y[4 * LANES] = {0};
        if (base)
            memcpy(y, base + i * step, (count - i) * step);
        tokens_undo_group(tokens, &beside, i, y, width, top, x);
        memcpy(out + i * step, x, (count - i) * step);
    }
    *stream = local;
    return 1;
}

static int fast_tokens_undo(const block_t *b, size_t at, size_t count, uint8_t *tokens, raw_reader_t *r, uint8_t *out)
{
#define CALL(W, T) return tokens_undo_with(b, at, count, W, T, tokens, r, out)
    FOR_TOKENS(b->element, b->top, CALL)
#undef CALL
    return UNHANDLED;
}

/* Differences lie behind each other, with room for whole groups. */
INLINE void values_make_with(uint8_t *values, size_t count, int width, unsigned top, uint8_t *tokens, raw_writer_t *stream)
{
    raw_writer_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t step = (size_t)width;
    memset(values + count * step, 0, LANES * step);
    for (size_t i = 0; i < count; i += LANES) {
        vec z[8];
        for (size_t j = 0; j < 8; j++)
            z[j] = width == 4 ? load(values + i * step + 32 * j) : widen16(values + i * step + 16 * j);
        tokens64(z, width == 4, top, tokens + i, &local);
    }
    *stream = local;
}

static int fast_values_make(uint8_t *values, size_t count, int width, unsigned top, uint8_t *tokens, raw_writer_t *w)
{
#define CALL(W, T) values_make_with(values, count, W, T, tokens, w)
    FOR_TOKENS(width == 2 ? 5 : width == 4 ? 6 : 0, top, CALL)
#undef CALL
    return 0;
}

INLINE int values_undo_with(uint8_t *tokens, size_t count, int width, unsigned top, raw_reader_t *stream, uint8_t *values)
{
    raw_reader_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t step = (size_t)width;
    beside_t beside;
    memset(tokens + count, 0, LANES);
    for (size_t at = 0; at < count; at += CHUNK) {
        size_t left = (count - at + LANES - 1) / LANES * LANES, chunk = left < CHUNK ? left : CHUNK;
        if (!beside_get(tokens + at, chunk, width, top, &local, &beside))
            return 0;
        for (size_t i = 0; i < chunk; i += 32) {
            vec z[4];
            if (width == 2)
                untokens16(tokens + at, &beside, i, top, z);
            else
                untokens32(tokens + at, &beside, i, top, z);
            for (size_t j = 0; j < step; j++)
                store(values + (at + i) * step + 32 * j, z[j]);
        }
    }
    *stream = local;
    return 1;
}

static int fast_values_undo(uint8_t *tokens, size_t count, int width, unsigned top, raw_reader_t *r, uint8_t *values)
{
#define CALL(W, T) return values_undo_with(tokens, count, W, T, r, values)
    FOR_TOKENS(width == 2 ? 5 : width == 4 ? 6 : 0, top, CALL)
#undef CALL
    return UNHANDLED;
}

/* ---- sparse blocks ---- */
INLINE ptrdiff_t sparse_make_with(const block_t *b, size_t at, size_t count, int width, unsigned top,
                                  const uint8_t *contexts, uint64_t *flags, uint8_t *kept, uint8_t *values)
{
    size_t step = (size_t)width, differ = 0;
    for (size_t i = 0; i < count; i += LANES) {
        const uint8_t *data = b->data + (at + i) * step, *base = b->base && top ? b->base + (at + i) * step : NULL;
        uint8_t x[4 * LANES] = {0}, y[4 * LANES] = {0};
        uint64_t bits = 0;
        if (i + LANES > count) {
            memcpy(x, data, (count - i) * step);
            if (base)
                memcpy(y, base, (count - i) * step);
            data = x;
            base = y;
        }
        for (size_t j = 0; j < step; j++) { /* 64 bytes: 32 or 16 flags */
            vec u[2];
            for (size_t h = 0; h < 2; h++) {
                vec v = load(data + 64 * j + 32 * h), w = base_at(base, 64 * j + 32 * h);
                u[h] = width == 2 ? _mm256_cmpeq_epi16(v, w) : _mm256_cmpeq_epi32(v, w);
            }
            if (width == 2)
                bits |= (uint64_t)(uint32_t)~_mm256_movemask_epi8(
                            _mm256_permute4x64_epi64(_mm256_packs_epi16(u[0], u[1]), 0xd8)) << (32 * j);
            else
                bits |= (uint64_t)((~(signs(u[0]) | signs(u[1]) << 8)) & 0xffff) << (16 * j);
        }
        flags[i / LANES] = bits;
        for (; bits; bits &= bits - 1) {
            unsigned place = (unsigned)_tzcnt_u64(bits);
            uint64_t value = element_load(data, place, width), of = base ? element_load(base, place, width) : 0;
            element_store(values, differ, width, top ? difference(value, of, width, true) : value);
            kept[differ++] = contexts[i + place];
        }
    }
    return (ptrdiff_t)differ;
}

static ptrdiff_t fast_sparse_make(const block_t *b, size_t at, size_t count, const uint8_t *contexts, uint64_t *flags,
                                  uint8_t *kept, uint8_t *values)
{
#define CALL(W, T) return sparse_make_with(b, at, count, W, T, contexts, flags, kept, values)
    FOR_SPARSE(b->element, b->top, CALL)
#undef CALL
    return UNHANDLED;
}

static size_t sparse_keep(const uint64_t *flags, const uint8_t *groups, size_t count, uint8_t *kept)
{
    size_t differ = 0;
    for (size_t at = 0; at < count; at += LANES)
        for (uint64_t bits = flags[at / LANES]; bits; bits &= bits - 1)
            kept[differ++] = groups[at + (unsigned)_tzcnt_u64(bits)];
    return differ;
}

static int fast_sparse_undo(const block_t *b, size_t count, const uint64_t *flags, const uint8_t *values, uint8_t *out)
{
    (void)b, (void)count, (void)flags, (void)values, (void)out;
    return UNHANDLED; /* a copy of the base with some elements changed: plain C is as good */
}

/* ---- split ---- */
static bool any_negative(const block_t *b, size_t at, size_t count)
{
    size_t width = (size_t)element_width(b->element), size = count * width, i = 0;
    const uint8_t *data = b->data + at * width;
    vec seen = _mm256_setzero_si256();
    for (; i + 32 <= size; i += 32)
        seen = either(seen, load(data + i));
    /* bit width - 1 of every `width` bits: the bytes that hold signs */
    bool found = (unsigned)_mm256_movemask_epi8(seen) & (unsigned)(~0ull / ((1ull << width) - 1) << (width - 1));
    for (i += width - 1; i < size; i += width)
        found |= data[i] >> 7;
    return found;
}

INLINE vec thirds(void) /* bytes 0-2 of each 32-bit lane, one lane after another, in 12 of 16 bytes */
{
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
}

INLINE void split16(const uint8_t *data, bool is_unsigned, uint8_t *symbols, raw_writer_t *w)
{
    vec r[2];
    for (int j = 0; j < 2; j++) {
        vec v = load(data + 32 * j);
        r[j] = either(_mm256_add_epi16(v, v), _mm256_srli_epi16(v, 15));
    }
    store(symbols, pack16(_mm256_srli_epi16(r[0], 8), _mm256_srli_epi16(r[1], 8)));
    vec low = pack16(both_of(r[0], all16(255)), both_of(r[1], all16(255)));
    if (is_unsigned) {
        uint8_t lows[32];
        store(lows, low);
        put_sevens(w, lows, 32);
    } else {
        store(w->bytes, low);
        w->bytes += 32;
    }
}

INLINE void split32(const uint8_t *data, bool is_unsigned, uint8_t *symbols, raw_writer_t *w)
{
    vec r[4], low[4], high[4];
    for (int j = 0; j < 4; j++) {
        vec v = load(data + 32 * j);
        r[j] = either(_mm256_add_epi32(v, v), _mm256_srli_epi32(v, 31));
        high[j] = _mm256_srli_epi32(r[j], 24);
        low[j] = both_of(r[j], all32(255));
    }
    store(symbols, pack32(high[0], high[1], high[2], high[3]));
    if (is_unsigned) {
        uint8_t lows[32];
        store(lows, pack32(low[0], low[1], low[2], low[3]));
        put_sevens(w, lows, 32);
    }
    for (int j = 0; j < 4; j++)
        if (is_unsigned) {
            vec middle = both_of(_mm256_srli_epi32(r[j], 8), all32(0xffff));
            middle = _mm256_permute4x64_epi64(_mm256_packus_epi32(middle, middle), 0xd8);
            _mm_storeu_si128((void *)w->bytes, _mm256_castsi256_si128(middle));
            w->bytes += 16;
        } else {
            vec bytes = _mm256_shuffle_epi8(r[j], thirds());
            _mm_storeu_si128((void *)w->bytes, _mm256_castsi256_si128(bytes));
            _mm_storeu_si128((void *)(w->bytes + 12), _mm256_extracti128_si256(bytes, 1));
            w->bytes += 24;
        }
}

/* The loops with constants. */
INLINE void split_make_with(const uint8_t *data, size_t count, int width, bool is_unsigned, uint8_t *symbols,
                            raw_writer_t *stream)
{
    raw_writer_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width;
    for (; i + 32 <= count; i += 32)
        if (width == 2)
            split16(data + i * step, is_unsigned, symbols + i, &local);
        else
            split32(data + i * step, is_unsigned, symbols + i, &local);
    for (; i < count; i++)
        split_one(element_load(data, i, width), width, is_unsigned, symbols + i, &local);
    *stream = local;
}

static int fast_split_make(const block_t *b, size_t at, size_t count, bool is_unsigned, uint8_t *symbols,
                           raw_writer_t *w)
{
    int width = element_width(b->element);
    const uint8_t *data = b->data + at * (size_t)width;
    if (width == 2 && is_unsigned)
        split_make_with(data, count, 2, true, symbols, w);
    else if (width == 2)
        split_make_with(data, count, 2, false, symbols, w);
    else if (width == 4 && is_unsigned)
        split_make_with(data, count, 4, true, symbols, w);
    else if (width == 4)
        split_make_with(data, count, 4, false, symbols, w);
    else
        return UNHANDLED;
    return 0;
}

/* 32 elements; `lows` has their lowest bytes where they are unsigned, and is NULL where the byte stream does. */
INLINE void join16(const uint8_t *symbols, const uint8_t *lows, raw_reader_t *r, uint8_t *out)
{
    vec low = _mm256_permute4x64_epi64(load(lows ? lows : r->bytes), 0xd8);
    vec high = _mm256_permute4x64_epi64(load(symbols), 0xd8);
    vec a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
    r->bytes += lows ? 0 : 32;
    store(out, either(_mm256_srli_epi16(a, 1), _mm256_slli_epi16(a, 15)));
    store(out + 32, either(_mm256_srli_epi16(b, 1), _mm256_slli_epi16(b, 15)));
}

INLINE void join32(const uint8_t *symbols, const uint8_t *lows, raw_reader_t *r, uint8_t *out)
{
    vec from = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
    for (int j = 0; j < 4; j++) {
        vec v = _mm256_slli_epi32(widen8(symbols + 8 * j), 24);
        if (lows) {
            v = either(v, either(_mm256_slli_epi32(widen16(r->bytes), 8), widen8(lows + 8 * j)));
            r->bytes += 16;
        } else {
            __m128i a = _mm_loadu_si128((const void *)r->bytes), c = _mm_loadu_si128((const void *)(r->bytes + 12));
            v = either(v, _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(a), c, 1), from));
            r->bytes += 24;
        }
        store(out + 32 * j, either(_mm256_srli_epi32(v, 1), _mm256_slli_epi32(v, 31)));
    }
}

/* The loops with constants. */
INLINE void split_undo_with(size_t count, int width, bool is_unsigned, const uint8_t *symbols, raw_reader_t *stream,
                            uint8_t *out)
{
    raw_reader_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width;
    uint8_t lows[CHUNK]; /* well before use, as in beside_get() */
    if (is_unsigned)
        get_sevens(&local, lows, count / 32 * 32);
    for (; i + 32 <= count; i += 32)
        if (width == 2)
            join16(symbols + i, is_unsigned ? lows + i : NULL, &local, out + i * step);
        else
            join32(symbols + i, is_unsigned ? lows + i : NULL, &local, out + i * step);
    for (; i < count; i++)
        element_store(out, i, width, join_one(symbols[i], width, is_unsigned, &local));
    *stream = local;
}

static int fast_split_undo(const block_t *b, size_t at, size_t count, bool is_unsigned, const uint8_t *symbols,
                           raw_reader_t *r, uint8_t *out)
{
    int width = element_width(b->element);
    out += at * (size_t)width;
    if (width == 2 && is_unsigned)
        split_undo_with(count, 2, true, symbols, r, out);
    else if (width == 2)
        split_undo_with(count, 2, false, symbols, r, out);
    else if (width == 4 && is_unsigned)
        split_undo_with(count, 4, true, symbols, r, out);
    else if (width == 4)
        split_undo_with(count, 4, false, symbols, r, out);
    else
        return UNHANDLED;
    return 0;
}

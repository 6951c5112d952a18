/* The hot loops with AVX-512 (F, BW, VL, DQ, CD, VBMI, VBMI2) and BMI2; a group of 64 elements at a time.
 * In place of the functions of the same names in variant.h. Included by variant_avx512.c only. */
#include <immintrin.h>

#include "bits_bmi2.h"
#include "elements.h"

typedef __m512i vec;
INLINE vec load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void store(void *p, vec v) { _mm512_storeu_si512(p, v); }
INLINE vec all8(int v) { return _mm512_set1_epi8((char)v); }
INLINE vec all16(int v) { return _mm512_set1_epi16((short)v); }
INLINE vec all32(uint32_t v) { return _mm512_set1_epi32((int)v); }
INLINE unsigned ones(uint64_t mask) { return (unsigned)_mm_popcnt_u64(mask); }

/* A gather whose result register depends on nothing. The compiler knows that a full mask leaves nothing of what was
 * in the register, and reuses the last gather's; the processor does not, and gathers wait in line. So hide the mask. */
INLINE vec gather(vec index, const uint32_t *table)
{
    vec fresh = _mm512_setzero_si512();
    __mmask16 mask = 0xffff;
    __asm__("" : "+v"(fresh), "+Yk"(mask));
    return _mm512_mask_i32gather_epi32(fresh, mask, index, table, 4);
}

/* 64 bytes in order from two vectors of 16-bit lanes (values below 256), or four of 32-bit lanes (below 32768). */
INLINE vec pack16(vec a, vec b)
{
    return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), _mm512_packus_epi16(a, b));
}

INLINE vec pack32(vec a, vec b, vec c, vec d)
{
    vec order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_epi32(order, _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d)));
}

/* Spread quadwords so that unpacklo / unpackhi of bytes give elements 0-31 / 32-63 in order. */
INLINE vec spread(vec bytes)
{
    return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), bytes);
}

/* ---- contexts ---- */
INLINE vec contexts16(const uint8_t *words, size_t i)
{
    return _mm512_and_si512(_mm512_srli_epi16(load(words + 2 * i), 7), all16(255));
}

INLINE vec contexts32(const uint8_t *words, size_t i)
{
    return _mm512_and_si512(_mm512_srli_epi32(load(words + 4 * i), 23), all32(255));
}

static int fast_contexts(const block_t *b, size_t at, size_t count, uint8_t *out)
{
    int width = element_width(b->element);
    size_t i = 0;
    if ((width != 2 && width != 4) || !(b->element & ELEMENT_FLOAT) || b->source == SOURCE_NONE)
        return UNHANDLED;
    const uint8_t *x = (b->source & SOURCE_BASE ? b->base : b->sibling) + at * (size_t)width, *y = x;
    bool both = b->source == SOURCE_BOTH;
    if (both)
        y = b->sibling + at * (size_t)width;
    /* source both: 2x - y, clipped to a byte by the packing; others: x alone */
    if (width == 2)
        for (; i + LANES <= count; i += LANES) {
            vec c[2];
            for (unsigned j = 0; j < 2; j++) {
                vec v = contexts16(x, i + 32 * j);
                c[j] = both ? _mm512_sub_epi16(_mm512_add_epi16(v, v), contexts16(y, i + 32 * j)) : v;
            }
            store(out + i, pack16(c[0], c[1]));
        }
    else
        for (; i + LANES <= count; i += LANES) {
            vec c[4];
            for (unsigned j = 0; j < 4; j++) {
                vec v = contexts32(x, i + 16 * j);
                c[j] = both ? _mm512_sub_epi32(_mm512_add_epi32(v, v), contexts32(y, i + 16 * j)) : v;
            }
            store(out + i, pack32(c[0], c[1], c[2], c[3]));
        }
    for (; i < count; i++) {
        uint8_t v = context_of(element_load(x, i, width), width, true);
        out[i] = both ? context_of_both(v, context_of(element_load(y, i, width), width, true)) : v;
    }
    return 0;
}

/* Bytes of a table of 256. */
typedef struct {
    vec part[4];
} bytes256_t;

INLINE bytes256_t table_load(const uint8_t *table)
{
    return (bytes256_t){{load(table), load(table + 64), load(table + 128), load(table + 192)}};
}

INLINE vec table_look(const bytes256_t *t, vec index)
{
    vec low = _mm512_permutex2var_epi8(t->part[0], index, t->part[1]);
    vec high = _mm512_permutex2var_epi8(t->part[2], index, t->part[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high);
}

static void map_bytes(uint8_t *bytes, size_t count, const uint8_t *lut)
{
    bytes256_t table = table_load(lut);
    for (size_t i = 0; i < count; i += LANES)
        store(bytes + i, table_look(&table, load(bytes + i)));
}

/* With a bit per pair of up to 8 groups and 256 symbols that has been counted. */
static void count_missing(counts_t *counts, unsigned groups, const uint8_t *group_of, const uint8_t *symbols,
                          size_t count)
{
    _Static_assert(GROUPS_MADE <= 8, "32 bytes for each group");
    uint8_t counted[256] = {0};
    for (unsigned g = 0; g < groups; g++)
        for (unsigned i = 0; i < SYMBOLS; i++)
            counted[32 * g + i / 8] |= (uint8_t)((counts[g][i] != 0) << (i % 8));
    bytes256_t table = table_load(counted);
    vec powers = _mm512_set4_epi32((int)0x80402010, 0x08040201, (int)0x80402010, 0x08040201);
    for (size_t at = 0; at < count; at += LANES) {
        vec s = load(symbols + at), g = load(group_of + at);
        vec row = _mm512_slli_epi16(g, 5), place = _mm512_and_si512(_mm512_srli_epi16(s, 3), all8(31));
        vec bit = _mm512_shuffle_epi8(powers, _mm512_and_si512(s, all8(7)));
        __mmask64 missing = _mm512_testn_epi8_mask(table_look(&table, _mm512_or_si512(row, place)), bit);
        missing = at + LANES > count ? _bzhi_u64(missing, (unsigned)(count - at)) : missing;
        if (!missing)
            continue;
        for (; missing; missing &= missing - 1) {
            size_t i = at + _tzcnt_u64(missing);
            counts[group_of[i]][symbols[i]] += !counts[group_of[i]][symbols[i]];
            counted[32 * group_of[i] + symbols[i] / 8] |= (uint8_t)(1 << (symbols[i] % 8));
        }
        table = table_load(counted);
    }
}

/* ---- symbols ---- */

/* Byte j of every 32-bit lane, at bit `bit`. */
#define BYTE_TO(v, j, bit)                                                                            \
    ((bit) >= 8 * (j) ? _mm512_slli_epi32(_mm512_and_si512(v, all32(255u << (8 * (j)))), (bit) - 8 * (j)) \
                      : _mm512_and_si512(_mm512_srli_epi32(v, 8 * (j) - (bit)), all32(255u << (bit))))

/* About 1 / f, near enough for divide(). */
INLINE __m512 inverse(vec f)
{
    __m512 ff = _mm512_cvtepi32_ps(f), r = _mm512_rcp14_ps(ff);
    return _mm512_mul_ps(r, _mm512_fnmadd_ps(ff, r, _mm512_set1_ps(2)));
}

/* floor(x / f) for x < f << 19: a quotient that is exact or one too small, then mended. */
INLINE vec divide(vec x, vec f, __m512 inverse_f, vec *rest)
{
    vec q = _mm512_cvttps_epi32(_mm512_fmsub_ps(_mm512_cvtepi32_ps(x), inverse_f, _mm512_set1_ps(0.25f)));
    vec left = _mm512_sub_epi32(x, _mm512_mullo_epi32(q, f));
    __mmask16 more = _mm512_cmpge_epu32_mask(left, f);
    *rest = _mm512_mask_sub_epi32(left, more, left, f);
    return _mm512_mask_add_epi32(q, more, q, all32(1));
}

/* The low words of the lanes in `full`, in lane order, to end at `p`. */
INLINE uint16_t *words_put(uint16_t *p, vec x, __mmask16 full)
{
    unsigned count = ones(full);
    __m256i words = _mm256_maskz_compress_epi16(full, _mm512_cvtepi32_epi16(x));
    p -= count;
    _mm256_mask_storeu_epi16(p, (__mmask16)_bzhi_u32(0xffff, count), words);
    return p;
}

INLINE vec words_get(const uint8_t **p, vec x)
{
    __mmask16 empty = _mm512_cmplt_epu32_mask(x, all32(STATE_MIN));
    vec words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)*p));
    *p += 2 * ones(empty);
    return _mm512_mask_or_epi32(x, empty, _mm512_slli_epi32(x, 16), _mm512_maskz_expand_epi32(empty, words));
}

INLINE uint16_t *symbols_encode_with(const uint8_t *symbols, const uint8_t *groups, size_t count,
                                     const uint32_t *table, uint16_t *p, states_t *s)
{
    vec x[4];
    for (int j = 0; j < 4; j++)
        x[j] = load(s->lane + 16 * j);
    for (size_t at = count; at;) {
        at -= LANES;
        vec t = load(symbols + at), c = groups ? load(groups + at) : _mm512_setzero_si512();
#define STEP(j)                                                                                  \
    {                                                                                            \
        vec index = BYTE_TO(t, j, 0);                                                            \
        if (groups)                                                                              \
            index = _mm512_or_si512(index, BYTE_TO(c, j, 8));                                    \
        vec entry = gather(index, table), f = _mm512_and_si512(entry, all32(0xffff)), rest;      \
        __mmask16 full = _mm512_cmpge_epu32_mask(x[j], _mm512_slli_epi32(f, 19));                \
        p = words_put(p, x[j], full);                                                            \
        vec q = divide(_mm512_mask_srli_epi32(x[j], full, x[j], 16), f, inverse(f), &rest);                  \
        x[j] = _mm512_add_epi32(_mm512_slli_epi32(q, SCALE_BITS),                                \
                                _mm512_add_epi32(rest, _mm512_srli_epi32(entry, 16)));           \
    }
        STEP(3) STEP(2) STEP(1) STEP(0)
#undef STEP
    }
    for (int j = 0; j < 4; j++)
        store(s->lane + 16 * j, x[j]);
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
    vec x[4];
    for (int j = 0; j < 4; j++)
        x[j] = load(s->lane + 16 * j);
    for (size_t at = 0; at < count && p <= end; at += LANES) {
        vec t = _mm512_setzero_si512(), c = groups ? load(groups + at) : t;
#define STEP(j)                                                                                          \
    {                                                                                                    \
        vec index = _mm512_and_si512(x[j], all32(SCALE - 1));                                            \
        if (groups)                                                                                      \
            index = _mm512_or_si512(index, BYTE_TO(c, j, SCALE_BITS));                                   \
        vec entry = gather(index, table);                                                                \
        vec f = _mm512_and_si512(_mm512_srli_epi32(entry, 8), all32(SCALE - 1));                         \
        t = _mm512_or_si512(t, BYTE_TO(_mm512_and_si512(entry, all32(255)), 0, 8 * (j)));                \
        x[j] = words_get(&p, _mm512_add_epi32(_mm512_mullo_epi32(f, _mm512_srli_epi32(x[j], SCALE_BITS)), \
                                              _mm512_srli_epi32(entry, 20)));                            \
    }
        STEP(0) STEP(1) STEP(2) STEP(3)
#undef STEP
        store(symbols + at, t);
    }
    for (int j = 0; j < 4; j++)
        store(s->lane + 16 * j, x[j]);
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
#define EVERY_FOURTH 0x1111111111111111ull

static uint16_t *flags_encode(const uint64_t *flags, const uint8_t *groups, size_t count, const uint32_t *same,
                              uint16_t *p, states_t *s)
{
    /* frequencies and their inverses by group, of elements that are equal and of elements that differ */
    vec x[4], equal = load(same), other = _mm512_sub_epi32(all32(FLAG_SCALE), equal);
    __m512 equal_inverse = inverse(_mm512_max_epu32(equal, all32(1))), other_inverse = inverse(other);
    for (int j = 0; j < 4; j++)
        x[j] = load(s->lane + 16 * j);
    for (size_t at = count; at;) {
        at -= LANES;
        vec c = load(groups + at);
        uint64_t bits = flags[at / LANES];
#define STEP(j)                                                                                         \
    {                                                                                                   \
        /* of the index, the permutations look at the group's 4 bits and at the flag in bit 4 only */   \
        __mmask16 differs = (__mmask16)_pext_u64(bits, EVERY_FOURTH << j);                              \
        vec index = _mm512_srli_epi32(c, 8 * j), rest;                                                  \
        index = _mm512_mask_or_epi32(index, differs, index, all32(16));                                 \
        vec f = _mm512_permutex2var_epi32(equal, index, other);                                         \
        __m512 inverse_f = _mm512_permutex2var_ps(equal_inverse, index, other_inverse);                 \
        __mmask16 full = _mm512_cmpge_epu32_mask(x[j], _mm512_slli_epi32(f, 16));                       \
        if (full) {                                                                                     \
            p = words_put(p, x[j], full);                                                               \
            x[j] = _mm512_mask_srli_epi32(x[j], full, x[j], 16);                                        \
        }                                                                                               \
        vec q = divide(x[j], f, inverse_f, &rest);                                                      \
        rest = _mm512_mask_add_epi32(rest, differs, rest, _mm512_sub_epi32(all32(FLAG_SCALE), f));      \
        x[j] = _mm512_add_epi32(_mm512_slli_epi32(q, FLAG_BITS), rest);                                 \
    }
        STEP(3) STEP(2) STEP(1) STEP(0)
#undef STEP
    }
    for (int j = 0; j < 4; j++)
        store(s->lane + 16 * j, x[j]);
    return p;
}

static bool flags_decode(const uint8_t **words, const uint8_t *end, const uint8_t *groups, uint64_t *flags,
                         size_t count, const uint32_t *same, states_t *s)
{
    const uint8_t *p = *words;
    vec x[4], table = load(same);
    for (int j = 0; j < 4; j++)
        x[j] = load(s->lane + 16 * j);
    for (size_t at = 0; at < count && p <= end; at += LANES) {
        vec c = load(groups + at);
        uint64_t bits = 0;
        for (int j = 0; j < 4; j++) {
            vec f = _mm512_permutexvar_epi32(_mm512_srli_epi32(c, (unsigned)(8 * j)), table);
            vec slot = _mm512_and_si512(x[j], all32(FLAG_SCALE - 1));
            __mmask16 differs = _mm512_cmpge_epu32_mask(slot, f);
            slot = _mm512_mask_sub_epi32(slot, differs, slot, f);
            f = _mm512_mask_sub_epi32(f, differs, all32(FLAG_SCALE), f);
            bits |= _pdep_u64(differs, EVERY_FOURTH << j);
            x[j] = words_get(&p, _mm512_add_epi32(_mm512_mullo_epi32(f, _mm512_srli_epi32(x[j], FLAG_BITS)), slot));
        }
        flags[at / LANES] = bits;
    }
    for (int j = 0; j < 4; j++)
        store(s->lane + 16 * j, x[j]);
    *words = p;
    return p <= end;
}

/* ---- differences ---- */
INLINE vec ordered16(vec v) { return _mm512_xor_si512(v, _mm512_and_si512(_mm512_srai_epi16(v, 15), all16(0x7fff))); }
INLINE vec ordered32(vec v) { return _mm512_xor_si512(v, _mm512_and_si512(_mm512_srai_epi32(v, 31), all32(0x7fffffff))); }

INLINE vec difference16(vec value, vec base)
{
    vec sign = _mm512_srai_epi16(base, 15), d = _mm512_sub_epi16(ordered16(value), ordered16(base));
    d = _mm512_sub_epi16(_mm512_xor_si512(d, sign), sign);
    return _mm512_xor_si512(_mm512_add_epi16(d, d), _mm512_srai_epi16(d, 15));
}

INLINE vec undo16(vec z, vec base)
{
    vec odd = _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_and_si512(z, all16(1)));
    vec d = _mm512_xor_si512(_mm512_srli_epi16(z, 1), odd), sign = _mm512_srai_epi16(base, 15);
    d = _mm512_sub_epi16(_mm512_xor_si512(d, sign), sign);
    return ordered16(_mm512_add_epi16(ordered16(base), d));
}

INLINE vec difference32(vec value, vec base)
{
    vec sign = _mm512_srai_epi32(base, 31), d = _mm512_sub_epi32(ordered32(value), ordered32(base));
    d = _mm512_sub_epi32(_mm512_xor_si512(d, sign), sign);
    return _mm512_xor_si512(_mm512_add_epi32(d, d), _mm512_srai_epi32(d, 31));
}

INLINE vec undo32(vec z, vec base)
{
    vec odd = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_and_si512(z, all32(1)));
    vec d = _mm512_xor_si512(_mm512_srli_epi32(z, 1), odd), sign = _mm512_srai_epi32(base, 31);
    d = _mm512_sub_epi32(_mm512_xor_si512(d, sign), sign);
    return ordered32(_mm512_add_epi32(ordered32(base), d));
}

/* ---- tokens: 64 differences in 16-bit lanes (two vectors) or 32-bit lanes (four) ---- */
INLINE vec remainder_masks(vec raw_bits) /* (1 << (b & 7)) - 1 of each byte b < 32 */
{
    vec masks = _mm512_set4_epi32(0x7f3f1f0f, 0x07030100, 0x7f3f1f0f, 0x07030100);
    return _mm512_shuffle_epi8(masks, _mm512_and_si512(raw_bits, all8(7)));
}

INLINE vec token16(vec z, unsigned top, vec *raw, vec *raw_bits)
{
    __mmask32 large = _mm512_cmpge_epu16_mask(z, all16(SMALL));
    /* lzcnt of the even and the odd 16-bit lanes: the latter counts from its own top */
    vec even = _mm512_lzcnt_epi32(_mm512_and_si512(z, all32(0xffff)));
    vec both = _mm512_or_si512(even, _mm512_slli_epi32(_mm512_lzcnt_epi32(z), 16));
    vec n = _mm512_sub_epi16(all32(16 << 16 | 32), both), half = _mm512_srli_epi16(z, 1);
    vec k = _mm512_maskz_sub_epi16(large, n, all16((int)(2 + top)));
    vec lead = _mm512_srlv_epi16(half, k);
    *raw_bits = k;
    *raw = _mm512_maskz_sub_epi16(large, half, _mm512_sllv_epi16(lead, k));
    vec t = _mm512_add_epi16(_mm512_slli_epi16(n, top + 1), all16(SMALL - (5 << (top + 1)) - (2 << top)));
    t = _mm512_add_epi16(t, _mm512_add_epi16(lead, lead));
    return _mm512_mask_add_epi16(z, large, t, _mm512_and_si512(z, all16(1)));
}

INLINE void tokens16(const vec *z, unsigned top, uint8_t *tokens, raw_writer_t *w)
{
    vec raw[2], bits[2];
    vec t0 = token16(z[0], top, &raw[0], &bits[0]), t1 = token16(z[1], top, &raw[1], &bits[1]);
    store(tokens, pack16(t0, t1));
    vec k = pack16(bits[0], bits[1]);
    __mmask64 whole = _mm512_cmpge_epu8_mask(k, all8(8));
    vec low = pack16(_mm512_and_si512(raw[0], all16(255)), _mm512_and_si512(raw[1], all16(255)));
    vec high = pack16(_mm512_srli_epi16(raw[0], 8), _mm512_srli_epi16(raw[1], 8));
    store(w->bytes, _mm512_maskz_compress_epi8(whole, low));
    w->bytes += ones(whole);
    uint64_t values[8], masks[8];
    store(values, _mm512_mask_mov_epi8(low, whole, high));
    store(masks, remainder_masks(k));
    put_remainders(w, values, masks);
}

/* Raw bits of each of 64 tokens, and its leading bits; small tokens are their own lead, less bit 0. */
INLINE vec token_lengths(vec t, unsigned top, vec *lead)
{
    __mmask64 large = _mm512_cmpge_epu8_mask(t, all8(SMALL));
    vec length = _mm512_srli_epi16(_mm512_sub_epi8(t, all8(SMALL)), top + 1);
    vec half = _mm512_and_si512(_mm512_srli_epi16(t, 1), all8(0x7f));
    *lead = _mm512_or_si512(_mm512_and_si512(half, all8((1 << top) - 1)), all8(1 << top));
    *lead = _mm512_mask_mov_epi8(half, large, *lead);
    return _mm512_maskz_add_epi8(large, _mm512_and_si512(length, all8(0xff >> (top + 1))), all8((int)(3 - top)));
}

/* The remainders of `count` tokens (whole groups): well before they are used, as eight small stores cannot be
 * loaded as one vector until they have reached the cache. False when the stream ends. */
INLINE bool remainders_get(const uint8_t *tokens, size_t count, unsigned top, raw_reader_t *r, uint8_t *remainders)
{
    for (size_t i = 0; i < count; i += LANES) {
        uint64_t values[8], masks[8];
        vec lead;
        if (raw_overrun(r))
            return false;
        store(masks, remainder_masks(token_lengths(load(tokens + i), top, &lead)));
        get_remainders(r, values, masks);
        memcpy(remainders + i, values, LANES);
    }
    return !raw_overrun(r);
}

INLINE void untokens16(const uint8_t *tokens, const uint8_t *remainders, unsigned top, raw_reader_t *r, vec *z)
{
    vec t = load(tokens), remainder = load(remainders), lead, k = token_lengths(t, top, &lead);
    __mmask64 whole = _mm512_cmpge_epu8_mask(k, all8(8));
    vec low = _mm512_mask_expand_epi8(remainder, whole, load(r->bytes));
    vec high = _mm512_maskz_mov_epi8(whole, remainder), zero = _mm512_setzero_si512();
    r->bytes += ones(whole);
    vec sign = spread(_mm512_and_si512(t, all8(1)));
    low = spread(low), high = spread(high), lead = spread(lead), k = spread(k);
#define HALF(unpack)                                                                                               \
    _mm512_or_si512(_mm512_slli_epi16(_mm512_or_si512(_mm512_sllv_epi16(unpack(lead, zero), unpack(k, zero)),       \
                                                      unpack(low, high)), 1), unpack(sign, zero))
    z[0] = HALF(_mm512_unpacklo_epi8);
    z[1] = HALF(_mm512_unpackhi_epi8);
#undef HALF
}

INLINE vec token32(vec z, unsigned top, vec *raw, vec *raw_bits)
{
    __mmask16 large = _mm512_cmpge_epu32_mask(z, all32(SMALL));
    vec n = _mm512_sub_epi32(all32(32), _mm512_lzcnt_epi32(z)), half = _mm512_srli_epi32(z, 1);
    vec k = _mm512_maskz_sub_epi32(large, n, all32(2 + top)), lead = _mm512_srlv_epi32(half, k);
    *raw_bits = k;
    *raw = _mm512_maskz_sub_epi32(large, half, _mm512_sllv_epi32(lead, k));
    vec t = _mm512_add_epi32(_mm512_slli_epi32(n, top + 1), all32((uint32_t)(SMALL - (5 << (top + 1)) - (2 << top))));
    t = _mm512_add_epi32(t, _mm512_add_epi32(lead, lead));
    return _mm512_mask_add_epi32(z, large, t, _mm512_and_si512(z, all32(1)));
}

/* Which of the 4 bytes of each lane are whole raw bytes, for `eights` = raw bits & 24. */
INLINE __mmask64 whole_bytes(vec eights)
{
    return _mm512_movepi8_mask(_mm512_sub_epi32(_mm512_sllv_epi32(all32(1), eights), all32(1)));
}

INLINE void tokens32(const vec *z, unsigned top, uint8_t *tokens, raw_writer_t *w)
{
    vec t[4], k[4], remainder[4];
    for (int j = 0; j < 4; j++) {
        vec raw;
        t[j] = token32(z[j], top, &raw, &k[j]);
        vec eights = _mm512_and_si512(k[j], all32(24));
        __mmask64 whole = whole_bytes(eights);
        remainder[j] = _mm512_srlv_epi32(raw, eights);
        store(w->bytes, _mm512_maskz_compress_epi8(whole, raw));
        w->bytes += ones(whole);
    }
    store(tokens, pack32(t[0], t[1], t[2], t[3]));
    uint64_t values[8], masks[8];
    store(values, pack32(remainder[0], remainder[1], remainder[2], remainder[3]));
    store(masks, remainder_masks(pack32(k[0], k[1], k[2], k[3])));
    put_remainders(w, values, masks);
}

INLINE void untokens32(const uint8_t *tokens, const uint8_t *remainders, unsigned top, raw_reader_t *r, vec *z)
{
    vec lead, k = token_lengths(load(tokens), top, &lead);
    uint8_t lengths[LANES], leads[LANES];
    store(lengths, k);
    store(leads, lead);
    for (int j = 0; j < 4; j++) {
#define WIDEN(from) _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)((const uint8_t *)(from) + 16 * j)))
        vec bits = WIDEN(lengths), eights = _mm512_and_si512(bits, all32(24));
        __mmask64 whole = whole_bytes(eights);
        vec raw = _mm512_maskz_expand_epi8(whole, load(r->bytes));
        r->bytes += ones(whole);
        raw = _mm512_or_si512(raw, _mm512_sllv_epi32(WIDEN(remainders), eights));
        vec value = _mm512_or_si512(_mm512_sllv_epi32(WIDEN(leads), bits), raw);
        z[j] = _mm512_or_si512(_mm512_add_epi32(value, value), _mm512_and_si512(WIDEN(tokens), all32(1)));
#undef WIDEN
    }
}

/* ---- whole blocks: full groups where they lie, the last one through a padded copy ---- */
INLINE vec base_at(const uint8_t *base, size_t offset)
{
    return base ? load(base + offset) : _mm512_setzero_si512();
}

INLINE void tokens_make_group(const uint8_t *data, const uint8_t *base, int width, unsigned top,
                              uint8_t *tokens, raw_writer_t *w)
{
    vec z[4];
    for (int j = 0; j < width; j++) {
        vec x = load(data + 64 * j), y = base_at(base, 64 * (size_t)j);
        z[j] = width == 2 ? difference16(x, y) : difference32(x, y);
    }
    if (width == 2)
        tokens16(z, top, tokens, w);
    else
        tokens32(z, top, tokens, w);
}

INLINE void tokens_make_with(const block_t *b, size_t at, size_t count, int width, unsigned top,
                             uint8_t *tokens, raw_writer_t *stream)
{
    raw_writer_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width;
    const uint8_t *data = b->data + at * step, *base = b->base ? b->base + at * step : NULL;
    for (; i + LANES <= count; i += LANES)
        tokens_make_group(data + i * step, base ? base + i * step : NULL, width, top, tokens + i, &local);
    if (i < count) {
        uint8_t x[4 * LANES] = {0}, y[4 * LANES] = {0};
        memcpy(x, data + i * step, (count - i) * step);
        if (base)
            memcpy(y, base + i * step, (count - i) * step);
        tokens_make_group(x, y, width, top, tokens + i, &local);
    }
    *stream = local;
}

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

static int fast_tokens_make(const block_t *b, size_t at, size_t count, uint8_t *tokens, raw_writer_t *w)
{
#define CALL(W, T) tokens_make_with(b, at, count, W, T, tokens, w)
    FOR_TOKENS(b->element, b->top, CALL)
#undef CALL
    return 0;
}

INLINE void tokens_undo_group(const uint8_t *tokens, const uint8_t *remainders, const uint8_t *base, int width,
                              unsigned top, raw_reader_t *r, uint8_t *out)
{
    vec z[4];
    if (width == 2)
        untokens16(tokens, remainders, top, r, z);
    else
        untokens32(tokens, remainders, top, r, z);
    for (int j = 0; j < width; j++) {
        vec y = base_at(base, 64 * (size_t)j);
        store(out + 64 * j, width == 2 ? undo16(z[j], y) : undo32(z[j], y));
    }
}

/* `tokens` has room for whole groups. */
INLINE int tokens_undo_with(const block_t *b, size_t at, size_t count, int width, unsigned top,
                            uint8_t *tokens, raw_reader_t *stream, uint8_t *out)
{
    raw_reader_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width, padded = (count + LANES - 1) / LANES * LANES;
    const uint8_t *base = b->base ? b->base + at * step : NULL;
    uint8_t remainders[CHUNK];
    out += at * step;
    memset(tokens + count, 0, padded - count);
    if (!remainders_get(tokens, padded, top, &local, remainders))
        return 0;
    for (; i + LANES <= count && !raw_overrun(&local); i += LANES)
        tokens_undo_group(tokens + i, remainders + i, base ? base + i * step : NULL, width, top, &local,
                          out + i * step);
    if (i < count && !raw_overrun(&local)) {
        uint8_t x[4 * LANES], y[4 * LANES] = {0};
        if (base)
            memcpy(y, base + i * step, (count - i) * step);
        tokens_undo_group(tokens + i, remainders + i, y, width, top, &local, x);
        memcpy(out + i * step, x, (count - i) * step);
    }
    *stream = local;
    return !raw_overrun(&local);
}

static int fast_tokens_undo(const block_t *b, size_t at, size_t count, uint8_t *tokens, raw_reader_t *r, uint8_t *out)
{
#define CALL(W, T) return tokens_undo_with(b, at, count, W, T, tokens, r, out)
    FOR_TOKENS(b->element, b->top, CALL)
#undef CALL
    return UNHANDLED;
}

/* Differences lie padded to whole groups behind each other: what follows the last may be anything but is in reach. */
INLINE void values_make_with(uint8_t *values, size_t count, int width, unsigned top, uint8_t *tokens, raw_writer_t *stream)
{
    raw_writer_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t step = (size_t)width;
    memset(values + count * step, 0, LANES * step);
    for (size_t i = 0; i < count; i += LANES) {
        vec z[4];
        for (int j = 0; j < width; j++)
            z[j] = load(values + i * step + 64 * (size_t)j);
        if (width == 2)
            tokens16(z, top, tokens + i, &local);
        else
            tokens32(z, top, tokens + i, &local);
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
    uint8_t remainders[CHUNK];
    memset(tokens + count, 0, LANES);
    for (size_t i = 0; i < count; i += LANES) {
        size_t left = (count - i + LANES - 1) / LANES * LANES;
        vec z[4];
        if (i % CHUNK == 0 && !remainders_get(tokens + i, left < CHUNK ? left : CHUNK, top, &local, remainders))
            return 0;
        if (raw_overrun(&local))
            return 0;
        if (width == 2)
            untokens16(tokens + i, remainders + i % CHUNK, top, &local, z);
        else
            untokens32(tokens + i, remainders + i % CHUNK, top, &local, z);
        for (int j = 0; j < width; j++)
            store(values + i * step + 64 * (size_t)j, z[j]);
    }
    *stream = local;
    return !raw_overrun(&local);
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
        if (i + LANES > count) {
            memcpy(x, data, (count - i) * step);
            if (base)
                memcpy(y, base, (count - i) * step);
            data = x;
            base = y;
        }
        uint64_t bits = 0;
        uint8_t *to = values + differ * step;
        for (int j = 0; j < width; j++) {
            vec v = load(data + 64 * j), u = base_at(base, 64 * (size_t)j);
            if (width == 2) {
                vec z = top ? difference16(v, u) : v;
                __mmask32 m = _mm512_test_epi16_mask(z, z);
                store(to, _mm512_maskz_compress_epi16(m, z));
                to += 2 * ones(m);
                bits |= (uint64_t)m << (32 * j);
            } else {
                vec z = top ? difference32(v, u) : v;
                __mmask16 m = _mm512_test_epi32_mask(z, z);
                store(to, _mm512_maskz_compress_epi32(m, z));
                to += 4 * ones(m);
                bits |= (uint64_t)m << (16 * j);
            }
        }
        flags[i / LANES] = bits;
        store(kept + differ, _mm512_maskz_compress_epi8(bits, load(contexts + i)));
        differ += ones(bits);
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
    for (size_t at = 0; at < count; at += LANES) {
        uint64_t bits = flags[at / LANES];
        store(kept + differ, _mm512_maskz_compress_epi8(bits, load(groups + at)));
        differ += ones(bits);
    }
    return differ;
}

INLINE void sparse_undo_with(const block_t *b, size_t count, int width, unsigned top, const uint64_t *flags,
                             const uint8_t *values, uint8_t *out)
{
    size_t step = (size_t)width;
    for (size_t i = 0; i < count; i += LANES) {
        const uint8_t *base = b->base && top ? b->base + i * step : NULL;
        uint8_t x[4 * LANES], y[4 * LANES] = {0}, *to = out + i * step;
        uint64_t bits = flags[i / LANES];
        if (i + LANES > count) {
            if (base)
                memcpy(y, base, (count - i) * step);
            base = y;
            to = x;
        }
        for (int j = 0; j < width; j++) {
            vec u = base_at(base, 64 * (size_t)j), v = load(values);
            if (width == 2) {
                __mmask32 m = (__mmask32)(bits >> (32 * j));
                v = _mm512_maskz_expand_epi16(m, v);
                store(to + 64 * j, top ? undo16(v, u) : v);
                values += 2 * ones(m);
            } else {
                __mmask16 m = (__mmask16)(bits >> (16 * j));
                v = _mm512_maskz_expand_epi32(m, v);
                store(to + 64 * j, top ? undo32(v, u) : v);
                values += 4 * ones(m);
            }
        }
        if (to == x)
            memcpy(out + i * step, x, (count - i) * step);
    }
}

static int fast_sparse_undo(const block_t *b, size_t count, const uint64_t *flags, const uint8_t *values, uint8_t *out)
{
#define CALL(W, T) sparse_undo_with(b, count, W, T, flags, values, out)
    FOR_SPARSE(b->element, b->top, CALL)
#undef CALL
    return 0;
}

/* ---- split ---- */
static bool any_negative(const block_t *b, size_t at, size_t count)
{
    size_t width = (size_t)element_width(b->element), size = count * width, i = 0;
    const uint8_t *data = b->data + at * width;
    vec seen = _mm512_setzero_si512();
    for (; i + 64 <= size; i += 64)
        seen = _mm512_or_si512(seen, load(data + i));
    /* bit width - 1 of every `width` bits: the bytes that hold signs */
    bool found = _mm512_movepi8_mask(seen) & (~0ull / ((1ull << width) - 1) << (width - 1));
    for (i += width - 1; i < size; i += width)
        found |= data[i] >> 7;
    return found;
}

INLINE vec low_bytes3(void) /* bytes 0-2 of each 32-bit lane, one lane after another */
{
    uint8_t order[64] = {0};
    for (int i = 0; i < 48; i++)
        order[i] = (uint8_t)(i / 3 * 4 + i % 3);
    return load(order);
}

INLINE void split16(const uint8_t *data, bool is_unsigned, uint8_t *symbols, raw_writer_t *w)
{
    vec r[2];
    for (int j = 0; j < 2; j++) {
        vec v = load(data + 64 * j);
        r[j] = _mm512_or_si512(_mm512_add_epi16(v, v), _mm512_srli_epi16(v, 15));
    }
    store(symbols, pack16(_mm512_srli_epi16(r[0], 8), _mm512_srli_epi16(r[1], 8)));
    vec low = pack16(_mm512_and_si512(r[0], all16(255)), _mm512_and_si512(r[1], all16(255)));
    if (is_unsigned) {
        uint8_t lows[LANES];
        store(lows, low);
        put_sevens(w, lows, LANES);
    } else {
        store(w->bytes, low);
        w->bytes += 64;
    }
}

INLINE void split32(const uint8_t *data, bool is_unsigned, uint8_t *symbols, raw_writer_t *w, vec order)
{
    vec r[4], low[4], high[4];
    for (int j = 0; j < 4; j++) {
        r[j] = _mm512_rol_epi32(load(data + 64 * j), 1);
        high[j] = _mm512_srli_epi32(r[j], 24);
        low[j] = _mm512_and_si512(r[j], all32(255));
    }
    store(symbols, pack32(high[0], high[1], high[2], high[3]));
    if (is_unsigned) {
        uint8_t lows[LANES];
        store(lows, pack32(low[0], low[1], low[2], low[3]));
        put_sevens(w, lows, LANES);
    }
    for (int j = 0; j < 4; j++)
        if (is_unsigned) {
            _mm256_storeu_si256((void *)w->bytes, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r[j], 8)));
            w->bytes += 32;
        } else {
            store(w->bytes, _mm512_permutexvar_epi8(order, r[j]));
            w->bytes += 48;
        }
}

/* The loops with constants. */
INLINE void split_make_with(const uint8_t *data, size_t count, int width, bool is_unsigned, uint8_t *symbols,
                            raw_writer_t *stream)
{
    raw_writer_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width;
    vec order = low_bytes3();
    for (; i + LANES <= count; i += LANES)
        if (width == 2)
            split16(data + i * step, is_unsigned, symbols + i, &local);
        else
            split32(data + i * step, is_unsigned, symbols + i, &local, order);
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

/* 64 elements; `lows` has their lowest bytes where they are unsigned, and is NULL where the byte stream does. */
INLINE void join16(const uint8_t *symbols, const uint8_t *lows, raw_reader_t *r, uint8_t *out)
{
    vec low = spread(load(lows ? lows : r->bytes)), high = spread(load(symbols));
    vec a = _mm512_unpacklo_epi8(low, high), b = _mm512_unpackhi_epi8(low, high);
    r->bytes += lows ? 0 : LANES;
    store(out, _mm512_or_si512(_mm512_srli_epi16(a, 1), _mm512_slli_epi16(a, 15)));
    store(out + 64, _mm512_or_si512(_mm512_srli_epi16(b, 1), _mm512_slli_epi16(b, 15)));
}

INLINE void join32(const uint8_t *symbols, const uint8_t *lows, raw_reader_t *r, uint8_t *out, vec order)
{
    for (int j = 0; j < 4; j++) {
        vec v = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(symbols + 16 * j))), 24);
        if (lows) {
            vec middle = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)r->bytes));
            vec low = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(lows + 16 * j)));
            v = _mm512_or_si512(v, _mm512_or_si512(_mm512_slli_epi32(middle, 8), low));
            r->bytes += 32;
        } else {
            v = _mm512_or_si512(v, _mm512_maskz_permutexvar_epi8(0x7777777777777777ull, order, load(r->bytes)));
            r->bytes += 48;
        }
        store(out + 64 * j, _mm512_ror_epi32(v, 1));
    }
}

/* The loops with constants. */
INLINE void split_undo_with(size_t count, int width, bool is_unsigned, const uint8_t *symbols, raw_reader_t *stream,
                            uint8_t *out)
{
    raw_reader_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width;
    uint8_t lows[CHUNK]; /* well before use, as in remainders_get() */
    if (is_unsigned)
        get_sevens(&local, lows, count / LANES * LANES);
    uint8_t from[64] = {0};
    for (int j = 0; j < 64; j++)
        from[j] = (uint8_t)(j / 4 * 3 + j % 4);
    vec order = load(from);
    for (; i + LANES <= count; i += LANES)
        if (width == 2)
            join16(symbols + i, is_unsigned ? lows + i : NULL, &local, out + i * step);
        else
            join32(symbols + i, is_unsigned ? lows + i : NULL, &local, out + i * step, order);
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

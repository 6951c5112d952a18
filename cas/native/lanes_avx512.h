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

static int fast_contexts(const block_t *b, size_t count, uint8_t *out)
{
    int width = element_width(b->element);
    size_t i = 0;
    if ((width != 2 && width != 4) || !(b->element & ELEMENT_FLOAT) || b->source == SOURCE_NONE)
        return UNHANDLED;
    const uint8_t *x = b->source & SOURCE_BASE ? b->base : b->sibling, *y = x;
    bool both = b->source == SOURCE_BOTH;
    if (both)
        y = b->sibling;
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

#include "avx512_symbols.h"
#include "avx512_tokens.h"
#include "avx512_blocks.h"
#include "avx512_split.h"

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

/* `b` where the 32-bit lanes of `by` are negative. */
INLINE vec blend_by_sign(vec a, vec b, vec by)
{
    return _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _mm256_castsi256_ps(by)));
}

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
static int fast_contexts(const block_t *b, size_t count, uint8_t *out)
{
    int width = element_width(b->element);
    size_t i = 0;
    if ((width != 2 && width != 4) || !(b->element & ELEMENT_FLOAT))
        return UNHANDLED;
    const uint8_t *x = b->source & SOURCE_BASE ? b->base : b->sibling, *y = x;
    bool both = b->source == SOURCE_BOTH;
    if (both)
        y = b->sibling;
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

/* `lut` ascends by ones from 0. Where it does so within 32 bytes, these are a table; else a byte's group is how many
 * groups, but the first, start at or below it. */
static void map_bytes(uint8_t *bytes, size_t count, const uint8_t *lut)
{
    vec starts[GROUPS_MAX];
    int groups = 0, first = 0;
    for (int c = 255; c > 0; c--)
        if (lut[c] != lut[c - 1]) {
            starts[groups++] = all8(c);
            first = c - 1;
        }
    if (first + 32 <= 256 && lut[first + 31] == lut[255]) {
        vec low = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(lut + first)));
        vec high = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(lut + first + 16)));
        for (size_t i = 0; i < count; i += 32) { /* a shuffle gives 0 for bytes from 128 on, and else looks at 4 bits */
            vec v = _mm256_min_epu8(_mm256_subs_epu8(load(bytes + i), all8(first)), all8(31));
            vec above = _mm256_cmpgt_epi8(v, all8(15));
            store(bytes + i, _mm256_blendv_epi8(_mm256_shuffle_epi8(low, v), _mm256_shuffle_epi8(high, v), above));
        }
        return;
    }
    for (size_t i = 0; i < count; i += 32) {
        vec v = load(bytes + i), group = _mm256_setzero_si256();
        for (int g = 0; g < groups; g++)
            group = _mm256_sub_epi8(group, _mm256_cmpeq_epi8(_mm256_max_epu8(v, starts[g]), v));
        store(bytes + i, group);
    }
}

/* Of the symbols first, first + 2, first + 4 ... that run of counted ones that has the most: half of its first, and how
 * many follow. */
static void counted_run(const uint32_t *counts, unsigned first, uint8_t *start, uint8_t *more)
{
    uint32_t best = 0, sum = 0;
    unsigned begin = first;
    *start = 128; /* no symbol's half */
    *more = 0;
    for (unsigned i = first; i < SYMBOLS; i += 2) {
        begin = counts[i] ? begin : i + 2;
        sum = counts[i] ? sum + counts[i] : 0;
        if (sum > best) {
            best = sum;
            *start = (uint8_t)(begin / 2);
            *more = (uint8_t)((i - begin) / 2);
        }
    }
}

/* Most symbols are in a run of counted ones; the others are looked up one by one. Even and odd ones, which the signs of
 * differences tell apart, have runs of their own. */
static void count_missing(counts_t *counts, unsigned groups, const uint8_t *group_of, const uint8_t *symbols,
                          size_t count)
{
    _Static_assert(GROUPS_MADE <= 8, "16 runs");
    uint8_t start[16] = {0}, more[16] = {0};
    for (unsigned i = 0; i < 2 * groups; i++)
        counted_run(counts[i / 2], i % 2, &start[i / 2 + 8 * (i % 2)], &more[i / 2 + 8 * (i % 2)]);
    vec starts = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)start));
    vec mores = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)more));
    for (size_t at = 0; at < count; at += 32) {
        vec s = load(symbols + at), run = either(load(group_of + at), both_of(_mm256_slli_epi16(s, 3), all8(8)));
        vec half = both_of(_mm256_srli_epi16(s, 1), all8(127)), span = _mm256_shuffle_epi8(mores, run);
        vec beyond = _mm256_sub_epi8(half, _mm256_shuffle_epi8(starts, run));
        unsigned outside = ~(unsigned)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(beyond, span), span));
        for (outside = at + 32 > count ? _bzhi_u32(outside, (unsigned)(count - at)) : outside; outside;
             outside &= outside - 1) {
            size_t i = at + _tzcnt_u32(outside);
            if (counts[group_of[i]][symbols[i]] == 0)
                counts[group_of[i]][symbols[i]] = 1;
        }
    }
}

#include "avx2_symbols.h"
#include "avx2_tokens.h"
#include "avx2_blocks.h"
#include "avx2_split.h"

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

#include "avx2_symbols.h"
#include "avx2_tokens.h"
#include "avx2_blocks.h"
#include "avx2_split.h"

/* Symbols and flags with AVX2: the rANS coders. Included by lanes_avx2.h only. */

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

/* The low words of the lanes whose `keep` is 0, in lane order, to end at `p`; shifts those lanes. */
INLINE uint16_t *words_put(uint16_t *p, vec *x, vec keep)
{
    unsigned mask = signs(keep) ^ 255;
    vec low = both_of(*x, all32(0xffff));
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storeu_si128((void *)(p - 8), _mm_shuffle_epi8(words, _mm_load_si128((const void *)words_to_end[mask])));
    *x = _mm256_blendv_epi8(_mm256_srli_epi32(*x, 16), *x, keep);
    return p - (unsigned)_mm_popcnt_u32(mask);
}

INLINE vec words_get(const uint8_t **p, vec x)
{
    vec empty = _mm256_cmpgt_epi32(all32(STATE_MIN), x);
    unsigned mask = signs(empty);
    __m128i words = _mm_loadu_si128((const void *)*p);
    words = _mm_shuffle_epi8(words, _mm_load_si128((const void *)words_expand[mask]));
    *p += 2 * (unsigned)_mm_popcnt_u32(mask);
    return _mm256_blendv_epi8(x, either(_mm256_slli_epi32(x, 16), _mm256_cvtepu16_epi32(words)), empty);
}

#define EIGHT(step) step(0, 0) step(0, 1) step(1, 0) step(1, 1) step(2, 0) step(2, 1) step(3, 0) step(3, 1)
#define EIGHT_DOWN(step) step(3, 1) step(3, 0) step(2, 1) step(2, 0) step(1, 1) step(1, 0) step(0, 1) step(0, 0)

/* Eight entries of a table, one by one: the instruction that gathers them takes longer on Zen, and on Intel's
 * processors since it was mended. */
INLINE vec eight_of(const uint32_t *table, const size_t *i)
{
    __m128i low = _mm_cvtsi32_si128((int)table[i[0]]), high = _mm_cvtsi32_si128((int)table[i[4]]);
    low = _mm_insert_epi32(low, (int)table[i[1]], 1);
    low = _mm_insert_epi32(low, (int)table[i[2]], 2);
    low = _mm_insert_epi32(low, (int)table[i[3]], 3);
    high = _mm_insert_epi32(high, (int)table[i[5]], 1);
    high = _mm_insert_epi32(high, (int)table[i[6]], 2);
    high = _mm_insert_epi32(high, (int)table[i[7]], 3);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* By every fourth place. */
INLINE vec entries_of(const uint32_t *table, const uint16_t *places)
{
    size_t index[8];
    for (int i = 0; i < 8; i++)
        index[i] = places[4 * i];
    return eight_of(table, index);
}

/* By the 32-bit lanes of `index`. */
INLINE vec entries_at(const uint32_t *table, vec index)
{
    __m128i low = _mm256_castsi256_si128(index), high = _mm256_extracti128_si256(index, 1);
    uint64_t pairs[4] = {(uint64_t)_mm_cvtsi128_si64(low), (uint64_t)_mm_extract_epi64(low, 1),
                         (uint64_t)_mm_cvtsi128_si64(high), (uint64_t)_mm_extract_epi64(high, 1)};
    size_t at[8];
    for (int i = 0; i < 4; i++) {
        at[2 * i] = (uint32_t)pairs[i];
        at[2 * i + 1] = pairs[i] >> 32;
    }
    return eight_of(table, at);
}

enum { PLACED = 1024 }; /* symbols whose places in the tables are found at a time */

/* 256 * group + symbol of each. */
INLINE void places_of(const uint8_t *symbols, const uint8_t *groups, size_t count, uint16_t *places)
{
    for (size_t i = 0; i < count; i += 32) {
        vec s = load(symbols + i), g = groups ? load(groups + i) : _mm256_setzero_si256();
        vec low = _mm256_unpacklo_epi8(s, g), high = _mm256_unpackhi_epi8(s, g);
        store(places + i, _mm256_permute2x128_si256(low, high, 0x20));
        store(places + i + 16, _mm256_permute2x128_si256(low, high, 0x31));
    }
}

static uint16_t *symbols_encode(const uint8_t *symbols, const uint8_t *groups, size_t count, const uint32_t *table,
                                uint16_t *end, states_t *s)
{
    uint16_t places[PLACED], *p = end;
    vec x[8];
    for (int j = 0; j < 8; j++)
        x[j] = load(s->lane + 8 * j);
    for (size_t at = count, left = 0; at; left -= LANES) {
        if (left == 0) {
            left = (at - 1) % PLACED + 1; /* the last part may be short */
            places_of(symbols + at - left, groups ? groups + at - left : NULL, left, places);
        }
        at -= LANES;
        const uint16_t *from = places + left - LANES;
#define STEP(j, h)                                                                                \
    {                                                                                             \
        vec *state = &x[2 * j + h], entry = entries_of(table, from + 32 * h + j);                 \
        vec f = both_of(entry, all32(0xffff)), rest;                                              \
        /* full unless f << 19 > state; all below 2^31 */                                         \
        p = words_put(p, state, _mm256_cmpgt_epi32(_mm256_slli_epi32(f, 19), *state));            \
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
        vec entry = entries_at(table, index), f = both_of(_mm256_srli_epi32(entry, 8), all32(SCALE - 1)); \
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

/* Those of 8 numbers that belong to the groups in byte j of every 32-bit lane: the permutation looks at 3 bits. */
INLINE vec of_groups(vec numbers, vec groups, int j)
{
    return _mm256_permutevar8x32_epi32(numbers, _mm256_srli_epi32(groups, 8 * j));
}

/* floor(x / f) as in divide(), for x < f << 16 and f's inverse. */
INLINE vec divide_by(vec x, vec f, vec inverse, vec *rest)
{
    __m256 ratio = _mm256_mul_ps(_mm256_cvtepi32_ps(x), _mm256_castsi256_ps(inverse));
    vec q = _mm256_cvttps_epi32(_mm256_sub_ps(ratio, _mm256_set1_ps(0.25f)));
    vec left = _mm256_sub_epi32(x, _mm256_mullo_epi32(q, f));
    vec fits = _mm256_cmpgt_epi32(f, left);
    *rest = _mm256_sub_epi32(left, _mm256_andnot_si256(fits, f));
    return _mm256_add_epi32(q, _mm256_add_epi32(fits, all32(1)));
}

INLINE vec inverses(vec frequencies)
{
    return _mm256_castps_si256(_mm256_div_ps(_mm256_set1_ps(1), _mm256_cvtepi32_ps(frequencies)));
}

static uint16_t *flags_encode(const uint64_t *flags, const uint8_t *groups, size_t count, const uint32_t *same,
                              uint16_t *p, states_t *s)
{
    _Static_assert(GROUPS_MADE <= 8, "of_groups()");
    vec x[8], equal = load(same), other = _mm256_sub_epi32(all32(FLAG_SCALE), equal);
    vec equal_inverse = inverses(equal), other_inverse = inverses(other);
    vec fourth = _mm256_set_epi32(1 << 28, 1 << 24, 1 << 20, 1 << 16, 1 << 12, 1 << 8, 1 << 4, 1); /* bits of lanes */
    for (int j = 0; j < 8; j++)
        x[j] = load(s->lane + 8 * j);
    for (size_t at = count; at;) {
        at -= LANES;
        uint64_t bits = flags[at / LANES];
        vec set[2] = {all32((uint32_t)bits), all32((uint32_t)(bits >> 32))};
#define STEP(j, h)                                                                                          \
    {                                                                                                       \
        vec *state = &x[2 * j + h], group = load(groups + at + 32 * h), same_f = of_groups(equal, group, j), rest; \
        vec each = _mm256_slli_epi32(fourth, j), differs = _mm256_cmpeq_epi32(both_of(set[h], each), each); \
        vec f = _mm256_blendv_epi8(same_f, _mm256_sub_epi32(all32(FLAG_SCALE), same_f), differs);           \
        vec equal_by = of_groups(equal_inverse, group, j), other_by = of_groups(other_inverse, group, j);   \
        vec keep = _mm256_cmpgt_epi32(_mm256_slli_epi32(f, 16), *state);                                    \
        if (signs(keep) != 255)                                                                             \
            p = words_put(p, state, keep);                                                                  \
        vec q = divide_by(*state, f, _mm256_blendv_epi8(equal_by, other_by, differs), &rest);               \
        rest = _mm256_add_epi32(rest, both_of(differs, same_f));                                            \
        *state = _mm256_add_epi32(_mm256_slli_epi32(q, FLAG_BITS), rest);                                   \
    }
        EIGHT_DOWN(STEP)
#undef STEP
    }
    for (int j = 0; j < 8; j++)
        store(s->lane + 8 * j, x[j]);
    return p;
}

/* `many`: more than 8 groups, as other encoders may make them. */
INLINE bool flags_decode_with(const uint8_t **words, const uint8_t *end, const uint8_t *groups, bool many,
                              uint64_t *flags, size_t count, const uint32_t *same, states_t *s)
{
    const uint8_t *p = *words;
    vec x[8], low = load(same), high = load(same + 8);
    for (int j = 0; j < 8; j++)
        x[j] = load(s->lane + 8 * j);
    for (size_t at = 0; at < count && p <= end; at += LANES) {
        uint64_t bits = 0;
#define STEP(j, h)                                                                                              \
    {                                                                                                           \
        vec *state = &x[2 * j + h], group = load(groups + at + 32 * h), f = of_groups(low, group, j);           \
        if (many) /* bit 3 of the group says which */                                                           \
            f = blend_by_sign(f, of_groups(high, group, j), _mm256_slli_epi32(group, 28 - 8 * (j)));            \
        vec slot = both_of(*state, all32(FLAG_SCALE - 1)), equal = _mm256_cmpgt_epi32(f, slot);                 \
        slot = _mm256_sub_epi32(slot, _mm256_andnot_si256(equal, f));                                           \
        f = _mm256_blendv_epi8(_mm256_sub_epi32(all32(FLAG_SCALE), f), f, equal);                               \
        bits |= _pdep_u64(~signs(equal) & 255, EVERY_FOURTH << j) << (32 * h);                                  \
        *state = _mm256_add_epi32(_mm256_mullo_epi32(f, _mm256_srli_epi32(*state, FLAG_BITS)), slot);           \
        if (signs(_mm256_cmpgt_epi32(all32(STATE_MIN), *state))) /* seldom: most flags take little of a bit */  \
            *state = words_get(&p, *state);                                                                     \
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

static bool flags_decode(const uint8_t **words, const uint8_t *end, const uint8_t *groups, unsigned tables,
                         uint64_t *flags, size_t count, const uint32_t *same, states_t *s)
{
    return tables > 8 ? flags_decode_with(words, end, groups, true, flags, count, same, s)
                      : flags_decode_with(words, end, groups, false, flags, count, same, s);
}

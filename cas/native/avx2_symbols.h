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

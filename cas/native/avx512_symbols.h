/* Symbols and flags with AVX-512: the rANS coders. Included by lanes_avx512.h only. */

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

static bool flags_decode(const uint8_t **words, const uint8_t *end, const uint8_t *groups, unsigned tables,
                         uint64_t *flags, size_t count, const uint32_t *same, states_t *s)
{
    (void)tables;
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

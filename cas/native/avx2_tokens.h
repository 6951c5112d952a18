/* Differences and their tokens with AVX2, 64 at a time. Included by lanes_avx2.h only. */

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

/* Differences and their tokens with AVX2, 64 at a time. Included by lanes_avx2.h only. */

/* ---- differences: half of the zigzag number, and -1 where that is odd ---- */
typedef struct {
    vec half, odd;
} difference_t;

INLINE vec ordered16(vec v) { return _mm256_xor_si256(v, _mm256_srli_epi16(_mm256_srai_epi16(v, 15), 1)); }
INLINE vec ordered32(vec v) { return _mm256_xor_si256(v, _mm256_srli_epi32(_mm256_srai_epi32(v, 31), 1)); }

/* Turning both signs where the base's is set makes differences away from zero positive. */
INLINE difference_t difference16(vec value, vec base)
{
    vec sign = both_of(base, all16(0x8000)), v = ordered16(_mm256_xor_si256(value, sign));
    vec d = _mm256_sub_epi16(v, _mm256_xor_si256(base, sign)), odd = _mm256_srai_epi16(d, 15);
    return (difference_t){_mm256_xor_si256(d, odd), odd};
}

INLINE vec undo16(difference_t d, vec base)
{
    vec sign = both_of(base, all16(0x8000)), magnitude = _mm256_xor_si256(base, sign);
    return _mm256_xor_si256(ordered16(_mm256_add_epi16(magnitude, _mm256_xor_si256(d.half, d.odd))), sign);
}

INLINE difference_t difference32(vec value, vec base)
{
    vec sign = both_of(base, all32(0x80000000)), v = ordered32(_mm256_xor_si256(value, sign));
    vec d = _mm256_sub_epi32(v, _mm256_xor_si256(base, sign)), odd = _mm256_srai_epi32(d, 31);
    return (difference_t){_mm256_xor_si256(d, odd), odd};
}

INLINE vec undo32(difference_t d, vec base)
{
    vec sign = both_of(base, all32(0x80000000)), magnitude = _mm256_xor_si256(base, sign);
    return _mm256_xor_si256(ordered32(_mm256_add_epi32(magnitude, _mm256_xor_si256(d.half, d.odd))), sign);
}

INLINE difference_t difference_of(vec zigzag) /* in 32-bit lanes */
{
    return (difference_t){_mm256_srli_epi32(zigzag, 1), _mm256_srai_epi32(_mm256_slli_epi32(zigzag, 31), 31)};
}

/* ---- tokens ---- */
INLINE vec remainder_masks(vec raw_bits) /* (1 << (b & 7)) - 1 of each byte b < 32 */
{
    vec masks = _mm256_set_epi32(0x7f3f1f0f, 0x07030100, 0x7f3f1f0f, 0x07030100, 0x7f3f1f0f, 0x07030100, 0x7f3f1f0f,
                                 0x07030100);
    return _mm256_shuffle_epi8(masks, both_of(raw_bits, all8(7)));
}

/* Of 8 differences in 32-bit lanes. A number's length and its leading bits stand at the top of what it is as a float,
 * if it is not rounded up: without the bit below its leading ones it never is. */
INLINE vec token32(difference_t d, bool wide, unsigned top, vec *raw_bits)
{
    vec exact = wide ? _mm256_andnot_si256(_mm256_srli_epi32(d.half, (int)top + 1), d.half) : d.half;
    vec bits = _mm256_castps_si256(_mm256_cvtepi32_ps(exact));
    vec large = _mm256_cmpgt_epi32(d.half, all32(SMALL / 2 - 1)), lead = _mm256_srli_epi32(bits, 23 - (int)top);
    *raw_bits = both_of(large, _mm256_sub_epi32(_mm256_srli_epi32(bits, 23), all32(127 + top)));
    vec t = _mm256_add_epi32(_mm256_add_epi32(lead, lead), all32(SMALL - (130u << (top + 1))));
    return _mm256_sub_epi32(_mm256_blendv_epi8(_mm256_add_epi32(d.half, d.half), t, large), d.odd);
}

/* How many whole bytes each four of 32 elements have, as indices of the tables of quads, in 32-bit lanes. */
INLINE vec quads(vec raw_bits)
{
    vec whole = both_of(_mm256_srli_epi16(raw_bits, 3), all8(3));
    return _mm256_madd_epi16(_mm256_maddubs_epi16(whole, all16(0x0401)), all32(0x00100001));
}

/* The whole bytes of 32 elements in 32-bit lanes, one after another. */
INLINE void put_quads(raw_writer_t *w, const vec *raw, vec raw_bits)
{
    uint32_t quad[8];
    store(quad, quads(raw_bits));
    for (int i = 0; i < 8; i++) {
        __m128i four = i % 2 ? _mm256_extracti128_si256(raw[i / 2], 1) : _mm256_castsi256_si128(raw[i / 2]);
        four = _mm_shuffle_epi8(four, _mm_load_si128((const void *)quad_compress[quad[i]]));
        _mm_storeu_si128((void *)w->bytes, four);
        w->bytes += quad_bytes[quad[i]];
    }
}

/* The reverse, from the tokens' raw bits on. */
INLINE void get_quads(raw_reader_t *r, vec raw_bits, uint8_t *bytes)
{
    uint32_t quad[8];
    store(quad, quads(raw_bits));
    for (int i = 0; i < 8; i++) {
        __m128i four = _mm_loadu_si128((const void *)r->bytes);
        four = _mm_shuffle_epi8(four, _mm_load_si128((const void *)quad_expand[quad[i]]));
        _mm_storeu_si128((void *)(bytes + 16 * i), four);
        r->bytes += quad_bytes[quad[i]];
    }
}

/* Of 64 differences in eight vectors; `wide`: raw bits may hold more than one whole byte. What is above the raw bits is
 * left in place: nobody takes it. */
INLINE void tokens64(const difference_t *d, bool wide, unsigned top, uint8_t *tokens, raw_writer_t *w)
{
    uint64_t values[8], masks[8], wholes[8], lows[8];
    for (int j = 0; j < 8; j += 4) {
        vec t[4], k[4], raw[4], rest[4];
        for (int i = 0; i < 4; i++) {
            raw[i] = d[j + i].half;
            t[i] = token32(d[j + i], wide, top, &k[i]);
            rest[i] = both_of(_mm256_srlv_epi32(raw[i], both_of(k[i], all32(24))), all32(255));
        }
        vec bits = pack32(k[0], k[1], k[2], k[3]);
        store(tokens + 8 * j, pack32(t[0], t[1], t[2], t[3]));
        store(values + j, pack32(rest[0], rest[1], rest[2], rest[3]));
        store(masks + j, remainder_masks(bits));
        if (wide) {
            put_quads(w, raw, bits);
            continue;
        }
        for (int i = 0; i < 4; i++)
            raw[i] = both_of(raw[i], all32(255));
        store(lows + j, pack32(raw[0], raw[1], raw[2], raw[3]));
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

enum { PART = 512 }; /* elements whose bytes beside their tokens are taken at a time */

/* What lies beside the tokens of a part, taken from the streams well before it is used: small stores cannot be
 * loaded as one vector until they have reached the cache. */
typedef struct {
    uint8_t remainders[PART];
    uint8_t lows[4 * PART]; /* whole bytes: one per token of width 2, four of width 4 */
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
            if (width == 2)
                store(wholes + 4 * j, _mm256_cmpgt_epi8(k, all8(7)));
            else
                get_quads(r, k, beside->lows + 4 * (i + 32 * j));
        }
        get_remainders(r, values, masks);
        memcpy(beside->remainders + i, values, LANES);
        if (width == 2) {
            get_whole_bytes(r, lows, wholes, 8);
            memcpy(beside->lows + i, lows, LANES);
        }
    }
    return !raw_overrun(r);
}

/* 32 differences in two vectors; `at`: of their first in the part. */
INLINE void untokens16(const uint8_t *tokens, const beside_t *beside, size_t at, unsigned top, difference_t *d)
{
    vec t = load(tokens), lead, k = token_lengths(t, top, &lead), zero = _mm256_setzero_si256();
    vec whole = _mm256_cmpgt_epi8(k, all8(7)), remainder = load(beside->remainders + at);
    vec low = _mm256_blendv_epi8(remainder, load(beside->lows + at), whole), high = both_of(whole, remainder);
    /* 1 << k: of each byte k < 14 the low and the high byte */
    vec low_power = _mm256_shuffle_epi8(_mm256_setr_epi64x((long long)0x8040201008040201ull, 0,
                                                           (long long)0x8040201008040201ull, 0), k);
    vec high_power = _mm256_shuffle_epi8(_mm256_setr_epi64x(0, 0x8040201008040201ll, 0, 0x8040201008040201ll), k);
    vec odd = _mm256_sub_epi8(zero, both_of(t, all8(1)));
#define SPREAD(v) v = _mm256_permute4x64_epi64(v, 0xd8)
    SPREAD(low), SPREAD(high), SPREAD(lead), SPREAD(odd), SPREAD(low_power), SPREAD(high_power);
#undef SPREAD
#define HALF(unpack)                                                                                               \
    (difference_t){either(_mm256_mullo_epi16(unpack(lead, zero), unpack(low_power, high_power)), unpack(low, high)), \
                   unpack(odd, odd)}
    d[0] = HALF(_mm256_unpacklo_epi8);
    d[1] = HALF(_mm256_unpackhi_epi8);
#undef HALF
}

/* 32 differences in four vectors. */
INLINE void untokens32(const uint8_t *tokens, const beside_t *beside, size_t at, unsigned top, difference_t *d)
{
    vec lead, k = token_lengths(load(tokens), top, &lead);
    uint8_t lengths[32], leads[32];
    store(lengths, k);
    store(leads, lead);
    for (size_t j = 0; j < 4; j++) {
        vec bits = widen8(lengths + 8 * j), odd = _mm256_slli_epi32(widen8(tokens + 8 * j), 31);
        vec raw = either(load(beside->lows + 4 * (at + 8 * j)),
                         _mm256_sllv_epi32(widen8(beside->remainders + at + 8 * j), both_of(bits, all32(24))));
        d[j].half = either(_mm256_sllv_epi32(widen8(leads + 8 * j), bits), raw);
        d[j].odd = _mm256_srai_epi32(odd, 31);
    }
}

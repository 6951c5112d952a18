/* Differences and their tokens with AVX-512, 64 at a time. Included by lanes_avx512.h only. */

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

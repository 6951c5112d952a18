/* Split elements with AVX2. Included by lanes_avx2.h only. */

/* ---- split ---- */
static bool any_negative(const block_t *b, size_t count)
{
    size_t width = (size_t)element_width(b->element), size = count * width, i = 0;
    const uint8_t *data = b->data;
    vec seen = _mm256_setzero_si256();
    for (; i + 32 <= size; i += 32)
        seen = either(seen, load(data + i));
    /* bit width - 1 of every `width` bits: the bytes that hold signs */
    bool found = (unsigned)_mm256_movemask_epi8(seen) & (unsigned)(~0ull / ((1ull << width) - 1) << (width - 1));
    for (i += width - 1; i < size; i += width)
        found |= data[i] >> 7;
    return found;
}

INLINE vec thirds(void) /* bytes 0-2 of each 32-bit lane, one lane after another, in 12 of 16 bytes */
{
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
}

INLINE void split16(const uint8_t *data, bool is_unsigned, uint8_t *symbols, raw_writer_t *w)
{
    vec r[2];
    for (int j = 0; j < 2; j++) {
        vec v = load(data + 32 * j);
        r[j] = either(_mm256_add_epi16(v, v), _mm256_srli_epi16(v, 15));
    }
    store(symbols, pack16(_mm256_srli_epi16(r[0], 8), _mm256_srli_epi16(r[1], 8)));
    vec low = pack16(both_of(r[0], all16(255)), both_of(r[1], all16(255)));
    if (is_unsigned) {
        uint8_t lows[32];
        store(lows, low);
        put_sevens(w, lows, 32);
    } else {
        store(w->bytes, low);
        w->bytes += 32;
    }
}

INLINE void split32(const uint8_t *data, bool is_unsigned, uint8_t *symbols, raw_writer_t *w)
{
    vec r[4], low[4], high[4];
    for (int j = 0; j < 4; j++) {
        vec v = load(data + 32 * j);
        r[j] = either(_mm256_add_epi32(v, v), _mm256_srli_epi32(v, 31));
        high[j] = _mm256_srli_epi32(r[j], 24);
        low[j] = both_of(r[j], all32(255));
    }
    store(symbols, pack32(high[0], high[1], high[2], high[3]));
    if (is_unsigned) {
        uint8_t lows[32];
        store(lows, pack32(low[0], low[1], low[2], low[3]));
        put_sevens(w, lows, 32);
    }
    for (int j = 0; j < 4; j++)
        if (is_unsigned) {
            vec middle = both_of(_mm256_srli_epi32(r[j], 8), all32(0xffff));
            middle = _mm256_permute4x64_epi64(_mm256_packus_epi32(middle, middle), 0xd8);
            _mm_storeu_si128((void *)w->bytes, _mm256_castsi256_si128(middle));
            w->bytes += 16;
        } else {
            vec bytes = _mm256_shuffle_epi8(r[j], thirds());
            _mm_storeu_si128((void *)w->bytes, _mm256_castsi256_si128(bytes));
            _mm_storeu_si128((void *)(w->bytes + 12), _mm256_extracti128_si256(bytes, 1));
            w->bytes += 24;
        }
}

/* The loops with constants. */
INLINE void split_make_with(const uint8_t *data, size_t count, int width, bool is_unsigned, uint8_t *symbols,
                            raw_writer_t *stream)
{
    raw_writer_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width;
    for (; i + 32 <= count; i += 32)
        if (width == 2)
            split16(data + i * step, is_unsigned, symbols + i, &local);
        else
            split32(data + i * step, is_unsigned, symbols + i, &local);
    for (; i < count; i++)
        split_one(element_load(data, i, width), width, is_unsigned, symbols + i, &local);
    *stream = local;
}

static int fast_split_make(const block_t *b, size_t count, bool is_unsigned, uint8_t *symbols,
                           raw_writer_t *w)
{
    int width = element_width(b->element);
    const uint8_t *data = b->data;
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

/* 32 elements; `lows` has their lowest bytes where they are unsigned, and is NULL where the byte stream does. */
INLINE void join16(const uint8_t *symbols, const uint8_t *lows, raw_reader_t *r, uint8_t *out)
{
    vec low = _mm256_permute4x64_epi64(load(lows ? lows : r->bytes), 0xd8);
    vec high = _mm256_permute4x64_epi64(load(symbols), 0xd8);
    vec a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
    r->bytes += lows ? 0 : 32;
    store(out, either(_mm256_srli_epi16(a, 1), _mm256_slli_epi16(a, 15)));
    store(out + 32, either(_mm256_srli_epi16(b, 1), _mm256_slli_epi16(b, 15)));
}

INLINE void join32(const uint8_t *symbols, const uint8_t *lows, raw_reader_t *r, uint8_t *out)
{
    vec from = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
    for (int j = 0; j < 4; j++) {
        vec v = _mm256_slli_epi32(widen8(symbols + 8 * j), 24);
        if (lows) {
            v = either(v, either(_mm256_slli_epi32(widen16(r->bytes), 8), widen8(lows + 8 * j)));
            r->bytes += 16;
        } else {
            __m128i a = _mm_loadu_si128((const void *)r->bytes), c = _mm_loadu_si128((const void *)(r->bytes + 12));
            v = either(v, _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(a), c, 1), from));
            r->bytes += 24;
        }
        store(out + 32 * j, either(_mm256_srli_epi32(v, 1), _mm256_slli_epi32(v, 31)));
    }
}

/* The loops with constants. */
INLINE void split_undo_with(size_t count, int width, bool is_unsigned, const uint8_t *symbols, raw_reader_t *stream,
                            uint8_t *out)
{
    raw_reader_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width;
    uint8_t lows[CHUNK]; /* well before use, as in beside_get() */
    if (is_unsigned)
        get_sevens(&local, lows, count / 32 * 32);
    for (; i + 32 <= count; i += 32)
        if (width == 2)
            join16(symbols + i, is_unsigned ? lows + i : NULL, &local, out + i * step);
        else
            join32(symbols + i, is_unsigned ? lows + i : NULL, &local, out + i * step);
    for (; i < count; i++)
        element_store(out, i, width, join_one(symbols[i], width, is_unsigned, &local));
    *stream = local;
}

static int fast_split_undo(const block_t *b, size_t count, bool is_unsigned, const uint8_t *symbols, raw_reader_t *r,
                           uint8_t *out)
{
    int width = element_width(b->element);
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

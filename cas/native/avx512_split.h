/* Split elements with AVX-512. Included by lanes_avx512.h only. */

/* ---- split ---- */
static bool any_negative(const block_t *b, size_t count)
{
    size_t width = (size_t)element_width(b->element), size = count * width, i = 0;
    const uint8_t *data = b->data;
    vec seen = _mm512_setzero_si512();
    for (; i + 64 <= size; i += 64)
        seen = _mm512_or_si512(seen, load(data + i));
    /* bit width - 1 of every `width` bits: the bytes that hold signs */
    bool found = _mm512_movepi8_mask(seen) & (~0ull / ((1ull << width) - 1) << (width - 1));
    for (i += width - 1; i < size; i += width)
        found |= data[i] >> 7;
    return found;
}

INLINE vec low_bytes3(void) /* bytes 0-2 of each 32-bit lane, one lane after another */
{
    uint8_t order[64] = {0};
    for (int i = 0; i < 48; i++)
        order[i] = (uint8_t)(i / 3 * 4 + i % 3);
    return load(order);
}

INLINE void split16(const uint8_t *data, bool is_unsigned, uint8_t *symbols, raw_writer_t *w)
{
    vec r[2];
    for (int j = 0; j < 2; j++) {
        vec v = load(data + 64 * j);
        r[j] = _mm512_or_si512(_mm512_add_epi16(v, v), _mm512_srli_epi16(v, 15));
    }
    store(symbols, pack16(_mm512_srli_epi16(r[0], 8), _mm512_srli_epi16(r[1], 8)));
    vec low = pack16(_mm512_and_si512(r[0], all16(255)), _mm512_and_si512(r[1], all16(255)));
    if (is_unsigned) {
        uint8_t lows[LANES];
        store(lows, low);
        put_sevens(w, lows, LANES);
    } else {
        store(w->bytes, low);
        w->bytes += 64;
    }
}

INLINE void split32(const uint8_t *data, bool is_unsigned, uint8_t *symbols, raw_writer_t *w, vec order)
{
    vec r[4], low[4], high[4];
    for (int j = 0; j < 4; j++) {
        r[j] = _mm512_rol_epi32(load(data + 64 * j), 1);
        high[j] = _mm512_srli_epi32(r[j], 24);
        low[j] = _mm512_and_si512(r[j], all32(255));
    }
    store(symbols, pack32(high[0], high[1], high[2], high[3]));
    if (is_unsigned) {
        uint8_t lows[LANES];
        store(lows, pack32(low[0], low[1], low[2], low[3]));
        put_sevens(w, lows, LANES);
    }
    for (int j = 0; j < 4; j++)
        if (is_unsigned) {
            _mm256_storeu_si256((void *)w->bytes, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r[j], 8)));
            w->bytes += 32;
        } else {
            store(w->bytes, _mm512_permutexvar_epi8(order, r[j]));
            w->bytes += 48;
        }
}

/* The loops with constants. */
INLINE void split_make_with(const uint8_t *data, size_t count, int width, bool is_unsigned, uint8_t *symbols,
                            raw_writer_t *stream)
{
    raw_writer_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width;
    vec order = low_bytes3();
    for (; i + LANES <= count; i += LANES)
        if (width == 2)
            split16(data + i * step, is_unsigned, symbols + i, &local);
        else
            split32(data + i * step, is_unsigned, symbols + i, &local, order);
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

/* 64 elements; `lows` has their lowest bytes where they are unsigned, and is NULL where the byte stream does. */
INLINE void join16(const uint8_t *symbols, const uint8_t *lows, raw_reader_t *r, uint8_t *out)
{
    vec low = spread(load(lows ? lows : r->bytes)), high = spread(load(symbols));
    vec a = _mm512_unpacklo_epi8(low, high), b = _mm512_unpackhi_epi8(low, high);
    r->bytes += lows ? 0 : LANES;
    store(out, _mm512_or_si512(_mm512_srli_epi16(a, 1), _mm512_slli_epi16(a, 15)));
    store(out + 64, _mm512_or_si512(_mm512_srli_epi16(b, 1), _mm512_slli_epi16(b, 15)));
}

INLINE void join32(const uint8_t *symbols, const uint8_t *lows, raw_reader_t *r, uint8_t *out, vec order)
{
    for (int j = 0; j < 4; j++) {
        vec v = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(symbols + 16 * j))), 24);
        if (lows) {
            vec middle = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)r->bytes));
            vec low = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(lows + 16 * j)));
            v = _mm512_or_si512(v, _mm512_or_si512(_mm512_slli_epi32(middle, 8), low));
            r->bytes += 32;
        } else {
            v = _mm512_or_si512(v, _mm512_maskz_permutexvar_epi8(0x7777777777777777ull, order, load(r->bytes)));
            r->bytes += 48;
        }
        store(out + 64 * j, _mm512_ror_epi32(v, 1));
    }
}

/* The loops with constants. */
INLINE void split_undo_with(size_t count, int width, bool is_unsigned, const uint8_t *symbols, raw_reader_t *stream,
                            uint8_t *out)
{
    raw_reader_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width;
    uint8_t lows[CHUNK]; /* well before use, as in remainders_get() */
    if (is_unsigned)
        get_sevens(&local, lows, count / LANES * LANES);
    uint8_t from[64] = {0};
    for (int j = 0; j < 64; j++)
        from[j] = (uint8_t)(j / 4 * 3 + j % 4);
    vec order = load(from);
    for (; i + LANES <= count; i += LANES)
        if (width == 2)
            join16(symbols + i, is_unsigned ? lows + i : NULL, &local, out + i * step);
        else
            join32(symbols + i, is_unsigned ? lows + i : NULL, &local, out + i * step, order);
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

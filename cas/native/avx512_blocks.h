/* Whole and sparse blocks of differences with AVX-512. Included by lanes_avx512.h only. */

/* ---- whole blocks: full groups where they lie, the last one through a padded copy ---- */
INLINE vec base_at(const uint8_t *base, size_t offset)
{
    return base ? load(base + offset) : _mm512_setzero_si512();
}

INLINE void tokens_make_group(const uint8_t *data, const uint8_t *base, int width, unsigned top,
                              uint8_t *tokens, raw_writer_t *w)
{
    vec z[4];
    for (int j = 0; j < width; j++) {
        vec x = load(data + 64 * j), y = base_at(base, 64 * (size_t)j);
        z[j] = width == 2 ? difference16(x, y) : difference32(x, y);
    }
    if (width == 2)
        tokens16(z, top, tokens, w);
    else
        tokens32(z, top, tokens, w);
}

INLINE void tokens_make_with(const block_t *b, size_t count, int width, unsigned top,
                             uint8_t *tokens, raw_writer_t *stream)
{
    raw_writer_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width;
    const uint8_t *data = b->data, *base = b->base;
    for (; i + LANES <= count; i += LANES)
        tokens_make_group(data + i * step, base ? base + i * step : NULL, width, top, tokens + i, &local);
    if (i < count) {
        uint8_t x[4 * LANES] = {0}, y[4 * LANES] = {0};
        memcpy(x, data + i * step, (count - i) * step);
        if (base)
            memcpy(y, base + i * step, (count - i) * step);
        tokens_make_group(x, y, width, top, tokens + i, &local);
    }
    *stream = local;
}

/* Sparse blocks: the same, and words that are not 0 (top 0). */
#define FOR_SPARSE(element, top, call)                    \
    switch ((element) * 4 + (top)) {                      \
    case 5 * 4 + 0: call(2, 0); break;                    \
    case 6 * 4 + 0: call(4, 0); break;                    \
    case 5 * 4 + 3: call(2, 3); break;                    \
    case 6 * 4 + 2: call(4, 2); break;                    \
    default: return UNHANDLED;                            \
    }

/* The loops with constants, for what this encoder makes of floats: others are left to plain C. */
#define FOR_TOKENS(element, top, call)                    \
    switch ((element) * 4 + (top)) {                      \
    case 5 * 4 + 3: call(2, 3); break;                    \
    case 6 * 4 + 2: call(4, 2); break;                    \
    default: return UNHANDLED;                            \
    }

static int fast_tokens_make(const block_t *b, size_t count, uint8_t *tokens, raw_writer_t *w)
{
#define CALL(W, T) tokens_make_with(b, count, W, T, tokens, w)
    FOR_TOKENS(b->element, b->top, CALL)
#undef CALL
    return 0;
}

INLINE void tokens_undo_group(const uint8_t *tokens, const uint8_t *remainders, const uint8_t *base, int width,
                              unsigned top, raw_reader_t *r, uint8_t *out)
{
    vec z[4];
    if (width == 2)
        untokens16(tokens, remainders, top, r, z);
    else
        untokens32(tokens, remainders, top, r, z);
    for (int j = 0; j < width; j++) {
        vec y = base_at(base, 64 * (size_t)j);
        store(out + 64 * j, width == 2 ? undo16(z[j], y) : undo32(z[j], y));
    }
}

/* `tokens` has room for whole groups. */
INLINE int tokens_undo_with(const block_t *b, size_t count, int width, unsigned top,
                            uint8_t *tokens, raw_reader_t *stream, uint8_t *out)
{
    raw_reader_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width, padded = (count + LANES - 1) / LANES * LANES;
    const uint8_t *base = b->base;
    uint8_t remainders[CHUNK];
    memset(tokens + count, 0, padded - count);
    if (!remainders_get(tokens, padded, top, &local, remainders))
        return 0;
    for (; i + LANES <= count && !raw_overrun(&local); i += LANES)
        tokens_undo_group(tokens + i, remainders + i, base ? base + i * step : NULL, width, top, &local,
                          out + i * step);
    if (i < count && !raw_overrun(&local)) {
        uint8_t x[4 * LANES], y[4 * LANES] = {0};
        if (base)
            memcpy(y, base + i * step, (count - i) * step);
        tokens_undo_group(tokens + i, remainders + i, y, width, top, &local, x);
        memcpy(out + i * step, x, (count - i) * step);
    }
    *stream = local;
    return !raw_overrun(&local);
}

static int fast_tokens_undo(const block_t *b, size_t count, uint8_t *tokens, raw_reader_t *r, uint8_t *out)
{
#define CALL(W, T) return tokens_undo_with(b, count, W, T, tokens, r, out)
    FOR_TOKENS(b->element, b->top, CALL)
#undef CALL
    return UNHANDLED;
}

/* Differences lie padded to whole groups behind each other: what follows the last may be anything but is in reach. */
INLINE void values_make_with(uint8_t *values, size_t count, int width, unsigned top, uint8_t *tokens,
                             raw_writer_t *stream)
{
    raw_writer_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t step = (size_t)width;
    memset(values + count * step, 0, LANES * step);
    for (size_t i = 0; i < count; i += LANES) {
        vec z[4];
        for (int j = 0; j < width; j++)
            z[j] = load(values + i * step + 64 * (size_t)j);
        if (width == 2)
            tokens16(z, top, tokens + i, &local);
        else
            tokens32(z, top, tokens + i, &local);
    }
    *stream = local;
}

static int fast_values_make(uint8_t *values, size_t count, int width, unsigned top, uint8_t *tokens, raw_writer_t *w)
{
#define CALL(W, T) values_make_with(values, count, W, T, tokens, w)
    FOR_TOKENS(width == 2 ? 5 : width == 4 ? 6 : 0, top, CALL)
#undef CALL
    return 0;
}

INLINE int values_undo_with(uint8_t *tokens, size_t count, int width, unsigned top, raw_reader_t *stream,
                            uint8_t *values)
{
    raw_reader_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t step = (size_t)width;
    uint8_t remainders[CHUNK];
    memset(tokens + count, 0, LANES);
    for (size_t i = 0; i < count; i += LANES) {
        size_t left = (count - i + LANES - 1) / LANES * LANES;
        vec z[4];
        if (i % CHUNK == 0 && !remainders_get(tokens + i, left < CHUNK ? left : CHUNK, top, &local, remainders))
            return 0;
        if (raw_overrun(&local))
            return 0;
        if (width == 2)
            untokens16(tokens + i, remainders + i % CHUNK, top, &local, z);
        else
            untokens32(tokens + i, remainders + i % CHUNK, top, &local, z);
        for (int j = 0; j < width; j++)
            store(values + i * step + 64 * (size_t)j, z[j]);
    }
    *stream = local;
    return !raw_overrun(&local);
}

static int fast_values_undo(uint8_t *tokens, size_t count, int width, unsigned top, raw_reader_t *r, uint8_t *values)
{
#define CALL(W, T) return values_undo_with(tokens, count, W, T, r, values)
    FOR_TOKENS(width == 2 ? 5 : width == 4 ? 6 : 0, top, CALL)
#undef CALL
    return UNHANDLED;
}

/* ---- sparse blocks ---- */
INLINE ptrdiff_t sparse_make_with(const block_t *b, size_t count, int width, unsigned top,
                                  const uint8_t *contexts, uint64_t *flags, uint8_t *kept, uint8_t *values)
{
    size_t step = (size_t)width, differ = 0;
    for (size_t i = 0; i < count; i += LANES) {
        const uint8_t *data = b->data + i * step, *base = b->base && top ? b->base + i * step : NULL;
        uint8_t x[4 * LANES] = {0}, y[4 * LANES] = {0};
        if (i + LANES > count) {
            memcpy(x, data, (count - i) * step);
            if (base)
                memcpy(y, base, (count - i) * step);
            data = x;
            base = y;
        }
        uint64_t bits = 0;
        uint8_t *to = values + differ * step;
        for (int j = 0; j < width; j++) {
            vec v = load(data + 64 * j), u = base_at(base, 64 * (size_t)j);
            if (width == 2) {
                vec z = top ? difference16(v, u) : v;
                __mmask32 m = _mm512_test_epi16_mask(z, z);
                store(to, _mm512_maskz_compress_epi16(m, z));
                to += 2 * ones(m);
                bits |= (uint64_t)m << (32 * j);
            } else {
                vec z = top ? difference32(v, u) : v;
                __mmask16 m = _mm512_test_epi32_mask(z, z);
                store(to, _mm512_maskz_compress_epi32(m, z));
                to += 4 * ones(m);
                bits |= (uint64_t)m << (16 * j);
            }
        }
        flags[i / LANES] = bits;
        store(kept + differ, _mm512_maskz_compress_epi8(bits, load(contexts + i)));
        differ += ones(bits);
    }
    return (ptrdiff_t)differ;
}

static ptrdiff_t fast_sparse_make(const block_t *b, size_t count, const uint8_t *contexts, uint64_t *flags,
                                  uint8_t *kept, uint8_t *values)
{
#define CALL(W, T) return sparse_make_with(b, count, W, T, contexts, flags, kept, values)
    FOR_SPARSE(b->element, b->top, CALL)
#undef CALL
    return UNHANDLED;
}

static size_t sparse_keep(const uint64_t *flags, const uint8_t *groups, size_t count, uint8_t *kept)
{
    size_t differ = 0;
    for (size_t at = 0; at < count; at += LANES) {
        uint64_t bits = flags[at / LANES];
        store(kept + differ, _mm512_maskz_compress_epi8(bits, load(groups + at)));
        differ += ones(bits);
    }
    return differ;
}

INLINE ptrdiff_t sparse_undo_with(const block_t *b, size_t count, int width, unsigned top,
                                  const uint64_t *flags, const uint8_t *values, uint8_t *out)
{
    size_t step = (size_t)width;
    const uint8_t *start = values;
    for (size_t i = 0; i < count; i += LANES) {
        const uint8_t *base = b->base && top ? b->base + i * step : NULL;
        uint8_t x[4 * LANES], y[4 * LANES] = {0}, *to = out + i * step;
        uint64_t bits = flags[i / LANES];
        if (i + LANES > count) {
            if (base)
                memcpy(y, base, (count - i) * step);
            base = y;
            to = x;
        }
        for (int j = 0; j < width; j++) {
            vec u = base_at(base, 64 * (size_t)j), v = load(values);
            if (width == 2) {
                __mmask32 m = (__mmask32)(bits >> (32 * j));
                v = _mm512_maskz_expand_epi16(m, v);
                store(to + 64 * j, top ? undo16(v, u) : v);
                values += 2 * ones(m);
            } else {
                __mmask16 m = (__mmask16)(bits >> (16 * j));
                v = _mm512_maskz_expand_epi32(m, v);
                store(to + 64 * j, top ? undo32(v, u) : v);
                values += 4 * ones(m);
            }
        }
        if (to == x)
            memcpy(out + i * step, x, (count - i) * step);
    }
    return (values - start) / width;
}

static ptrdiff_t fast_sparse_undo(const block_t *b, size_t count, const uint64_t *flags,
                                  const uint8_t *values, uint8_t *out)
{
#define CALL(W, T) return sparse_undo_with(b, count, W, T, flags, values, out)
    FOR_SPARSE(b->element, b->top, CALL)
#undef CALL
    return UNHANDLED;
}

/* Whole and sparse blocks of differences with AVX2. Included by lanes_avx2.h only. */

/* ---- whole blocks: full groups where they lie, the last one through a padded copy ---- */

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

/* The first `size` bytes of a group of elements, and zeros. */
INLINE const uint8_t *padded(uint8_t *to, const uint8_t *data, size_t size)
{
    memset(to, 0, 4 * LANES);
    return memcpy(to, data, size);
}

INLINE vec base_at(const uint8_t *base, size_t offset) { return base ? load(base + offset) : _mm256_setzero_si256(); }

/* 64 differences as eight vectors of 32-bit lanes. */
INLINE void differences64(const uint8_t *data, const uint8_t *base, int width, difference_t *d)
{
    for (size_t j = 0; j < 2 * (size_t)width; j++) {
        vec x = load(data + 32 * j), y = base_at(base, 32 * j);
        if (width == 4) {
            d[j] = difference32(x, y);
            continue;
        }
        difference_t both = difference16(x, y);
        for (size_t h = 0; h < 2; h++) {
            __m128i half = h ? _mm256_extracti128_si256(both.half, 1) : _mm256_castsi256_si128(both.half);
            __m128i odd = h ? _mm256_extracti128_si256(both.odd, 1) : _mm256_castsi256_si128(both.odd);
            d[2 * j + h] = (difference_t){_mm256_cvtepu16_epi32(half), _mm256_cvtepi16_epi32(odd)};
        }
    }
}

INLINE void tokens_make_with(const block_t *b, size_t count, int width, unsigned top,
                             uint8_t *tokens, raw_writer_t *stream)
{
    raw_writer_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t i = 0, step = (size_t)width;
    const uint8_t *data = b->data, *base = b->base;
    difference_t d[8];
    for (; i + LANES <= count; i += LANES) {
        differences64(data + i * step, base ? base + i * step : NULL, width, d);
        tokens64(d, width == 4, top, tokens + i, &local);
    }
    if (i < count) {
        uint8_t x[4 * LANES], y[4 * LANES];
        data = padded(x, data + i * step, (count - i) * step);
        base = base ? padded(y, base + i * step, (count - i) * step) : NULL;
        differences64(data, base, width, d);
        tokens64(d, width == 4, top, tokens + i, &local);
    }
    *stream = local;
}

static int fast_tokens_make(const block_t *b, size_t count, uint8_t *tokens, raw_writer_t *w)
{
#define CALL(W, T) tokens_make_with(b, count, W, T, tokens, w)
    FOR_TOKENS(b->element, b->top, CALL)
#undef CALL
    return 0;
}

INLINE void tokens_undo_group(const uint8_t *tokens, const beside_t *beside, size_t at, const uint8_t *base, int width,
                              unsigned top, uint8_t *out)
{
    for (size_t h = 0; h < 2; h++) {
        difference_t d[4];
        if (width == 2)
            untokens16(tokens + 32 * h, beside, at + 32 * h, top, d);
        else
            untokens32(tokens + 32 * h, beside, at + 32 * h, top, d);
        for (size_t j = 0; j < (size_t)width; j++) {
            size_t offset = 32 * (h * (size_t)width + j);
            vec y = base_at(base, offset);
            store(out + offset, width == 2 ? undo16(d[j], y) : undo32(d[j], y));
        }
    }
}

/* `tokens` has room for whole groups. */
INLINE int tokens_undo_with(const block_t *b, size_t count, int width, unsigned top,
                            uint8_t *tokens, raw_reader_t *stream, uint8_t *out)
{
    raw_reader_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t step = (size_t)width, room = (count + LANES - 1) / LANES * LANES;
    const uint8_t *base = b->base;
    beside_t beside;
    memset(tokens + count, 0, room - count);
    for (size_t i = 0; i < count; i += LANES) {
        const uint8_t *of = base ? base + i * step : NULL;
        uint8_t x[4 * LANES], y[4 * LANES], *to = out + i * step;
        if (i % PART == 0 && !beside_get(tokens + i, room - i < PART ? room - i : PART, width, top, &local, &beside))
            return 0;
        if (i + LANES > count) {
            of = base ? padded(y, of, (count - i) * step) : NULL;
            to = x;
        }
        tokens_undo_group(tokens + i, &beside, i % PART, of, width, top, to);
        if (to == x)
            memcpy(out + i * step, x, (count - i) * step);
    }
    *stream = local;
    return 1;
}

static int fast_tokens_undo(const block_t *b, size_t count, uint8_t *tokens, raw_reader_t *r, uint8_t *out)
{
#define CALL(W, T) return tokens_undo_with(b, count, W, T, tokens, r, out)
    FOR_TOKENS(b->element, b->top, CALL)
#undef CALL
    return UNHANDLED;
}

INLINE vec zigzag_of(difference_t d, int width)
{
    vec twice = _mm256_add_epi32(d.half, d.half); /* no lane's overflows, also of 16 bits */
    return width == 2 ? _mm256_sub_epi16(twice, d.odd) : _mm256_sub_epi32(twice, d.odd);
}

/* Differences lie behind each other, with room for whole groups. */
INLINE void values_make_with(uint8_t *values, size_t count, int width, unsigned top, uint8_t *tokens,
                             raw_writer_t *stream)
{
    raw_writer_t local = *stream; /* in registers: through a pointer, any byte stored might be part of it */
    size_t step = (size_t)width;
    memset(values + count * step, 0, LANES * step);
    for (size_t i = 0; i < count; i += LANES) {
        difference_t d[8];
        for (size_t j = 0; j < 8; j++)
            d[j] = difference_of(width == 4 ? load(values + i * step + 32 * j) : widen16(values + i * step + 16 * j));
        tokens64(d, width == 4, top, tokens + i, &local);
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
    beside_t beside;
    memset(tokens + count, 0, LANES);
    for (size_t at = 0; at < count; at += PART) {
        size_t left = (count - at + LANES - 1) / LANES * LANES, part = left < PART ? left : PART;
        if (!beside_get(tokens + at, part, width, top, &local, &beside))
            return 0;
        for (size_t i = 0; i < part; i += 32) {
            difference_t d[4];
            if (width == 2)
                untokens16(tokens + at + i, &beside, i, top, d);
            else
                untokens32(tokens + at + i, &beside, i, top, d);
            for (size_t j = 0; j < step; j++)
                store(values + (at + i) * step + 32 * j, zigzag_of(d[j], width));
        }
    }
    *stream = local;
    return 1;
}

static int fast_values_undo(uint8_t *tokens, size_t count, int width, unsigned top, raw_reader_t *r, uint8_t *values)
{
#define CALL(W, T) return values_undo_with(tokens, count, W, T, r, values)
    FOR_TOKENS(width == 2 ? 5 : width == 4 ? 6 : 0, top, CALL)
#undef CALL
    return UNHANDLED;
}

/* ---- sparse blocks ---- */
/* What of 64 elements is stored where it is not 0, to `out`; and where it is not. */
INLINE uint64_t sparse64(const uint8_t *data, const uint8_t *base, int width, unsigned top, uint8_t *out)
{
    uint64_t bits = 0;
    for (size_t j = 0; j < (size_t)width; j++) { /* 64 bytes: 32 or 16 flags */
        vec same[2];
        for (size_t h = 0; h < 2; h++) {
            size_t offset = 64 * j + 32 * h;
            vec v = load(data + offset);
            if (top)
                v = zigzag_of(width == 2 ? difference16(v, base_at(base, offset))
                                         : difference32(v, base_at(base, offset)), width);
            store(out + offset, v);
            same[h] = width == 2 ? _mm256_cmpeq_epi16(v, _mm256_setzero_si256())
                                 : _mm256_cmpeq_epi32(v, _mm256_setzero_si256());
        }
        if (width == 2) {
            vec all = _mm256_permute4x64_epi64(_mm256_packs_epi16(same[0], same[1]), 0xd8);
            bits |= (uint64_t)(uint32_t)~_mm256_movemask_epi8(all) << (32 * j);
        } else {
            bits |= (uint64_t)((~(signs(same[0]) | signs(same[1]) << 8)) & 0xffff) << (16 * j);
        }
    }
    return bits;
}

INLINE ptrdiff_t sparse_make_with(const block_t *b, size_t count, int width, unsigned top, const uint8_t *contexts,
                                  uint64_t *flags, uint8_t *kept, uint8_t *values)
{
    size_t step = (size_t)width, differ = 0;
    for (size_t i = 0; i < count; i += LANES) {
        const uint8_t *data = b->data + i * step, *base = b->base && top ? b->base + i * step : NULL;
        uint8_t x[4 * LANES], y[4 * LANES], z[4 * LANES];
        if (i + LANES > count) {
            data = padded(x, data, (count - i) * step);
            base = base ? padded(y, base, (count - i) * step) : NULL;
        }
        uint64_t bits = flags[i / LANES] = sparse64(data, base, width, top, z);
        for (; bits; bits &= bits - 1) {
            unsigned place = (unsigned)_tzcnt_u64(bits);
            element_store(values, differ, width, element_load(z, place, width));
            kept[differ++] = contexts[i + place];
        }
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
    for (size_t at = 0; at < count; at += LANES)
        for (uint64_t bits = flags[at / LANES]; bits; bits &= bits - 1)
            kept[differ++] = groups[at + (unsigned)_tzcnt_u64(bits)];
    return differ;
}

static ptrdiff_t fast_sparse_undo(const block_t *b, size_t count, const uint64_t *flags,
                                  const uint8_t *values, uint8_t *out)
{
    (void)b, (void)count, (void)flags, (void)values, (void)out;
    return UNHANDLED; /* a copy of the base with some elements changed: plain C is as good */
}

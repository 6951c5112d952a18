/* One element at a time: the arithmetic that every variant must agree with (cas/spec/codecs.md, Elements). */
#ifndef GPU_TRAIN_ELEMENTS_H
#define GPU_TRAIN_ELEMENTS_H

#include "kernel.h"

/* `call(width)` with a constant, so that the compiler makes a loop for each. */
#define FOR_WIDTH(width, call)       \
    switch (width) {                 \
    case 1: call(1); break;          \
    case 2: call(2); break;          \
    case 4: call(4); break;          \
    default: call(8); break;         \
    }

INLINE uint64_t element_load(const uint8_t *data, size_t i, int width)
{
    uint64_t value = 0;
    memcpy(&value, data + i * (size_t)width, (size_t)width);
    return value;
}

INLINE void element_store(uint8_t *data, size_t i, int width, uint64_t value)
{
    memcpy(data + i * (size_t)width, &value, (size_t)width);
}

INLINE uint64_t word_mask(int width) { return ~0ull >> (64 - 8 * width); }

INLINE uint64_t is_negative(uint64_t word, int width) { return word >> (8 * width - 1); }

/* Sign and magnitude to two's complement, so that integers are ordered as the floats are; its own inverse. */
INLINE uint64_t ordered(uint64_t word, int width)
{
    return word ^ ((0 - is_negative(word, width)) & (word_mask(width) >> 1));
}

/* What a value is more than its base, away from zero; zigzag, so that small in size is small. */
INLINE uint64_t difference(uint64_t value, uint64_t base, int width, bool is_float)
{
    uint64_t mask = word_mask(width), d = value - base;
    if (is_float) {
        d = ordered(value, width) - ordered(base, width);
        d = is_negative(base, width) ? 0 - d : d;
    }
    d &= mask;
    return ((d << 1) ^ (0 - is_negative(d, width))) & mask;
}

INLINE uint64_t undo_difference(uint64_t zigzag, uint64_t base, int width, bool is_float)
{
    uint64_t d = (zigzag >> 1) ^ (0 - (zigzag & 1));
    if (!is_float)
        return (base + d) & word_mask(width);
    d = is_negative(base, width) ? 0 - d : d;
    return ordered((ordered(base, width) + d) & word_mask(width), width);
}

/* The context byte of an element: its exponent, or as much of it as fits. */
INLINE uint8_t context_of(uint64_t word, int width, bool is_float)
{
    if (width == 1)
        return (uint8_t)(is_float ? word & 0x7f : word);
    if (!is_float)
        return 0;
    if (width < 8)
        return (uint8_t)(word >> (width == 2 ? 7 : 23));
    int exponent = (int)(word >> 52 & 0x7ff) - 832;
    return (uint8_t)(exponent < 0 ? 0 : exponent > 255 ? 255 : exponent);
}

INLINE uint8_t context_of_both(uint8_t base, uint8_t sibling)
{
    int context = 2 * base - sibling;
    return (uint8_t)(context < 0 ? 0 : context > 255 ? 255 : context);
}

/* A difference as a token and `raw_bits` bits beside it. */
typedef struct {
    uint8_t token;
    unsigned raw_bits;
    uint64_t raw;
} token_t;

/* Computed for small ones too and then chosen, as a branch would often go the other way than the last time. */
INLINE token_t token_of(uint64_t z, int width, unsigned top)
{
    if (width == 1)
        return (token_t){(uint8_t)z, 0, 0};
    uint64_t large = z >= SMALL, half = z >> 1;
    unsigned length = 64 - (unsigned)__builtin_clzll(z | SMALL), raw_bits = large ? length - 2 - top : 0;
    uint64_t lead = half >> raw_bits;
    uint64_t token = SMALL + ((length - 5) << (top + 1)) + ((lead - (1u << top)) << 1) + (z & 1);
    return (token_t){(uint8_t)(large ? token : z), raw_bits, half & ((1ull << raw_bits) - 1) & (0 - large)};
}

INLINE unsigned token_raw_bits(uint8_t token, int width, unsigned top)
{
    unsigned rest = (unsigned)token - SMALL;
    return width == 1 || token < SMALL ? 0 : (rest >> (top + 1)) + 3 - top;
}

INLINE uint64_t token_value(uint8_t token, uint64_t raw, int width, unsigned top)
{
    if (width == 1)
        return token;
    uint64_t half = token >> 1, lead = (half & ((1u << top) - 1)) | 1u << top; /* SMALL has none of these bits */
    lead = token < SMALL ? half : lead;
    return (lead << token_raw_bits(token, width, top) | raw) << 1 | (token & 1);
}

/* ---- raw bits: whole low bytes in one stream, the up to 7 bits above them in another ---- */
typedef struct {
    uint8_t *bytes, *bits;
    uint64_t pending;
    unsigned filled; /* bits of `pending`, 0-7 between calls */
} raw_writer_t;

INLINE void put_remainder(raw_writer_t *w, uint64_t value, unsigned bits) /* up to 56 */
{
    w->pending |= value << w->filled;
    memcpy(w->bits, &w->pending, 8);
    w->filled += bits;
    w->bits += w->filled >> 3;
    w->pending >>= w->filled & ~7u;
    w->filled &= 7;
}

INLINE void put_raw(raw_writer_t *w, uint64_t raw, unsigned raw_bits)
{
    memcpy(w->bytes, &raw, 8);
    w->bytes += raw_bits >> 3;
    put_remainder(w, raw >> (raw_bits & ~7u), raw_bits & 7);
}

typedef struct {
    const uint8_t *bytes, *bytes_end, *bits;
    uint64_t at, bits_end; /* in bits */
} raw_reader_t;

INLINE uint64_t get_raw(raw_reader_t *r, unsigned raw_bits)
{
    uint64_t low, high;
    unsigned whole = raw_bits & ~7u;
    memcpy(&low, r->bytes, 8);
    memcpy(&high, r->bits + (r->at >> 3), 8);
    r->bytes += raw_bits >> 3;
    high = high >> (r->at & 7) & ((1u << (raw_bits & 7)) - 1);
    r->at += raw_bits & 7;
    return (low & ((1ull << whole) - 1)) | high << whole;
}

INLINE bool raw_overrun(const raw_reader_t *r) { return r->bytes > r->bytes_end || r->at > r->bits_end; }

/* ---- split: the top byte of the rotated word is the symbol, the rest is raw ---- */
INLINE void split_one(uint64_t word, int width, bool is_unsigned, uint8_t *symbol, raw_writer_t *w)
{
    uint64_t turned = width == 1 ? word : (word << 1 | is_negative(word, width)) & word_mask(width);
    *symbol = (uint8_t)(turned >> (8 * width - 8));
    if (is_unsigned) {
        put_remainder(w, turned >> 1 & 0x7f, 7);
        turned >>= 8;
    }
    memcpy(w->bytes, &turned, 8);
    w->bytes += width - 1 - is_unsigned;
}

INLINE uint64_t join_one(uint8_t symbol, int width, bool is_unsigned, raw_reader_t *r)
{
    uint64_t low = 0, turned;
    memcpy(&turned, r->bytes, 8);
    r->bytes += width - 1 - is_unsigned;
    if (is_unsigned) {
        memcpy(&low, r->bits + (r->at >> 3), 2);
        turned = turned << 8 | (low >> (r->at & 7) & 0x7f) << 1;
        r->at += 7;
    }
    turned = (turned & (word_mask(width) >> 8)) | (uint64_t)symbol << (8 * width - 8);
    return width == 1 ? turned : (turned >> 1 | turned << (8 * width - 1)) & word_mask(width);
}

#endif

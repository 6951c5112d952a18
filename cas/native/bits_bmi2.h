/* Remainders, 8 at a time, with pext and pdep: in AVX2 and AVX-512 variants. */
#ifndef GPU_TRAIN_BITS_BMI2_H
#define GPU_TRAIN_BITS_BMI2_H

#include <immintrin.h>

#include "elements.h"

/* 64 bytes, of each of which the bits in `masks` (from bit 0 up, at most 7) are stored. */
INLINE void put_remainders(raw_writer_t *w, const uint64_t *values, const uint64_t *masks)
{
    for (int i = 0; i < 8; i++)
        put_remainder(w, _pext_u64(values[i], masks[i]), (unsigned)_mm_popcnt_u64(masks[i]));
}

/* At least 57 bits from where the reader is. */
INLINE uint64_t window(const raw_reader_t *r)
{
    uint64_t bits;
    memcpy(&bits, r->bits + (r->at >> 3), 8);
    return bits >> (r->at & 7);
}

INLINE void get_remainders(raw_reader_t *r, uint64_t *values, const uint64_t *masks)
{
    for (int i = 0; i < 8; i++) {
        values[i] = _pdep_u64(window(r), masks[i]);
        r->at += (unsigned)_mm_popcnt_u64(masks[i]);
    }
}

/* The bytes of 8 * n bytes whose masks are 0xff (others: 0), one after another. */
INLINE void put_whole_bytes(raw_writer_t *w, const uint64_t *values, const uint64_t *masks, int n)
{
    for (int i = 0; i < n; i++) {
        uint64_t bytes = _pext_u64(values[i], masks[i]);
        memcpy(w->bytes, &bytes, 8);
        w->bytes += (unsigned)_mm_popcnt_u64(masks[i]) >> 3;
    }
}

INLINE void get_whole_bytes(raw_reader_t *r, uint64_t *values, const uint64_t *masks, int n)
{
    for (int i = 0; i < n; i++) {
        uint64_t bytes;
        memcpy(&bytes, r->bytes, 8);
        values[i] = _pdep_u64(bytes, masks[i]);
        r->bytes += (unsigned)_mm_popcnt_u64(masks[i]) >> 3;
    }
}

/* Bits 1-7 of each of `count` bytes (a multiple of 8). Eight of them are 7 whole bytes, so that in a split block the
 * stream is always at a byte's start. */
#define UPPER_SEVEN 0xfefefefefefefefeull

INLINE void put_sevens(raw_writer_t *w, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i += 8) {
        uint64_t eight;
        memcpy(&eight, bytes + i, 8);
        eight = _pext_u64(eight, UPPER_SEVEN);
        memcpy(w->bits + i / 8 * 7, &eight, 8);
    }
    w->bits += count / 8 * 7;
}

INLINE void get_sevens(raw_reader_t *r, uint8_t *bytes, size_t count)
{
    const uint8_t *bits = r->bits + (r->at >> 3);
    for (size_t i = 0; i < count; i += 8) {
        uint64_t eight;
        memcpy(&eight, bits + i / 8 * 7, 8);
        eight = _pdep_u64(eight, UPPER_SEVEN);
        memcpy(bytes + i, &eight, 8);
    }
    r->at += 7 * count;
}

/* Tables of shuffles of 16 bytes, filled by kernel_prepare(). Eight words, by the lanes that are in a mask: */
extern uint8_t words_to_end[256][16]; /* theirs, in order, to the last places */
extern uint8_t words_expand[256][16]; /* to the n-th lane in the mask word n */

/* By the whole raw bytes, 0 to 3, of each of four elements (2 bits each, the first's lowest): shuffles of 16 bytes. */
extern uint8_t quad_compress[256][16]; /* the bytes that are there from four 32-bit lanes, in order; behind them 0 */
extern uint8_t quad_expand[256][16];   /* the reverse */
extern uint8_t quad_bytes[256];        /* how many there are */

#endif

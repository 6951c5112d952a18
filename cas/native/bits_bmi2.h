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

#endif

/* Elements to byte planes and back (cas/spec/codecs.md, Mode 0). Plane i is byte i of every word, which is rotated left by
 * one bit before where that is asked for. */
#include "kernel.h"

#define SPLIT(W, TYPE)                                                                             \
    for (size_t i = 0; i < count; i++) {                                                           \
        TYPE word;                                                                                 \
        memcpy(&word, block + W * i, W);                                                           \
        word = rotated ? (TYPE)(word << 1 | word >> (8 * W - 1)) : word;                           \
        for (size_t byte = 0; byte < W; byte++)                                                    \
            out[byte * count + i] = (uint8_t)(word >> 8 * byte);                                   \
    }

void planes_split(const uint8_t *restrict block, size_t count, int width, bool rotated, uint8_t *restrict out)
{
    if (width == 2)
        SPLIT(2, uint16_t)
    else if (width == 4)
        SPLIT(4, uint32_t)
    else
        SPLIT(8, uint64_t)
}

/* A plane of one byte stands for `count` of them. */
#define JOIN(W, TYPE)                                                                              \
    for (size_t i = 0; i < count; i++) {                                                           \
        TYPE word = 0;                                                                             \
        for (size_t byte = 0; byte < W; byte++)                                                    \
            word |= (TYPE)((TYPE)planes[byte].data[i * planes[byte].step] << 8 * byte);            \
        word = rotated ? (TYPE)(word >> 1 | word << (8 * W - 1)) : word;                           \
        memcpy(out + W * i, &word, W);                                                             \
    }

void planes_join(const plane_t *planes, size_t count, int width, bool rotated, uint8_t *restrict out)
{
    if (width == 2)
        JOIN(2, uint16_t)
    else if (width == 4)
        JOIN(4, uint32_t)
    else
        JOIN(8, uint64_t)
}

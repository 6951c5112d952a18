/* Which variant runs here. */
#include "kernel.h"

#ifdef KERNEL_X86
_Alignas(16) uint8_t words_to_end[256][16], words_expand[256][16];
_Alignas(16) uint8_t quad_compress[256][16], quad_expand[256][16];
uint8_t quad_bytes[256];

enum { NOTHING = 0x80 }; /* makes a shuffle write 0 */

static void words_prepare(void)
{
    memset(words_to_end, NOTHING, sizeof words_to_end);
    memset(words_expand, NOTHING, sizeof words_expand);
    for (unsigned mask = 0; mask < 256; mask++) {
        unsigned first = 8 - (unsigned)__builtin_popcount(mask), taken = 0;
        for (unsigned lane = 0; lane < 8; lane++) {
            if (!(mask >> lane & 1))
                continue;
            for (unsigned byte = 0; byte < 2; byte++) {
                words_to_end[mask][2 * (first + taken) + byte] = (uint8_t)(2 * lane + byte);
                words_expand[mask][2 * lane + byte] = (uint8_t)(2 * taken + byte);
            }
            taken++;
        }
    }
}

static void quads_prepare(void)
{
    memset(quad_compress, NOTHING, sizeof quad_compress);
    memset(quad_expand, NOTHING, sizeof quad_expand);
    for (unsigned quad = 0; quad < 256; quad++) {
        uint8_t bytes = 0;
        for (unsigned element = 0; element < 4; element++)
            for (unsigned byte = 0; byte < (quad >> (2 * element) & 3); byte++, bytes++) {
                quad_compress[quad][bytes] = (uint8_t)(4 * element + byte);
                quad_expand[quad][4 * element + byte] = bytes;
            }
        quad_bytes[quad] = bytes;
    }
}

void kernel_prepare(void)
{
    words_prepare();
    quads_prepare();
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("popcnt");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512vbmi2");
}
#else
void kernel_prepare(void) {}
#endif

const variant_t *kernel_select(const char *name)
{
#ifdef KERNEL_X86
    if ((!name || strcmp(name, "avx512") == 0) && has_avx512())
        return &kernel_avx512;
    if ((!name || strcmp(name, "avx2") == 0) && has_avx2())
        return &kernel_avx2;
#endif
    return !name || strcmp(name, "scalar") == 0 ? &kernel_scalar : NULL;
}

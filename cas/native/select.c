/* Which variant runs here. */
#include "kernel.h"

#ifdef KERNEL_X86
uint8_t compress_to_end[256][8], expand_from_start[256][8];

void kernel_prepare(void)
{
    for (unsigned mask = 0; mask < 256; mask++) {
        unsigned first = 8 - (unsigned)__builtin_popcount(mask), taken = 0;
        for (unsigned lane = 0; lane < 8; lane++)
            if (mask >> lane & 1) {
                compress_to_end[mask][first + taken] = (uint8_t)lane;
                expand_from_start[mask][lane] = (uint8_t)taken++;
            }
    }
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

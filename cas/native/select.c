/* Which variant runs here. */
#include "kernel.h"

#ifdef KERNEL_X86
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("popcnt");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512vbmi2");
}
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

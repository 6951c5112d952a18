/* The kernel for x86-64 with AVX-512 as of Ice Lake and Zen 4. */
#include "kernel.h"

#ifdef KERNEL_X86
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vbmi2,avx2,fma,bmi,bmi2,lzcnt,popcnt")
#define VARIANT avx512
#define FAST
#include "lanes_avx512.h"
#include "variant.h"
#endif

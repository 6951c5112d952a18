/* The kernel for x86-64 with AVX2, FMA and BMI2: Haswell, Zen and later. */
#include "kernel.h"

#ifdef KERNEL_X86
#pragma GCC target("avx2,fma,bmi,bmi2,lzcnt,popcnt")
#define VARIANT avx2
#define FAST
#include "lanes_avx2.h"
#include "variant.h"
#endif

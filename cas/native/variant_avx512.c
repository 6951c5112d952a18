#include "kernel.h"
#ifdef KERNEL_X86
#define VARIANT avx512
#include "variant.h"
#endif

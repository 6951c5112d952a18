#include "kernel.h"
#ifdef KERNEL_X86
#define VARIANT avx2
#include "variant.h"
#endif

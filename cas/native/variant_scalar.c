/* The kernel for any processor. */
#define VARIANT scalar
#include "variant.h"

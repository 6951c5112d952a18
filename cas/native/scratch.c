/* Working memory that is kept between calls: fresh pages would cost a tenth of an encoder's time. */
#include <stdatomic.h>
#include <stdlib.h>

#include "kernel.h"

enum { KEPT = 8, KEPT_BYTES_MAX = 32 << 20, ALIGNMENT = 64 };

typedef struct {
    size_t size;
    char unused[ALIGNMENT - sizeof(size_t)];
} head_t;

static _Atomic(head_t *) kept[KEPT];

void *scratch_take(size_t size)
{
    for (int i = 0; i < KEPT; i++) {
        head_t *found = atomic_exchange(&kept[i], NULL);
        if (found && found->size >= size)
            return found + 1;
        free(found); /* too small, and soon replaced by one that is not */
    }
    size_t whole = (sizeof(head_t) + size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    head_t *made = aligned_alloc(ALIGNMENT, whole);
    if (!made)
        return NULL;
    made->size = whole - sizeof(head_t);
    return made + 1;
}

void scratch_give(void *scratch)
{
    head_t *head = (head_t *)scratch - 1;
    for (int i = 0; i < KEPT && head->size <= KEPT_BYTES_MAX; i++) {
        head_t *empty = NULL;
        if (atomic_compare_exchange_strong(&kept[i], &empty, head))
            return;
    }
    free(head);
}

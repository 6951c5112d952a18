/* Working memory that is kept between calls: fresh pages would cost a tenth of an encoder's time. */
#include <stdatomic.h>
#include <stdlib.h>

#include "kernel.h"

enum { CLASSES = 16, KEPT = 8, SMALLEST_LOG2 = 10, ALIGNMENT = 64 }; /* up to 32 MiB is kept */

typedef struct {
    unsigned class; /* 1 KiB << class; CLASSES: larger, and not kept */
    char unused[ALIGNMENT - sizeof(unsigned)];
} head_t;

static _Atomic(head_t *) kept[CLASSES][KEPT];

static unsigned class_of(size_t size)
{
    unsigned class = 0;
#ifdef __SANITIZE_ADDRESS__
    return CLASSES; /* memory of about the size asked for, so that a step beyond it is seen */
#endif
    while (class < CLASSES && ((size_t)1 << (SMALLEST_LOG2 + class)) < size)
        class++;
    return class;
}

void *scratch_take(size_t size)
{
    unsigned class = class_of(size);
    for (int i = 0; i < KEPT && class < CLASSES; i++) {
        head_t *found = atomic_exchange(&kept[class][i], NULL);
        if (found)
            return found + 1;
    }
    size_t whole = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (class < CLASSES)
        whole = (size_t)1 << (SMALLEST_LOG2 + class);
    head_t *made = aligned_alloc(ALIGNMENT, sizeof(head_t) + whole);
    if (!made)
        return NULL;
    made->class = class;
    return made + 1;
}

void scratch_give(void *scratch)
{
    head_t *head = (head_t *)scratch - 1;
    for (int i = 0; i < KEPT && head->class < CLASSES; i++) {
        head_t *empty = NULL;
        if (atomic_compare_exchange_strong(&kept[head->class][i], &empty, head))
            return;
    }
    free(head);
}

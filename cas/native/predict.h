/* Predicted bases: what the words of a block will be about, from its base and its sibling (cas/spec/codecs.md,
 * Predictions). Included by variant.h only. */
#include <fenv.h>

INLINE float float_load(const uint8_t *data, size_t index)
{
    float value;
    memcpy(&value, data + 4 * index, 4);
    return value;
}

/* Each operation is one of binary32, in the order that the spec gives; the compiler must not fuse them (setup.py). */
#define PREDICT(expression)                                    \
    for (size_t i = from; i < to; i++) {                       \
        float b = float_load(base, i), s = float_load(sibling, i), p = (expression); \
        p = p == p ? p : b; /* a NaN's bits are the processor's choice */ \
        memcpy(out + 4 * i, &p, 4);                            \
    }

/* Elements from..to, which have the same coefficients, of a part of a block. */
static void predict_row(uint8_t kind, float c, float d, const uint8_t *restrict base, const uint8_t *restrict sibling,
                        size_t from, size_t to, uint8_t *restrict out)
{
    if (kind == PREDICT_LINE)
        PREDICT(b + c * (b - s))
    else
        PREDICT(c * b + d * (s * s))
}
#undef PREDICT

/* The elements at..at+count of a block, as a block; with a prediction its base is that, in `room`. Takes floating point
 * as the spec has it: see `floats_enter`. */
static block_t part_of(const block_t *b, size_t at, size_t count, uint8_t *room)
{
    const prediction_t *p = &b->prediction;
    size_t offset = at * (size_t)element_width(b->element);
    block_t part = *b;
    part.at += at;
    part.data = b->data ? b->data + offset : NULL;
    part.base = b->base ? b->base + offset : NULL;
    part.sibling = b->sibling ? b->sibling + offset : NULL;
    if (p->kind == PREDICT_NOTHING)
        return part;
    size_t row = p->row ? (p->first + at) / p->row : 0;
    for (size_t from = 0, to; from < count; from = to, row++) {
        to = p->row ? (row + 1) * p->row - p->first - at : count;
        to = to < count ? to : count;
        predict_row(p->kind, coefficient_of(p, 0, row), coefficient_of(p, 1, row), part.base, part.sibling, from, to,
                    room);
    }
    part.base = room;
    return part;
}

/* Rounding to nearest and denormals for a while: whoever called may have others (torch.set_flush_denormal). */
static void floats_enter(fenv_t *caller)
{
    fegetenv(caller);
    fesetenv(FE_DFL_ENV);
}

static void floats_leave(const fenv_t *caller) { fesetenv(caller); }

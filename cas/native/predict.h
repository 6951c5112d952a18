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

/* Elements from..to, which have the same coefficients. */
static void predict_row(uint8_t kind, float c, float d, const uint8_t *restrict base, const uint8_t *restrict sibling,
                        size_t from, size_t to, uint8_t *restrict out)
{
    if (kind == PREDICT_LINE)
        PREDICT(b + c * (b - s))
    else
        PREDICT(c * b + d * (s * s))
}
#undef PREDICT

/* Puts the predicted base, in `scratch`, in the place of the stored one. Rounding to nearest and denormals are set for
 * the while: whoever called may have others (torch.set_flush_denormal). */
static void predict_base(block_t *b, uint8_t *scratch)
{
    const prediction_t *p = &b->prediction;
    size_t count = b->length / 4, row = 0;
    fenv_t environment;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    for (size_t from = 0, to; from < count; from = to, row++) {
        to = p->row ? (row + 1) * p->row - p->first : count;
        predict_row(p->kind, coefficient_of(p, 0, row), coefficient_of(p, 1, row), b->base, b->sibling, from,
                    to < count ? to : count, scratch);
    }
    fesetenv(&environment);
    b->base = scratch;
}

/* How a block is best coded, by samples of it; and that done, and proven. Included by variant.h only. */

enum {
    DELTA_PERCENT = 97,   /* a delta must be that much of the block on its own: reading it means reading two blocks */
    SIBLING_PERCENT = 99, /* a block that needs another to be read is worth less */
    WORTH_PERCENT = 99,   /* what keeps more of its size is left as it is */
    GRID_COSTS = 64,      /* a grid's bytes are at most such a part of the block */
    SAMPLED = 8 << 10,    /* elements of a sample that are counted, at most */
    SAMPLED_PARTS = 48,   /* contexts of fewer counts than such a part of a sample need not be told apart */
    ROW_LEAST = 128,      /* a row of that many elements has coefficients of its own: they cost it a byte or two */
};

/* What weighing works with. */
typedef struct {
    encoder_t encoder;
    const block_t *block;
    const known_t *known;
    block_t sample;                         /* pieces of the block, and of what it may be coded with */
    uint8_t *pieces, *grid, *room;          /* memory: for samples, for raw bytes */
    uint8_t *prediction;                    /* as it stands in a payload */
    size_t prediction_bytes;
} scales_t;

/* Lay out the memory from address `at`; returns its size. */
static size_t scales_lay(scales_t *s, uintptr_t at, size_t count, size_t width)
{
    size_t used = encoder_lay(&s->encoder, at, count, width);
#define LAY(field, bytes)              \
    s->field = (uint8_t *)(at + used); \
    used += ((size_t)(bytes) + 63) / 64 * 64;
    LAY(pieces, 3 * SAMPLE_BYTES)
    LAY(grid, 8 * GRID_ELEMENTS)
    LAY(prediction, prediction_bound(count, ROW_LEAST))
#undef LAY
    return used;
}

/* About how many bytes the payload of the whole block has, by a sample: raw bits, and the entropy of symbols. */
static size_t weigh(scales_t *s, const block_t *sample, bool tokens, uint8_t source)
{
    encoder_t *e = &s->encoder;
    block_t with = *sample, *b = &with;
    size_t count = b->length / (size_t)element_width(b->element), fixed = HEADER_BYTES + 2 * STATE_BYTES;
    pass_t p;
    uint64_t sixteenths = 0, length = s->block->length;
    b->top = tokens ? (uint8_t)top_most(element_width(b->element)) : 0;
    b->source = source;
    b->base = tokens ? b->base : NULL;
    uint8_t *at = source == SOURCE_GRID ? grid_write(e, b, count, s->room) : s->room;
    pass_make(e, b, count, at, &p);
    pass_count(e, b, &p, SAMPLED, length / b->length, SAMPLED_PARTS);
    for (unsigned g = 0; g < p.groups; g++) {
        unsigned used;
        sixteenths += (uint64_t)entropy(e->counts[g], p.symbols, &used) * p.stride + used * USED_SIXTEENTHS;
        fixed += used + 2;
    }
    size_t raw = (size_t)(p.raw.bytes - at) + (size_t)(p.raw.bits - e->bits);
    return fixed + (size_t)((raw + sixteenths / 128) * length / b->length);
}

/* Where contexts come from when the block is coded on its own, and about how long it gets. */
static uint8_t own_source(scales_t *s, size_t *length)
{
    const block_t *b = s->block;
    const known_t *k = s->known;
    size_t count = b->length / (size_t)element_width(b->element);
    if (k->row && k->is_moment && GRID_COSTS * (k->row + grid_rows(count, k->row, k->first)) <= b->length) {
        block_t with = *b;
        with.row = k->row;
        with.first = k->first;
        with = sample_grid(&with, s->grid);
        *length = weigh(s, &with, false, SOURCE_GRID) + k->row;
        return SOURCE_GRID;
    }
    *length = weigh(s, &s->sample, false, SOURCE_NONE);
    if (!b->sibling || k->predicts != PREDICT_NOTHING)
        return SOURCE_NONE;
    size_t with = weigh(s, &s->sample, false, SOURCE_SIBLING);
    if (100 * with > SIBLING_PERCENT * *length)
        return SOURCE_NONE;
    *length = with;
    return SOURCE_SIBLING;
}

/* Fits a prediction to the whole block; false where base and sibling say nothing of it. */
static bool prediction_made(scales_t *s, uint32_t row, uint32_t first)
{
    size_t size = prediction_fit(s->block, s->known->predicts, row, first, s->prediction);
    s->prediction_bytes = size == NO_MEMORY ? 0 : size;
    return s->prediction_bytes != 0;
}

/* Puts the prediction into a block, or a sample. */
static void prediction_use(const scales_t *s, block_t *b)
{
    b->predicted = s->prediction;
    b->predicted_bytes = s->prediction_bytes;
    prediction_read(s->prediction, s->prediction_bytes, b->length / 4, &b->prediction);
}

/* About how long a delta gets, and with what help of the sibling: contexts, or a prediction. */
static size_t delta_weight(scales_t *s, plan_t *plan)
{
    const known_t *k = s->known;
    plan->source = s->block->element & ELEMENT_FLOAT || s->block->element == 0 ? SOURCE_BASE : SOURCE_NONE;
    size_t plain = weigh(s, &s->sample, true, plan->source), helped = plain;
    if (!s->block->sibling || !(s->block->element & ELEMENT_FLOAT))
        return plain;
    if (k->predicts == PREDICT_NOTHING) {
        helped = weigh(s, &s->sample, true, SOURCE_BOTH);
    } else if (prediction_made(s, 0, 0)) {
        block_t with = s->sample;
        prediction_use(s, &with);
        helped = weigh(s, &with, true, SOURCE_BASE);
    }
    if (100 * helped > SIBLING_PERCENT * plain)
        return helped < plain ? helped : plain;
    plan->predicted = k->predicts != PREDICT_NOTHING;
    plan->source = plan->predicted ? SOURCE_BASE : SOURCE_BOTH;
    return helped;
}

static plan_t plan_make(scales_t *s)
{
    const block_t *b = s->block;
    bool whole_number = !(b->element & ELEMENT_FLOAT) && b->element != 0; /* of more than a byte */
    s->sample = sample_pieces(b, s->pieces);
    plan_t plan = {.repeats = sample_repeats(&s->sample), .regular = whole_number || sample_regular(&s->sample)};
    size_t alone = b->length;
    if (!whole_number) {
        plan.source = own_source(s, &alone);
        plan.coded = 100 * alone < WORTH_PERCENT * b->length;
    }
    if (!OUTRUNS_PLANES && plan.source == SOURCE_NONE) {
        plan.coded = false;
        plan.regular = true;
    }
    if (!b->base)
        return plan;
    if (plan.regular) {
        size_t planes = sample_planes(&s->sample, b->length);
        alone = planes < alone ? planes : alone;
    }
    plan_t delta = {.repeats = plan.repeats, .regular = plan.regular, .coded = true, .delta = true};
    return 100 * delta_weight(s, &delta) <= DELTA_PERCENT * alone ? delta : plan;
}

/* The block as the plan says; see `encode`. */
static size_t encode_planned(scales_t *s, const plan_t *plan, uint8_t *out, size_t limit)
{
    const known_t *k = s->known;
    block_t b = *s->block;
    size_t count = b.length / (size_t)element_width(b.element);
    b.top = plan->delta;
    b.source = plan->source;
    b.row = plan->source == SOURCE_GRID ? k->row : 0;
    b.first = plan->source == SOURCE_GRID ? k->first : 0;
    b.base = plan->delta ? b.base : NULL;
    if (plan->predicted) {
        bool by_rows = k->row >= ROW_LEAST && k->row <= count / 2;
        if (!prediction_made(s, by_rows ? k->row : 0, by_rows ? k->first : 0))
            return 0;
        prediction_use(s, &b);
    } else if (!(b.source & SOURCE_SIBLING))
        b.sibling = b.digest = NULL;
    return encode_with(&s->encoder, &b, count, out, limit);
}

static status_t proven(const block_t *block, const plan_t *plan, const uint8_t *payload, size_t size)
{
    payload_t parsed;
    block_t b = *block;
    b.base = plan->delta ? b.base : NULL;
    status_t status = payload_parse(payload, size, b.length, &parsed);
    return status == KERNEL_OK ? decode(&parsed, &b, NULL) : status;
}

static size_t pack(const block_t *b, const known_t *known, uint8_t *out, size_t limit, plan_t *plan)
{
    size_t width = (size_t)element_width(b->element), count = b->length / width;
    scales_t s = {.block = b, .known = known, .room = out};
    *plan = (plan_t){.constant = b->length > width && memcmp(b->data, b->data + width, b->length - width) == 0};
    if (plan->constant || count == 0 || count > ELEMENTS_MOST)
        return 0;
    uint8_t *memory = scratch_take(scales_lay(&s, 0, count, width));
    if (!memory)
        return NO_MEMORY;
    scales_lay(&s, (uintptr_t)memory, count, width);
    fenv_t caller;
    floats_enter(&caller);
    *plan = plan_make(&s);
    size_t size = plan->coded ? encode_planned(&s, plan, out, limit) : 0;
    floats_leave(&caller);
    scratch_give(memory);
    if (size == 0)
        return 0;
    status_t status = proven(b, plan, out, size);
    plan->wrong = status != KERNEL_OK;
    return status == BAD_MEMORY ? NO_MEMORY : size;
}

/* A checked payload back to its block, with the functions of a variant. Included by variant.h only. */

static status_t states_read(const uint8_t *data, states_t *s)
{
    memcpy(s->lane, data, STATE_BYTES);
    uint32_t wrong = 0;
    for (unsigned i = 0; i < LANES; i++)
        wrong |= (uint32_t)(s->lane[i] - STATE_MIN >= 0x80000000u - STATE_MIN);
    return wrong ? BAD_STATE : KERNEL_OK;
}

/* At the end every lane is where the encoder started, and every stream was used up. */
static status_t states_end(const states_t *s)
{
    uint32_t wrong = 0;
    for (unsigned i = 0; i < LANES; i++)
        wrong |= s->lane[i] ^ STATE_MIN;
    return wrong ? BAD_STATE : KERNEL_OK;
}

/* Slot -> symbol in bits 0-7, frequency in 8-19, slot less the symbol's first in 20-31. Sixteen slots at a time: up
 * to 15 entries beyond a symbol's last are written, and then written over by the next symbol or table. */
static void decoding_table(const uint16_t *frequency, uint32_t *table)
{
    for (uint32_t symbol = 0; symbol < SYMBOLS; symbol++) {
        uint32_t entry = symbol | (uint32_t)frequency[symbol] << 8;
        for (uint32_t i = 0; i < frequency[symbol]; i += 16)
            for (uint32_t j = 0; j < 16; j++)
                table[i + j] = entry | (i + j) << 20;
        table += frequency[symbol];
    }
}

typedef struct {
    uint8_t lut[256];
    model_t model;
    uint8_t groups[CHUNK + LANES], symbols[CHUNK + LANES];
    _Alignas(64) uint8_t chunk[8 * CHUNK], base[4 * CHUNK];
    _Alignas(64) uint32_t tables[]; /* header.groups times SCALE */
} decoder_t;

/* Where `size` bytes from `offset` on are decoded to: in `out`, or beside it where they are only compared. */
INLINE uint8_t *place(decoder_t *d, uint8_t *out, size_t offset) { return out ? out + offset : d->chunk; }

INLINE status_t placed(const decoder_t *d, const block_t *b, const uint8_t *out, size_t offset, size_t size)
{
    return out || memcmp(d->chunk, b->data + offset, size) == 0 ? KERNEL_OK : NOT_EQUAL;
}

static status_t dense_decode(const payload_t *p, const block_t *b, decoder_t *d, raw_reader_t *r, uint8_t *out)
{
    size_t width = (size_t)element_width(b->element);
    states_t states;
    status_t status = states_read(p->symbol_states, &states);
    const uint8_t *words = p->symbol_words, *end = words + 2 * (size_t)p->header.symbol_words;
    bool is_unsigned = p->header.flags & FLAG_UNSIGNED, grouped = p->header.groups > 1;
    for (size_t at = 0; at < p->count && status == KERNEL_OK; at += CHUNK) {
        size_t count = p->count - at < CHUNK ? p->count - at : CHUNK;
        size_t padded = (count + LANES - 1) / LANES * LANES;
        block_t part = part_of(b, at, count, d->base);
        if (grouped)
            groups_of(&part, count, d->lut, d->groups);
        if (!symbols_decode(&words, end, grouped ? d->groups : NULL, d->symbols, padded, d->tables, &states))
            return BAD_STREAM;
        uint8_t *to = place(d, out, at * width);
        if (b->top == 0)
            split_undo(b, count, is_unsigned, d->symbols, r, to);
        else if (!tokens_undo(&part, count, d->symbols, r, to))
            return BAD_STREAM;
        status = placed(d, b, out, at * width, count * width);
    }
    if (status != KERNEL_OK)
        return status;
    return words == end ? states_end(&states) : BAD_STREAM;
}

static status_t sparse_decode(const payload_t *p, const block_t *b, decoder_t *d, raw_reader_t *r, uint8_t *out)
{
    size_t padded = (p->count + LANES - 1) / LANES * LANES, width = (size_t)element_width(b->element), differ = 0;
    size_t room = padded + PAD_BYTES;
    uint8_t *scratch = scratch_take(padded / 8 + 2 * room + padded * width + PAD_BYTES);
    if (!scratch)
        return BAD_MEMORY;
    uint64_t *flags = (uint64_t *)(void *)scratch;
    uint8_t *kept = scratch + padded / 8, *tokens = kept + room, *values = tokens + room;
    states_t states;
    status_t status = states_read(p->flag_states, &states);
    const uint8_t *words = p->flag_words, *end = words + 2 * (size_t)p->header.flag_words;
    for (size_t at = 0; at < p->count && status == KERNEL_OK; at += CHUNK) {
        size_t count = p->count - at < CHUNK ? p->count - at : CHUNK;
        size_t whole = (count + LANES - 1) / LANES * LANES;
        block_t part = part_of(b, at, count, d->base);
        groups_of(&part, count, d->lut, d->groups);
        if (!flags_decode(&words, end, d->groups, p->header.groups, flags + at / LANES, whole, d->model.same, &states))
            status = BAD_STREAM;
        else
            differ += sparse_keep(flags + at / LANES, d->groups, whole, kept + differ);
    }
    if (status == KERNEL_OK && (words != end || differ != p->header.coded ||
                                (p->count % LANES && flags[p->count / LANES] >> (p->count % LANES))))
        status = BAD_STREAM;
    status = status == KERNEL_OK ? states_end(&states) : status;
    status = status == KERNEL_OK ? states_read(p->symbol_states, &states) : status;
    if (status == KERNEL_OK) {
        size_t whole = (differ + LANES - 1) / LANES * LANES;
        memset(kept + differ, 0, whole - differ);
        words = p->symbol_words;
        end = words + 2 * (size_t)p->header.symbol_words;
        if (!symbols_decode(&words, end, kept, tokens, whole, d->tables, &states) || words != end)
            status = BAD_STREAM;
        else
            status = states_end(&states);
    }
    if (status == KERNEL_OK && b->top == 0) {
        for (size_t at = 0; at < differ; at += CHUNK)
            split_undo(b, differ - at < CHUNK ? differ - at : CHUNK, p->header.flags & FLAG_UNSIGNED, tokens + at, r,
                       values + at * width);
    } else if (status == KERNEL_OK) {
        status = values_undo(tokens, differ, (int)width, b->top, r, values) ? KERNEL_OK : BAD_STREAM;
    }
    for (size_t at = 0; at < p->count && status == KERNEL_OK; at += CHUNK) {
        size_t count = p->count - at < CHUNK ? p->count - at : CHUNK;
        block_t part = part_of(b, at, count, d->base);
        values += width * sparse_undo(&part, count, flags + at / LANES, values, place(d, out, at * width));
        status = placed(d, b, out, at * width, count * width);
    }
    scratch_give(scratch);
    return status;
}

/* Whether the byte and bit streams of a split block are as long as its elements make them. */
static bool split_lengths(const payload_t *p, size_t width)
{
    bool is_unsigned = p->header.flags & FLAG_UNSIGNED;
    size_t coded = p->header.coded;
    return p->header.byte_bytes == coded * (width - 1 - is_unsigned) &&
           p->header.bit_bytes == (is_unsigned ? (7 * coded + 7) / 8 : 0);
}

static status_t decode(const payload_t *p, const block_t *block, uint8_t *out)
{
    const header_t *h = &p->header;
    block_t with = *block, *b = &with;
    b->element = h->element;
    b->top = h->top;
    b->source = h->source;
    b->row = p->row;
    b->first = p->first;
    b->columns = p->columns;
    b->rows = p->rows;
    b->prediction = p->prediction;
    bool predicted = b->prediction.kind != PREDICT_NOTHING;
    bool wants_base = h->source & SOURCE_BASE || predicted, wants_sibling = h->source & SOURCE_SIBLING || predicted;
    if ((wants_base && !b->base) || (wants_sibling && !b->sibling))
        return BAD_REFERENCE;
    size_t width = (size_t)element_width(h->element), tail = b->length - p->count * width;
    if (h->top == 0 && !split_lengths(p, width))
        return BAD_STREAM;
    decoder_t *d = scratch_take(sizeof *d + (h->groups * (size_t)SCALE + 16) * sizeof *d->tables);
    if (!d)
        return BAD_MEMORY;
    unsigned symbols = alphabet(h->element, h->top);
    bool sparse = h->flags & FLAG_SPARSE;
    status_t status = model_read(p->table, h->table_bytes, h->groups, symbols, sparse, d->lut, &d->model);
    if (status == KERNEL_OK) {
        for (unsigned g = 0; g < h->groups; g++)
            decoding_table(d->model.frequency[g], d->tables + (size_t)g * SCALE);
        raw_reader_t r = {p->bytes, p->bytes + h->byte_bytes, p->bits, 0, 8 * (uint64_t)h->bit_bytes};
        fenv_t caller;
        floats_enter(&caller);
        status = sparse ? sparse_decode(p, b, d, &r, out) : dense_decode(p, b, d, &r, out);
        floats_leave(&caller);
        if (status == KERNEL_OK && (r.bytes != r.bytes_end || r.bits_end - r.at >= 8))
            status = BAD_STREAM;
    }
    scratch_give(d);
    if (status == KERNEL_OK && out)
        memcpy(out + p->count * width, p->tail, tail);
    else if (status == KERNEL_OK && memcmp(p->tail, b->data + p->count * width, tail) != 0)
        status = NOT_EQUAL;
    return status;
}

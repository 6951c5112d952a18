/* The header of a payload: written, read, every length checked (cas/spec/codecs.md, Kernel payload). */
#include "kernel.h"

unsigned top_most(int width) { return width == 2 ? 3 : width == 4 ? 2 : 1; }

unsigned alphabet(uint8_t element, unsigned top)
{
    int width = element_width(element);
    if (top == 0 || width == 1)
        return SYMBOLS;
    return SMALL + ((8u * (unsigned)width - 4) << (top + 1));
}

size_t kernel_limit(size_t length) { return length + length / 4 + 1024; }

size_t kernel_bound(size_t length) { return kernel_limit(length) + TABLE_BYTES_MAX; }

static void put16(uint8_t *out, uint16_t value) { memcpy(out, &value, 2); }
static void put32(uint8_t *out, uint32_t value) { memcpy(out, &value, 4); }

static uint32_t get32(const uint8_t *data)
{
    uint32_t value;
    memcpy(&value, data, 4);
    return value;
}

void header_write(uint8_t *out, const header_t *header)
{
    out[0] = MODE_KERNEL;
    out[1] = header->element;
    out[2] = header->top;
    out[3] = header->flags;
    out[4] = header->source;
    out[5] = header->groups;
    put16(out + 6, header->table_bytes);
    put32(out + 8, header->coded);
    put32(out + 12, header->byte_bytes);
    put32(out + 16, header->bit_bytes);
    put32(out + 20, header->symbol_words);
    put32(out + 24, header->flag_words);
}

void prediction_write(uint8_t *out, const prediction_t *prediction)
{
    put32(out, prediction->kind);
    put32(out + 4, prediction->row);
    put32(out + 8, prediction->first);
    for (int i = 0; i < 2; i++) {
        memcpy(out + 12 + 8 * i, &prediction->low[i], 4);
        memcpy(out + 16 + 8 * i, &prediction->step[i], 4);
    }
}

static bool is_finite(float value) { return value - value == 0; }

size_t prediction_read(const uint8_t *data, size_t size, size_t count, prediction_t *prediction)
{
    prediction_t *p = prediction;
    if (size < PREDICTION_BYTES)
        return 0;
    uint32_t kind = get32(data);
    p->kind = (uint8_t)kind;
    p->row = get32(data + 4);
    p->first = get32(data + 8);
    bool good = (kind == PREDICT_LINE || kind == PREDICT_SQUARE) && (p->row ? p->first < p->row : p->first == 0) &&
                p->row <= ROW_MOST;
    for (int i = 0; i < 2; i++) {
        memcpy(&p->low[i], data + 12 + 8 * i, 4);
        memcpy(&p->step[i], data + 16 + 8 * i, 4);
        good = good && is_finite(p->low[i]) && is_finite(p->step[i]);
    }
    if (!good)
        return 0;
    size_t rows = p->row ? grid_rows(count, p->row, p->first) : 0, used = PREDICTION_BYTES;
    for (int i = 0; i < coefficients(p->kind); i++, used += rows)
        p->rows[i] = data + used;
    return used <= size ? used : 0;
}

static void header_read(const uint8_t *data, header_t *header)
{
    header->element = data[1];
    header->top = data[2];
    header->flags = data[3];
    header->source = data[4];
    header->groups = data[5];
    header->table_bytes = (uint16_t)(data[6] | data[7] << 8);
    header->coded = get32(data + 8);
    header->byte_bytes = get32(data + 12);
    header->bit_bytes = get32(data + 16);
    header->symbol_words = get32(data + 20);
    header->flag_words = get32(data + 24);
}

/* Whether the fields make sense together, lengths apart. */
static bool header_valid(const header_t *h, size_t count)
{
    int width = element_width(h->element);
    bool is_float = h->element & ELEMENT_FLOAT, sparse = h->flags & FLAG_SPARSE;
    if (h->element > (ELEMENT_WIDTH | ELEMENT_FLOAT) || h->flags > (FLAG_SPARSE | FLAG_UNSIGNED | FLAG_SIBLING | FLAG_PREDICTED))
        return false;
    if (h->top > top_most(width) || h->source > SOURCE_GRID || h->groups < 1 || h->groups > GROUPS_MAX)
        return false;
    if (h->source == SOURCE_NONE && h->groups != 1)
        return false;
    if (h->flags & FLAG_PREDICTED) {
        if (h->element != PREDICTED_ELEMENT || h->top == 0 || h->source > SOURCE_BASE || !(h->flags & FLAG_SIBLING))
            return false;
    } else if (!(h->flags & FLAG_SIBLING) != !(h->source & SOURCE_SIBLING))
        return false;
    if (h->top == 0 && !is_float && width > 1)
        return false;
    if ((h->flags & FLAG_UNSIGNED) && (h->top != 0 || width == 1))
        return false;
    if (sparse ? h->coded > count : h->coded != count || h->flag_words != 0)
        return false;
    return h->symbol_words <= (h->coded + (size_t)LANES - 1) / LANES * LANES &&
           h->flag_words <= (count + LANES - 1) / LANES * LANES;
}

status_t payload_parse(const uint8_t *data, size_t size, size_t length, payload_t *payload)
{
    header_t *h = &payload->header;
    if (size < HEADER_BYTES || data[0] != MODE_KERNEL || length > UINT32_MAX / 2)
        return BAD_HEADER;
    header_read(data, h);
    size_t width = (size_t)element_width(h->element), tail = length % width;
    payload->count = length / width;
    if (payload->count == 0 || !header_valid(h, payload->count))
        return BAD_HEADER;
    bool sparse = h->flags & FLAG_SPARSE;
    payload->tail = data + HEADER_BYTES + (h->flags & FLAG_SIBLING ? DIGEST_BYTES : 0);
    payload->columns = payload->rows = NULL;
    payload->prediction.kind = PREDICT_NOTHING;
    if (h->flags & FLAG_PREDICTED) {
        size_t before = HEADER_BYTES + DIGEST_BYTES;
        size_t used = size > before ? prediction_read(data + before, size - before, payload->count, &payload->prediction) : 0;
        if (used == 0)
            return BAD_HEADER;
        payload->tail += used;
    }
    if (h->source == SOURCE_GRID) {
        if (size < HEADER_BYTES + 8)
            return BAD_HEADER;
        payload->row = get32(data + HEADER_BYTES);
        payload->first = get32(data + HEADER_BYTES + 4);
        if (payload->row == 0 || payload->row > size || payload->first >= payload->row)
            return BAD_HEADER;
        payload->columns = data + HEADER_BYTES + 8;
        payload->rows = payload->columns + payload->row;
        payload->tail = payload->rows + grid_rows(payload->count, payload->row, payload->first);
    }
    uint64_t due = (uint64_t)(payload->tail - data) + tail + h->byte_bytes + h->bit_bytes + h->table_bytes +
                   2 * ((uint64_t)h->symbol_words + h->flag_words) + (sparse ? 2u : 1u) * STATE_BYTES;
    if (due != size)
        return BAD_HEADER;
    payload->bytes = payload->tail + tail;
    payload->bits = payload->bytes + h->byte_bytes;
    payload->table = payload->bits + h->bit_bytes;
    payload->flag_words = payload->table + h->table_bytes;
    payload->symbol_words = payload->flag_words + 2 * (size_t)h->flag_words;
    payload->flag_states = payload->symbol_words + 2 * (size_t)h->symbol_words;
    payload->symbol_states = payload->flag_states + (sparse ? STATE_BYTES : 0);
    return KERNEL_OK;
}

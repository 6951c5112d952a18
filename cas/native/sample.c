/* What a few pieces of a block say about the whole: whether its mantissas are noise, whether its bytes repeat. */
#include "elements.h"

enum {
    NOISE_PERCENT = 98,  /* bytes whose entropy is that much of what it can be are noise */
    TELLING = 512,       /* fewer bytes than that say nothing about entropy */
    PLANE_WORDS = 1 << 12,
    SLOTS = 1 << 10,
    SCANNED_BYTES = 4096, /* of each piece */
    REPEATS_PERCENT = 2,
};

/* Evenly spread pieces, cut at multiples of 16 bytes so that all elements stay whole. */
static void pieces_copy(const uint8_t *data, size_t length, uint8_t *out)
{
    size_t step = (length - SAMPLE_PIECE_BYTES) / (SAMPLE_PIECES - 1) / 16 * 16;
    for (size_t i = 0; i < SAMPLE_PIECES; i++)
        memcpy(out + i * SAMPLE_PIECE_BYTES, data + i * step, SAMPLE_PIECE_BYTES);
}

block_t sample_pieces(const block_t *b, uint8_t *room)
{
    block_t s = *b;
    if (b->length <= SAMPLE_BYTES_MAX)
        return s;
    const uint8_t **parts[] = {&s.data, &s.base, &s.sibling};
    for (size_t i = 0; i < 3; i++)
        if (*parts[i]) {
            pieces_copy(*parts[i], b->length, room + i * SAMPLE_BYTES);
            *parts[i] = room + i * SAMPLE_BYTES;
        }
    s.length = SAMPLE_BYTES;
    return s;
}

block_t sample_grid(const block_t *b, uint8_t *room)
{
    block_t s = *b;
    size_t width = (size_t)element_width(b->element), count = b->length / width, row = b->row;
    size_t before = (row - b->first) % row; /* elements before the first whole row */
    size_t columns = row < GRID_COLUMNS ? row : GRID_COLUMNS;
    size_t whole = count > before ? (count - before) / row : 0, rows = GRID_ELEMENTS / columns;
    rows = rows < whole ? rows : whole;
    if (rows < 2 || count <= GRID_ELEMENTS)
        return s;
    size_t start = before + (whole - rows) / 2 * row + (row - columns) / 2;
    for (size_t i = 0; i < rows; i++)
        memcpy(room + i * columns * width, b->data + (start + i * row) * width, columns * width);
    s.data = room;
    s.length = rows * columns * width;
    s.row = (uint32_t)columns;
    s.first = 0;
    return s;
}

/* Sixteenths of bits; few bytes show less entropy than they come from, which is made up for. */
static uint64_t entropy_of(const uint32_t *counts)
{
    unsigned used;
    return entropy(counts, SYMBOLS, &used) + (uint64_t)used * USED_SIXTEENTHS;
}

typedef uint32_t planes_t[8][SYMBOLS];

/* Bytes of the rotated words (of the words, where they are whole numbers), by plane; words that are 0 are passed over
 * with `filled`. Returns how many words were counted. */
static uint32_t planes_count(const block_t *s, bool filled, planes_t counts)
{
    int width = element_width(s->element);
    size_t count = s->length / (size_t)width, step = count / PLANE_WORDS + 1;
    bool is_float = s->element & ELEMENT_FLOAT;
    uint32_t total = 0;
    memset(counts, 0, (size_t)width * sizeof *counts);
#define CALL(W)                                                     \
    for (size_t i = 0; i < count; i += step) {                      \
        uint64_t word = element_load(s->data, i, W);                \
        if (filled && word == 0)                                    \
            continue;                                               \
        word = is_float ? word << 1 | is_negative(word, W) : word;  \
        for (size_t plane = 0; plane < W; plane++)                  \
            counts[plane][(uint8_t)(word >> (8 * plane))]++;        \
        total++;                                                    \
    }
    FOR_WIDTH(width, CALL)
#undef CALL
    return total;
}

bool sample_regular(const block_t *s)
{
    size_t width = (size_t)element_width(s->element);
    planes_t counts;
    uint64_t total = width == 1 ? 0 : planes_count(s, true, counts);
    if (total < TELLING)
        return false;
    for (size_t plane = 0; plane + 1 < width; plane++) {
        unsigned bits = 8;
        if (plane == 0 && s->element & ELEMENT_FLOAT) { /* bit 0 is the sign, of which all may have the same */
            for (size_t i = 0; i < SYMBOLS / 2; i++)
                counts[0][i] = counts[0][2 * i] + counts[0][2 * i + 1];
            memset(counts[0] + SYMBOLS / 2, 0, SYMBOLS / 2 * sizeof **counts);
            bits = 7;
        }
        if (100 * entropy_of(counts[plane]) < NOISE_PERCENT * 16 * bits * total)
            return true;
    }
    return false;
}

size_t sample_planes(const block_t *s, size_t length)
{
    size_t width = (size_t)element_width(s->element);
    planes_t counts;
    uint64_t sixteenths = 0, noise = 128 * (uint64_t)planes_count(s, false, counts);
    for (size_t plane = 0; plane < width; plane++) {
        uint64_t found = entropy_of(counts[plane]);
        sixteenths += found < noise ? found : noise;
    }
    return (size_t)(length * sixteenths / (noise * width));
}

bool sample_repeats(const block_t *s)
{
    if (s->length < TELLING * 8)
        return true;
    uint64_t seen[SLOTS] = {0};
    size_t all = 0, tried = 0, found = 0, step = (size_t)element_width(s->element), part = s->length / SAMPLE_PIECES;
    for (size_t piece = 0; piece < SAMPLE_PIECES; piece++)
        for (size_t i = 0; i + 8 <= part && i < SCANNED_BYTES; i += step, all++) {
            uint64_t word;
            memcpy(&word, s->data + piece * part / 8 * 8 + i, 8);
            uint32_t hash = (uint32_t)(word * 0x9e3779b185ebca87ull >> 50); /* 14 bits: 10 for the slot */
            if (hash & 15) /* one word in 16, chosen by what it is: the same words are always looked at */
                continue;
            tried++;
            found += word != 0 && seen[hash >> 4] == word;
            seen[hash >> 4] = word;
        }
    return 100 * found > REPEATS_PERCENT * tried || tried < all / 64; /* or they are so few that all were passed over */
}

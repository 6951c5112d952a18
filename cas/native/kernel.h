/* The float kernel: blocks of numbers as entropy-coded symbols and raw bits (cas/spec/codecs.md, Kernel payload).
 *
 *   payload.c    the header: written, read, every length checked
 *   table.c      frequencies: scaled, serialised, read back, spread into coding tables
 *   grouping.c   which contexts share a table
 *   planes.c     elements to byte planes and back
 *   sample.c     what a few pieces say about a whole block
 *   variant.h    encoder and decoder, in plain C; included once per instruction set:
 *   variant_*.c  scalar, and with lanes_avx2.h or lanes_avx512.h (and what they include) in place of the hot loops
 *   select.c     the best variant that this processor runs
 *   module.c     the Python module: buffers in, buffers out, without the GIL
 *
 * A decoder believes nothing: header lengths add up to the payload's, tables sum to 4096, lane states are in
 * range. Every stream is followed by the lane states, PAD_BYTES of them at least, so that a vector may be
 * loaded at a stream's end; a stream that was overrun is noticed before the next group of elements.
 */
#ifndef GPU_TRAIN_KERNEL_H
#define GPU_TRAIN_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "payloads are little-endian and this kernel reads them as they lie; numpy serves here"
#endif

#define INLINE static inline __attribute__((always_inline))

enum {
    MODE_KERNEL = 1,
    LANES = 64,         /* a group: as many elements as there are coder states */
    SYMBOLS = 256,      /* row length of every table, whatever the alphabet */
    GROUPS_MAX = 16,    /* contexts after grouping, as the format allows */
    GROUPS_MADE = 8,    /* and as this encoder makes */
    SCALE_BITS = 12,
    SCALE = 1 << SCALE_BITS,
    FLAG_BITS = 15,
    FLAG_SCALE = 1 << FLAG_BITS,
    STATE_MIN = 1 << 15, /* states are in [STATE_MIN, 2^31) */
    STATE_BYTES = 4 * LANES,
    PAD_BYTES = STATE_BYTES,
    SMALL = 16,          /* differences below are their own token */
    CHUNK = 4096,        /* elements between two looks at the streams' ends; a multiple of LANES */
    HEADER_BYTES = 28,
    DIGEST_BYTES = 32,
    TABLE_BYTES_MAX = 16384,
};

enum { ELEMENT_WIDTH = 3, ELEMENT_FLOAT = 4 };           /* bits of the element byte */
enum { FLAG_SPARSE = 1, FLAG_UNSIGNED = 2, FLAG_SIBLING = 4, FLAG_PREDICTED = 8 };
enum { SOURCE_NONE, SOURCE_BASE, SOURCE_SIBLING, SOURCE_BOTH, SOURCE_GRID }; /* where the context byte comes from */

/* How the base is made from two blocks. A coefficient is low + step * byte, the byte being the row's. */
enum { PREDICT_NOTHING, PREDICT_LINE, PREDICT_SQUARE };
enum { PREDICTION_BYTES = 28, PREDICTED_ELEMENT = 6, ROW_MOST = 1 << 30 };
typedef struct {
    uint8_t kind;
    uint32_t row, first; /* elements per row, or 0 where all have the same; the column of the block's first element */
    float low[2], step[2];
    const uint8_t *rows[2];
} prediction_t;

/* What an encoder gets, and what a decoder works on. */
typedef struct {
    const uint8_t *data;    /* the block (encoder) */
    const uint8_t *base;    /* `length` bytes, or NULL: differences are from zero, or symbols are split */
    const uint8_t *sibling; /* `length` bytes, or NULL */
    const uint8_t *digest;  /* of the sibling, for the payload; NULL without one */
    size_t length;
    size_t at;              /* of a part of a block: elements before it */
    uint8_t element;
    uint8_t top;            /* 0: split; else leading bits of a difference in its token */
    uint8_t source;
    prediction_t prediction; /* makes the base, out of `base` and `sibling` */
    const uint8_t *predicted;       /* that as it stands in a payload, for an encoder */
    size_t predicted_bytes;
    uint32_t row, first;            /* source grid: elements per row; the column of the block's first element */
    const uint8_t *columns, *rows;  /* source grid: a byte for each; an encoder makes them itself */
} block_t;

typedef struct {
    uint8_t element, top, flags, source, groups;
    uint16_t table_bytes;
    uint32_t coded, byte_bytes, bit_bytes, symbol_words, flag_words;
} header_t;

/* Where everything is in a payload whose header was checked. */
typedef struct {
    header_t header;
    size_t count; /* elements */
    prediction_t prediction;
    uint32_t row, first;
    const uint8_t *columns, *rows; /* source grid */
    const uint8_t *tail, *bytes, *bits, *table, *flag_words, *symbol_words, *flag_states, *symbol_states;
} payload_t;

typedef enum {
    KERNEL_OK = 0,
    BAD_HEADER,    /* unknown mode, element, flags; lengths that do not add up */
    BAD_REFERENCE, /* a base or a sibling is needed and was not given */
    BAD_TABLE,
    BAD_STATE,
    BAD_STREAM, /* ends too early or too late */
    BAD_MEMORY,
    NOT_EQUAL, /* it decodes to something else than the block */
} status_t;

#define NO_MEMORY ((size_t)-1) /* in place of a length */
enum { UNHANDLED = -1 }; /* what a variant's own loop returns for widths it leaves to plain C */

/* Element 4i + j of a group has the lane 16j + i: a vector's lanes are then one byte of each of its words. */
typedef struct {
    uint32_t lane[LANES];
} states_t;

typedef struct {
    uint16_t frequency[GROUPS_MAX][SYMBOLS];
    uint32_t same[GROUPS_MAX]; /* of FLAG_SCALE: how often an element equals its base */
} model_t;

/* What the caller of `pack` knows of a block. */
typedef struct {
    uint8_t predicts;    /* what its sibling makes of its base; PREDICT_NOTHING where it tells how large elements are */
    bool is_moment;      /* sizes of elements go by rows and columns */
    uint32_t row, first; /* elements per row of the tensor, or 0; the column of the block's first element */
} known_t;

/* What samples say of a block, and what came of it. */
typedef struct {
    bool constant; /* one element again and again: nothing else was looked at */
    bool regular;  /* the bits below the exponent are no noise: planes may be shorter */
    bool repeats;  /* its bytes repeat: zstd may be shorter */
    bool coded;    /* by the kernel, as `delta` and `source` say; else it does not pay */
    bool delta;
    bool predicted; /* the base is a prediction */
    uint8_t source;
    bool wrong; /* the payload was decoded, and is not the block */
} plan_t;

typedef struct {
    const char *name;
    /* The payload's length; 0 when it would not be shorter than `limit`; NO_MEMORY.
     * `limit` is at most kernel_limit(length); `out` has kernel_bound(length) bytes. */
    size_t (*encode)(const block_t *block, uint8_t *out, size_t limit);
    /* Decodes into `out` (block->length bytes) from a checked payload; where it is NULL, compares with block->data. */
    status_t (*decode)(const payload_t *payload, const block_t *block, uint8_t *out);
    /* `encode` in the way that samples say is shortest: data, base, sibling, digest, length and element are given, the
     * rest of the block is found. The payload was decoded and compared. */
    size_t (*pack)(const block_t *block, const known_t *known, uint8_t *out, size_t limit, plan_t *plan);
} variant_t;

extern const variant_t kernel_scalar;
#if defined(__x86_64__) && defined(__GNUC__)
#define KERNEL_X86 1
extern const variant_t kernel_avx2, kernel_avx512;
#endif

/* select.c */
void kernel_prepare(void); /* once, before anything else */
const variant_t *kernel_select(const char *name); /* NULL: the best; or by name, NULL when it cannot run here */

/* payload.c */
INLINE int element_width(uint8_t element) { return 1 << (element & ELEMENT_WIDTH); }
unsigned top_most(int width); /* most leading bits of a token: its alphabet has at most 256 */
unsigned alphabet(uint8_t element, unsigned top);
size_t kernel_limit(size_t length); /* payloads are shorter: as raw bytes, and a little */
size_t kernel_bound(size_t length); /* what an encoder may write to: that, and tables */
void header_write(uint8_t *out, const header_t *header);
void prediction_write(uint8_t *out, const prediction_t *prediction); /* all but the rows */
/* Its length, for `count` elements; 0 when it is none. */
size_t prediction_read(const uint8_t *data, size_t size, size_t count, prediction_t *prediction);
INLINE int coefficients(uint8_t kind) { return kind == PREDICT_SQUARE ? 2 : 1; }
INLINE float coefficient_of(const prediction_t *p, int which, size_t row)
{
    return p->row && which < coefficients(p->kind) ? p->low[which] + p->step[which] * (float)p->rows[which][row]
                                                   : p->low[which];
}
status_t payload_parse(const uint8_t *data, size_t size, size_t length, payload_t *payload);

/* Rows that `count` elements are in, the first of them in column `first`. */
INLINE size_t grid_rows(size_t count, uint32_t row, uint32_t first) { return (first + count + row - 1) / row; }

/* table.c */
void frequencies_scale(const uint32_t *counts, unsigned symbols, uint16_t *frequency);
size_t model_write(uint8_t *out, const model_t *model, unsigned groups, const uint8_t *starts, unsigned symbols,
                   bool sparse);
status_t model_read(const uint8_t *data, size_t size, unsigned groups, unsigned symbols, bool sparse, uint8_t *lut,
                    model_t *model);
void encoding_table(const uint16_t *frequency, uint32_t *table);

/* grouping.c */
typedef uint32_t counts_t[SYMBOLS];
typedef struct {
    unsigned lowest, highest;
} span_t;
enum { LEAST_COUNTED = 64, PARTS = 1024 };
/* Merges the rows of `contexts` into at most GROUPS_MADE; row g of `counts` becomes group g's, and starts[g] its first
 * context (starts[0] = 0). `used`: the symbols that were counted at all. `stride`: of how many elements one was
 * counted. Contexts of fewer counts than a part of all, and than LEAST_COUNTED, are joined to their neighbours before. */
unsigned group_contexts(counts_t *counts, const span_t *contexts, const span_t *used, unsigned stride, unsigned parts,
                        uint8_t *starts);
void lut_fill(const uint8_t *starts, unsigned groups, uint8_t *lut);
uint32_t entropy(const uint32_t *counts, unsigned symbols, unsigned *used); /* of all that was counted, in sixteenths
                                                                             * of a bit; `used`: symbols that occur */

/* sample.c */
enum {
    SAMPLE_PIECES = 4,
    SAMPLE_PIECE_BYTES = 8 << 10,
    SAMPLE_BYTES = SAMPLE_PIECES * SAMPLE_PIECE_BYTES,
    SAMPLE_BYTES_MAX = 2 * SAMPLE_BYTES, /* no longer block is its own sample */
    GRID_ELEMENTS = 16 << 10,
    GRID_COLUMNS = 1 << 10,
    USED_SIXTEENTHS = 12, /* few symbols show less entropy than they come from: by so much for each that occurs */
};
block_t sample_pieces(const block_t *block, uint8_t *room); /* `room` for 3 * SAMPLE_BYTES: data, base, sibling */
block_t sample_grid(const block_t *block, uint8_t *room);   /* whole rows, or parts of them; for 8 * GRID_ELEMENTS */
bool sample_regular(const block_t *sample);
bool sample_repeats(const block_t *sample);
size_t sample_planes(const block_t *sample, size_t length); /* about how many bytes planes take of `length` */

/* What a prediction takes at most, with rows of `row` elements, or 0. */
INLINE size_t prediction_bound(size_t count, uint32_t row)
{
    return PREDICTION_BYTES + (row ? 2 * (count / row + 2) : 0);
}

/* planes.c */
typedef struct {
    const uint8_t *data;
    size_t step; /* 0 for one byte that stands for all */
} plane_t;
void planes_split(const uint8_t *block, size_t count, int width, bool rotated, uint8_t *out); /* planes one after another */
void planes_join(const plane_t *planes, size_t count, int width, bool rotated, uint8_t *out);

/* scratch.c */
void *scratch_take(size_t size); /* 64-byte aligned; kept for the next taker when it is given back */
void scratch_give(void *scratch);

#endif

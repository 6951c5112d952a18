/* How large the elements of each row and each column of a block are (cas/spec/codecs.md, Contexts). Included by
 * encode.h only. */

enum { GRID_STEPS = 4 }; /* of a context to an exponent */

typedef struct {
    uint32_t sum, count;
} mean_t;

static int mean_of(uint32_t sum, uint32_t count) { return (int)((GRID_STEPS * (uint64_t)sum + count / 2) / count); }

static uint8_t grid_byte(int more)
{
    return (uint8_t)(more < -127 ? 1 : more > 127 ? 255 : 128 + more);
}

/* Means of the exponents (context bytes, of elements that have one) over rows and columns, less the mean of all,
 * in quarters; rows without any have the byte 0. `sums` and `counts` have room for a row. */
static void grid_make(const uint8_t *exponents, size_t count, uint32_t row, uint32_t first, uint32_t *sums,
                      uint32_t *counts, uint8_t *columns, uint8_t *rows)
{
    mean_t all = {0, 0};
    memset(sums, 0, row * sizeof *sums);
    memset(counts, 0, row * sizeof *counts);
    for (int pass = 0; pass < 2; pass++) { /* the mean of all, and then rows against it */
        size_t column = first, r = 0;
        for (size_t done = 0; done < count; column = 0, r++) {
            size_t run = row - column < count - done ? row - column : count - done;
            uint32_t sum = 0, used = 0;
            const uint8_t *e = exponents + done;
            for (size_t i = 0; i < run; i++) {
                sum += e[i];
                used += e[i] != 0;
            }
            if (pass)
                rows[r] = used ? grid_byte(mean_of(sum, used) - mean_of(all.sum, all.count)) : 0;
            else {
                for (size_t i = 0; i < run; i++) {
                    sums[column + i] += e[i];
                    counts[column + i] += e[i] != 0;
                }
                all.sum += sum;
                all.count += used;
            }
            done += run;
        }
    }
    for (size_t i = 0; i < row; i++)
        columns[i] = counts[i] ? grid_byte(mean_of(sums[i], counts[i]) - mean_of(all.sum, all.count)) : 128;
}

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

/* Sum of up to 256 bytes, in 16 bits so that vectors hold many; and how many of them are 0. */
static uint16_t bytes_sum(const uint8_t *bytes, size_t count, size_t *zeros)
{
    uint16_t sum = 0;
    uint8_t none = 0;
    for (size_t i = 0; i < count; i++)
        sum = (uint16_t)(sum + bytes[i]);
    for (size_t i = 0; i < count; i++)
        none |= bytes[i] == 0;
    for (size_t i = 0; i < count && none; i++)
        *zeros += bytes[i] == 0;
    return sum;
}

/* The columns' sums in 16 bits, which do for 256 rows, are added to those in 32. */
static void sums_flush(uint32_t *sums, uint16_t *part, uint32_t row)
{
    for (size_t i = 0; i < row; i++)
        sums[i] += part[i];
    memset(part, 0, row * sizeof *part);
}

enum { NO_MEAN = 0xffff };

/* Means of the exponents (context bytes, of elements that have one) over rows and columns, less the mean of all,
 * in quarters; rows without any have the byte 0. `memory` has 10 bytes for each column and 2 for each row. */
static void grid_make(const uint8_t *exponents, size_t count, uint32_t row, uint32_t first, uint8_t *memory,
                      uint8_t *columns, uint8_t *rows)
{
    uint32_t *sums = (uint32_t *)(void *)memory, *zeros = sums + row, last = (uint32_t)((first + count - 1) % row) + 1;
    uint16_t *part = (uint16_t *)(void *)(zeros + row), *of_row = part + row;
    mean_t all = {0, 0};
    size_t column = first, r = 0;
    memset(memory, 0, 10 * (size_t)row);
    for (size_t done = 0; done < count; column = 0) {
        size_t run = row - column < count - done ? row - column : count - done, none = 0;
        const uint8_t *e = exponents + done;
        uint32_t sum = 0;
        for (size_t i = 0; i < run; i += 256)
            sum += bytes_sum(e + i, run - i < 256 ? run - i : 256, &none);
        for (size_t i = 0; i < run; i++)
            part[column + i] = (uint16_t)(part[column + i] + e[i]);
        for (size_t i = 0; i < run && none; i++)
            zeros[column + i] += e[i] == 0;
        of_row[r] = run > none ? (uint16_t)mean_of(sum, (uint32_t)(run - none)) : NO_MEAN;
        all.sum += sum;
        all.count += (uint32_t)(run - none);
        done += run;
        if (++r % 256 == 0)
            sums_flush(sums, part, row);
    }
    sums_flush(sums, part, row);
    int mean = all.count ? mean_of(all.sum, all.count) : 0;
    for (size_t i = 0; i < r; i++)
        rows[i] = of_row[i] != NO_MEAN ? grid_byte(of_row[i] - mean) : 0;
    for (size_t i = 0; i < row; i++) {
        uint32_t used = (uint32_t)r - (i < first) - (i >= last) - zeros[i];
        columns[i] = used ? grid_byte(mean_of(sums[i], used) - mean) : 128;
    }
}
